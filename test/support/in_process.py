"""A Triton server in this process, with real clients, transports and programs of models, but without connections.

All code between the protocol and the networks is the product's: the client, its transport with retries and errors, the
wire contract, the session model or the video model. The networks are functions.

    with InProcess(compute) as server:
        server.add_session_model("sam2")
        SAM2TritonClient(server.url).set_image(...)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.pb_utils import Compute, Request, Triton, arguments
from tritonclient.utils import InferenceServerException

from triton_sam import AsyncSAM2TritonClient, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.families import get_family, model_name
from triton_sam.families.tables import DECODER, ENCODER, Tensor
from triton_sam.repository.config import FAMILY_KEY
from triton_sam.transport import triton
from triton_sam.transport.url import ServerUrl
from triton_sam.wire import contract, video
from triton_sam.wire.pair import Request as WireRequest

Arrays = dict[str, npt.NDArray[Any]]
_HOST = "in-process.invalid"
_STATUS = {"INVALID_ARG": "INVALID_ARGUMENT"}
_PORTS = itertools.count(1)
_SERVERS: dict[str, InProcess] = {}
_CONNECT = triton._connect


def write_one_pass(folder: Path, *, encoder: bool = True) -> str:
    """Write the configurations of encoders that share a backbone; without ``encoder``, that of concepts only."""
    sides = {"sam3_concept_encoder": "input", **({"sam3_encoder": "output"} if encoder else {})}
    for model, side in sides.items():
        (folder / model).mkdir()
        tensor = 'name: "backbone_states" data_type: TYPE_FP32 dims: [-1, 64, 72, 72]'
        (folder / model / "config.pbtxt").write_text(f"{side} [{{ {tensor} }}]")
    return str(folder)


class InProcess:
    """A server. Clients reach it by its URL while the `with` block runs, from any thread.

    Args:
        compute: computes the networks, for clients and for the programs.
        pairs: the encoders and decoders that clients may call directly: family by name of the pair.

    Attributes:
        requests: the inferences requested by clients.
        ends: the deadline of each inference, as a time of the monotonic clock.
        configs: the models whose configuration clients have requested.
        cancelled: number of inferences cancelled by clients.
        before: called with the number of an inference before the answer; may raise an error of a server.
        after: called with the number of an inference after the answer.
        lacks: inputs that the models lack, as in earlier versions.
        triton: the side of the programs.
    """

    def __init__(self, compute: Compute, pairs: Mapping[str, str] | None = None) -> None:
        self.url = f"grpc://{_HOST}:{next(_PORTS)}"
        self.triton = Triton(compute)
        self.requests: list[WireRequest] = []
        self.ends: list[float] = []
        self.configs: list[str] = []
        self.cancelled = 0
        self.before: Callable[[int], object] = lambda number: None
        self.after: Callable[[int], object] = lambda number: None
        self.lacks: tuple[str, ...] = ()
        self._compute = compute
        self._programs: dict[str, Any] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        for name, family in (pairs or {}).items():
            self.add_pair(name, family)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(32, "in-process")

    def add_pair(self, name: str, family: str) -> None:
        """Serve an encoder and a decoder."""
        for role in (ENCODER, DECODER):
            spec = get_family(family).models[role]
            config = _config(spec.inputs, spec.graph_outputs)
            self._configs[model_name(name, role)] = {**config, "parameters": {FAMILY_KEY: {"string_value": family}}}

    def add_session_model(self, name: str, /, **parameters: str) -> Any:
        """Serve the session model of a family; return it."""
        spec = get_family(name)
        names = {"family": spec.name, "encoder": f"{name}_encoder", "decoder": f"{name}_decoder"}
        config = _config(contract.inputs(spec), contract.outputs(spec))
        return self._add(name, "image.triton_model", config, {**names, **parameters})

    def add_video_model(self, name: str, /, **parameters: str) -> Any:
        """Serve the video model of a family; return it."""
        config = _config(video.inputs(), video.outputs(get_family(name)))
        return self._add(f"{name}_video", "video.triton_model", config, parameters)

    def _add(self, name: str, entry: str, config: dict[str, Any], parameters: Mapping[str, str]) -> Any:
        model = self.triton.load(entry).TritonPythonModel()
        model.initialize(arguments(name, **parameters))
        self._programs[name], self._configs[name] = model, config
        return model

    def __enter__(self) -> InProcess:
        if not _SERVERS:
            triton._connect = _connect
        _SERVERS[self.url] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _SERVERS[self.url]
        if not _SERVERS:
            triton._connect = _CONNECT
        self.triton.gate.set()
        for program in self._programs.values():
            program.finalize()
        self._threads.shutdown()

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The configurations of the models that are ready, by name."""
        return self._configs

    @property
    def asked(self) -> list[str]:
        """Names of the models that clients have called."""
        return [request.model for request in self.requests]

    def operations(self) -> list[str]:
        """Return the names of the operations that clients have requested."""
        return [self.operation(number) for number in range(len(self.requests))]

    def operation(self, number: int) -> str:
        """Return the operation of a request; an empty text for requests to other models."""
        name: str = self.requests[number].inputs.get(video.OPERATION, [b""])[0].decode()
        return name

    def arguments(self, number: int) -> dict[str, Any]:
        arguments: dict[str, Any] = json.loads(self.requests[number].inputs[video.ARGUMENTS][0])
        return arguments

    def config(self, model: str) -> dict[str, Any]:
        """Return the configuration of a model, as the JSON of the HTTP protocol."""
        self._check(model)
        config = self._configs[model]
        return {**config, "input": [each for each in config["input"] if each["name"] not in self.lacks]}

    def record(self, model: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]) -> int:
        """Record an inference; return its number."""
        with self._lock:
            self.requests.append(WireRequest(model, dict(inputs), tuple(outputs)))
            number = len(self.requests) - 1
        self._check(model)
        known = [{each["name"] for each in self.config(model)[side]} for side in ("input", "output")]
        for side, names, allowed in zip(("input", "output"), (inputs, outputs), known, strict=True):
            for name in sorted(set(names) - allowed):
                raise _refusal(f"unexpected inference {side} '{name}' for model '{model}'", "INVALID_ARG")
        return number

    def answer(self, model: str, request: Request, number: int) -> Arrays:
        self.before(number)
        if model in self._programs:
            self._programs[model].execute([request])
            answer = request.answer()
            tensors, code, message = self.altered(model, answer.tensors, answer.code, answer.message)
            if code:
                raise _refusal(message, code)
        else:
            asked = self.requests[number]
            tensors = dict(self._compute(model, dict(asked.inputs), tuple(asked.outputs)))
        self.after(number)
        return {name: np.array(array) for name, array in tensors.items()}

    def altered(self, model: str, tensors: Arrays, code: str, message: str) -> tuple[Arrays, str, str]:
        """Return the answer of this server. Servers of earlier versions override it."""
        return tensors, code, message

    def _check(self, model: str) -> None:
        if model not in self._configs:
            raise _refusal(f"Request for unknown model: '{model}' is not found", "NOT_FOUND")


class _Client:
    """Replaces GrpcClient. The cancellation of a call reaches the model's program, as over gRPC."""

    def __init__(self, server: InProcess) -> None:
        self._server = server

    def infer(self, model: str, inputs: Arrays, outputs: Sequence[str], call: Any) -> Arrays:
        server, ended, request = self._server, Future[Arrays](), Request(outputs, inputs)

        def end() -> None:
            request.cancelled = True
            with server._lock:
                server.cancelled += 1
            ended.set_exception(_refusal("the client has cancelled the call", "CANCELLED"))

        call.end_request = end  # first, because a test may cancel the call as soon as it is recorded
        call.left()
        server.ends.append(call._end)
        number = server.record(model, inputs, outputs)
        try:
            running = server._threads.submit(server.answer, model, request, number)
        except RuntimeError as error:  # the server has ended, and a thread closes its video only now
            raise ConnectionRefusedError("the server has ended") from error
        return next(iter(wait([running, ended], return_when=FIRST_COMPLETED).done)).result()

    def is_ready(self, call: Any) -> bool:
        return True

    def index(self, call: Any) -> list[dict[str, str]]:
        return [{"name": name, "version": "1", "state": "READY"} for name in self._server.models]

    def model_config(self, model: str, call: Any) -> dict[str, Any]:
        self._server.configs.append(model)
        return self._server.config(model)

    def close(self) -> None:
        """There is no connection."""


def _connect(url: ServerUrl, headers: Mapping[str, str] | None, ca_certs: str | None) -> Any:
    server = _SERVERS.get(str(url))
    return _CONNECT(url, headers, ca_certs) if server is None else _Client(server)


def _refusal(message: str, code: str) -> InferenceServerException:
    return InferenceServerException(message, f"StatusCode.{_STATUS.get(code, code)}")


def _config(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> dict[str, Any]:
    return {"input": [{"name": each.name} for each in inputs], "output": [{"name": each.name} for each in outputs]}


# --- functions as networks of all families: masks are half-planes that depend on the prompts -------------------------


def compute(pairs: Mapping[str, str], model: str, inputs: Mapping[str, Any], wanted: Sequence[str]) -> Arrays:
    """Compute a network of one of these pairs, given as families by name."""
    name, _, role = model.rpartition("_")
    spec = get_family(pairs[name]).models[role]
    points = inputs.get("point_coords", inputs.get("input_points"))
    count = 1 if points is None else points.shape[-3] if points.size else inputs["input_boxes"].shape[1]
    small = [
        np.asarray(inputs[key], np.float32).round(2).tobytes() for key in sorted(inputs) if inputs[key].size < 9999
    ]
    rng = np.random.default_rng(zlib.crc32(b"".join(small)))
    answers = {}
    for tensor in spec.outputs:
        shape = [{"images": 1, "prompts": count}.get(str(side), side) for side in tensor.shape]
        if role == "encoder":
            answers[tensor.name] = np.full(shape, np.mean([each.mean() for each in inputs.values()]), np.float32)
        elif shape[-1] < 200:
            answers[tensor.name] = rng.uniform(0.1, 0.9, shape).astype(np.float32)
        else:
            down, across, level = rng.normal(size=(3, *shape[:-2], 1, 1))
            place = np.linspace(-1, 1, shape[-1])
            answers[tensor.name] = (down * place[:, None] + across * place + 0.1 * level).astype(np.float32)
    return {name: answers[name] for name in wanted}


@contextlib.contextmanager
def made_up_triton(pairs: Mapping[str, str], with_sessions: Sequence[str]) -> Iterator[InProcess]:
    """Serve pairs of networks, given as families by name, and the session models of some of them."""
    with InProcess(functools.partial(compute, pairs), pairs) as server:
        for name in with_sessions:
            server.add_session_model(name)
        yield server


# --- the session model, the encoder and the decoder of a family, with faults of a server -----------------------------


def discs(model: str, inputs: Arrays, wanted: tuple[str, ...]) -> Arrays:
    """Compute the encoder or the decoder of SAM2, which draws a disc around the first point of each object.

    The disc's size and scores depend on the point, so that every point and object has a different mask.
    """
    if model.endswith("_encoder"):
        specs = {spec.name: spec for spec in get_family("sam2").encoder.outputs}
        return {name: np.zeros((1, *map(int, specs[name].shape[1:])), np.float32) for name in wanted}
    candidates = 3 if wanted[0].startswith("multimask") else 1
    rows, columns = np.mgrid[:256, :256]
    logits, scores = [], []
    for x, y in inputs["point_coords"][:, 0] / 4:
        disc = np.float32(12 + x / 8 - np.hypot(columns - x, rows - y))
        logits.append(np.broadcast_to(disc, (candidates, 256, 256)))
        scores.append(np.array([x / 256, 0.1, y / 256], np.float32)[:candidates])
    return dict(zip(wanted, (np.stack(logits), np.stack(scores)), strict=True))


class ImageServer(InProcess):
    """A server of one family.

    Args:
        compute: computes the networks.
        family: name of the family and of the session model.
        keeps_images: whether it has a session model.
        parameters: parameters of the session model.

    Attributes:
        failures: errors of the next requests, in order; None for a request without an error.
    """

    def __init__(
        self, compute: Compute = discs, family: str = "sam2", *, keeps_images: bool = True, **parameters: str
    ) -> None:
        super().__init__(compute, {family: family})
        self._family, self._parameters = family, parameters
        self.failures: list[BaseException | None] = []
        self.before = self._fail
        if keeps_images:
            self.start_session_model()

    def start_session_model(self) -> None:
        """Serve the session model from now on."""
        self.program = self.add_session_model(self._family, **self._parameters)

    def lose_images(self) -> None:
        """Drop all images, as a restart does."""
        while self.program._model.images.cache.remove_oldest():
            pass

    def sent(self, name: str = contract.IMAGE) -> list[bool]:
        """Return for each request whether it contained an input."""
        return [name in request.inputs for request in self.requests]

    def _fail(self, number: int) -> None:
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error


def refusal(code: str, status: str = "INVALID_ARGUMENT") -> InferenceServerException:
    """Return the error of a model that refuses a request with a code of the contract."""
    return InferenceServerException(f"{code}: words of the server", f"StatusCode.{status}")


CLIENTS = {
    "sync": SAM2TritonClient,
    "async": AsyncSAM2TritonClient,
    "speculative": SpeculativeSAM2Client,
    "blocking": SpeculativeSAM2Client,
}
"""The speculative client has calls for an event loop, and two for callers without a loop."""
_BLOCKING = {"set_image": "set_image", "predict": "predict_sync"}


class Face:
    """A client whose calls all block and are named as in the sync client."""

    def __init__(self, kind: str, server: InProcess, **options: Any) -> None:
        self._kind = kind
        self.client: Any = CLIENTS[kind](server.url, **{"retries": 0, **options})

    def __enter__(self) -> Face:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def __getattr__(self, name: str) -> Any:
        is_speculative = self._kind in ("speculative", "blocking")
        if self._kind == "blocking" and name in _BLOCKING:
            return getattr(self.client, _BLOCKING[name])
        call = getattr(self.client, f"{name}_async" if is_speculative else name)
        return lambda *args, **options: asyncio.run(_wait(call, args, options))


async def _wait(call: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    answer = call(*args, **options)
    answer = await answer if inspect.isawaitable(answer) else answer
    is_queued = isinstance(answer, tuple) and asyncio.isfuture(answer[1])
    return await answer[1] if is_queued else answer
