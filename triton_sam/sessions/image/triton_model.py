"""The entry of the session model in Triton. It calls the encoder and the decoder by BLS (Business Logic Scripting).

``execute`` passes each request to a thread, which answers through the response sender of the request, and returns at
once. One instance, and thus one cache, can therefore process many requests at a time. Requests with an image have
separate threads because they may wait for the encoder, so that a click never waits behind them. A request that belongs
to a trace of OpenTelemetry is the exception: Triton frees its trace when ``execute`` returns, so ``execute`` waits for
its answer. Other requests wait for that, too.

Parameters in config.pbtxt: ``family``, ``encoder``, ``decoder`` (names of models), ``cache_bytes``, ``threads``,
``max_pending``, ``max_jobs``, and ``decoder_in_session`` ("true": this process runs the decoder itself, decoder.py).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ..._common.text import one_line
from ...errors import ConfigurationError, SamError, ServerBusyError
from ...everything.thresholds import thresholds_in
from ...families import get_family, variant_of
from ...families.base import Family, FloatArray
from ...repository.names import DECODER_IN_SESSION
from ...wire import contract
from ...wire.pair import ModelPair
from .. import bls
from ..cache import ImageCache
from ..metrics import RESTARTS_VARIABLE, TritonMetrics, TritonTimes
from ..reply import Reply
from ..times import Reports, RequestTimes
from .answers import write_json_error
from .concept_models import CONCEPTS_AT_A_TIME, BlsConcepts
from .decoder import Decoder, is_asked_for
from .everything import JobCancelledError
from .requests import wants_json
from .session import SessionModel


@dataclass(frozen=True)
class _Job:
    """A kind of requests that take long, and let clicks go first.

    Args:
        pool: its threads.
        answer: answers a request; its second argument says whether nobody waits any more.
    """

    pool: bls.Pool
    answer: Callable[[dict[str, npt.NDArray[Any]], Callable[[], bool]], Reply]


class TritonPythonModel:
    """One session model. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters. Other models cannot be called yet, because they may still be loading."""
        parameters = {
            key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()
        }
        family = get_family(parameters["family"].lower())
        encoder, decoder = parameters["encoder"], parameters["decoder"]
        device = bls.gpu(args)
        limit = bls.number(parameters, "cache_bytes", contract.DEFAULT_CACHE_BYTES)
        cache = ImageCache(bls.fitting(limit, contract.embedding_bytes(family), in_shared_memory=device is None))
        self._decoder = _open_decoder(args, parameters)
        self._networks = BlsModels(
            family,
            encoder,
            decoder,
            device or bls.cpu(),
            1 if device is None else contract.MAX_OBJECTS,
            self._decoder,
        )
        self._model = SessionModel(
            ModelPair(family, variant_of(encoder)),
            self._networks,
            cache,
            TritonMetrics(pb_utils, args["model_name"], int(os.environ.get(RESTARTS_VARIABLE, "0"))),
            bls.weights_identity(Path(args["model_repository"]).parent / encoder),
            self._concepts(family, parameters, Path(args["model_repository"]).parent, device),
            _thresholds(Path(args["model_repository"]).parent / decoder, family.decoder.filename),
        )
        threads = bls.number(parameters, "threads", contract.DEFAULT_THREADS)
        pending = bls.number(parameters, "max_pending", contract.DEFAULT_MAX_PENDING)
        self._clicks = bls.Pool("click", threads, pending)
        self._images = bls.Pool("image", threads, pending)
        jobs = bls.number(parameters, "max_jobs", contract.DEFAULT_MAX_JOBS)
        self._job_kinds = {
            contract.EVERYTHING: _Job(bls.Pool("everything", jobs, jobs), self._model.find_everything),
            contract.EVERYTHING_PART: _Job(bls.Pool("part", jobs, pending), self._model.find_part),
            contract.FIND: _Job(bls.Pool("find", threads, pending), self._model.find_concepts),
        }
        self._stops = threading.Event()
        self._refused = self._refused_reported = 0
        self._report_waits = threading.Event()
        self._reports = Reports()
        kinds = [pool.name for pool in self._pools]
        self._times = RequestTimes(TritonTimes(pb_utils, args["model_name"], kinds), self._reports, kinds)

    def execute(self, requests: list[Any]) -> None:
        """Pass every request to a thread. Wait for those that are traced."""
        traced: list[Future[None]] = []
        for request in requests:
            sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
            try:
                served = self._admit(request, sender, wanted)
            except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
                reply = Reply(error=error.with_traceback(None))
                reply.counts["failures"] += 1
                bls.send(reply, sender, wanted)
                self._reports.submit(self._model.report, reply)
                continue
            if served is not None:
                traced.append(served)
        wait(traced)

    def _admit(self, request: Any, sender: Any, wanted: Container[str]) -> Future[None] | None:
        """Pass a request to a thread, or refuse it. Return its future if it is traced."""
        inputs = {tensor.name(): tensor for tensor in request.inputs()}
        brings_image = contract.IMAGE in inputs or contract.IMAGE_B64 in inputs
        job = next((self._job_kinds[name] for name in self._job_kinds if name in inputs), None)
        place = (job.pool if job else self._images if brings_image else self._clicks).take(self._times)
        if place is None:
            self._refuse(inputs, sender, wanted)
            return None
        with place:
            tensors = {name: tensor.as_numpy() for name, tensor in inputs.items()}
            if job:
                # Without its trace, or `execute`, and so every click, would wait for its end: the Python backend frees
                # each request with its trace when `execute` returns, so that later calls would hand on a pointer to
                # freed memory. Python can open no trace of its own: a trace has only `get_context`.
                place.submit(partial(self._run_job, place, job, tensors, sender, wanted), sender)
                return None
            trace = bls.trace_of(request)
            served = place.submit(partial(self._serve, place, tensors, sender, wanted, trace), sender)
            return None if trace is None else served

    def _refuse(self, inputs: Container[str], sender: Any, wanted: Container[str]) -> None:
        """Answer at once that too many requests wait, instead of letting the queue grow.

        To cost the other requests little, this reads nothing of the refused request and reports refusals in batches.
        """
        error = ServerBusyError("too many requests wait here already: try again in a moment")
        bls.send(Reply(write_json_error(error) if wants_json(inputs) else {}, error), sender, wanted)
        self._refused += 1
        if not self._report_waits.is_set():
            self._report_waits.set()
            self._reports.submit(self._report_refusals)

    def _report_refusals(self) -> None:
        self._report_waits.clear()
        reply, refused = Reply(), self._refused
        reply.counts["refusals"] = refused - self._refused_reported
        self._refused_reported = refused
        self._model.report(reply)

    def finalize(self) -> None:
        """Wait for the running requests. Jobs end before their next decode."""
        self._stops.set()
        for pool in self._pools:
            pool.threads.shutdown(cancel_futures=True)
        self._reports.close()
        if self._decoder is not None:
            self._decoder.close()

    @property
    def _pools(self) -> tuple[bls.Pool, ...]:
        return (*(job.pool for job in self._job_kinds.values()), self._clicks, self._images)

    def _serve(
        self, place: bls.Place, tensors: dict[str, npt.NDArray[Any]], sender: Any, wanted: Container[str], trace: Any
    ) -> None:
        with place.clock as clock:
            if sender.is_cancelled():
                bls.send_cancelled(sender)
                return
            with self._networks.traced(trace):
                reply = self._model.answer(tensors)
            place.release()
            bls.send(reply, sender, wanted)
            clock.answered()
        self._reports.submit(self._model.report, reply)

    def _run_job(
        self, place: bls.Place, job: _Job, tensors: dict[str, npt.NDArray[Any]], sender: Any, wanted: Container[str]
    ) -> None:
        with place.clock as clock:
            try:
                reply = job.answer(tensors, lambda: self._stops.is_set() or sender.is_cancelled())
            except JobCancelledError:
                bls.send_cancelled(sender)
                return
            place.release()
            bls.send(reply, sender, wanted)
            clock.answered()
        self._reports.submit(self._model.report, reply)

    @staticmethod
    def _concepts(family: Family, parameters: Mapping[str, str], repository: Path, device: Any) -> BlsConcepts | None:
        """Return the caller of the models of concepts; None if the parameters name none."""
        names = parameters.get(contract.CONCEPT_MODELS, "").split()
        if not names:
            return None
        if len(names) != len(family.concepts):
            roles = ", ".join(family.concepts)
            raise pb_utils.TritonModelException(f"parameter {contract.CONCEPT_MODELS} must name the models {roles}")
        at_a_time = 1 if device is None else CONCEPTS_AT_A_TIME
        by_role = dict(zip(family.concepts, names, strict=True))
        return BlsConcepts(family, by_role, repository, device or bls.cpu(), at_a_time)


def _thresholds(folder: Path, filename: str) -> dict[str, float]:
    """Return the thresholds of searches that fit the weights of the decoder; those that cannot be read are ignored."""
    try:
        return thresholds_in(folder, filename)
    except (OSError, ValueError) as error:
        pb_utils.Logger.log_warn(f"no thresholds of {folder.name}: {one_line(error)}")
        return {}


def _open_decoder(args: Mapping[str, str], parameters: Mapping[str, str]) -> Decoder | None:
    """Return the decoder that this process runs itself; None if it calls the decoder through Triton.

    Raises:
        TritonModelException: the decoder cannot run here; the message says why.
    """
    try:
        if not is_asked_for(parameters):
            return None
        if args["model_instance_kind"] != "CPU":
            raise ConfigurationError(
                f"{DECODER_IN_SESSION} is for CPUs, and Triton runs this session model on a GPU, where embeddings are "
                "not copied for each click: leave the option out"
            )
        opened = Decoder(Path(args["model_repository"]).parent / parameters["decoder"])
    except SamError as error:
        raise pb_utils.TritonModelException(one_line(error)) from error
    pb_utils.Logger.log_info(f"{args['model_name']} runs {parameters['decoder']} itself, from {opened.file}")
    return opened


class BlsModels(bls.Caller):
    """Calls encoder and decoder through Triton. Embeddings stay Triton tensors where the encoder put them.

    Args:
        family: the SAM family, for names and shapes of tensors.
        encoder: Triton name of the encoder.
        decoder: Triton name of the decoder.
        memory: memory in which the encoder puts the embeddings.
        objects_at_a_time: maximum number of objects in one call of the decoder. A GPU is faster with many objects. A
            CPU is faster with one, because the data of one object fits into its caches and that of eight does not.
        own_decoder: the decoder in this process, which runs instead of the one of Triton.
    """

    def __init__(
        self,
        family: Family,
        encoder: str,
        decoder: str,
        memory: Any,
        objects_at_a_time: int,
        own_decoder: Decoder | None = None,
    ) -> None:
        super().__init__()
        self.objects_at_a_time = objects_at_a_time
        self._encoder_outputs = family.encoder.output_names
        self._encoder = encoder
        self._decoder = decoder
        self._memory = memory
        self._own_decoder = own_decoder

    def encode(self, inputs: Mapping[str, FloatArray]) -> Mapping[str, Any]:
        """See session.Models."""
        return self.call(self._encoder, bls.to_tensors(inputs), self._encoder_outputs, self._memory)

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> Mapping[str, FloatArray]:
        """See session.Models."""
        if self._own_decoder is not None:  # as_numpy() does not copy
            arrays = {name: tensor.as_numpy() for name, tensor in embeddings.items()}
            return self._own_decoder.run({**arrays, **inputs}, outputs)
        held = [bls.named(name, tensor) for name, tensor in embeddings.items()]
        answer = self.call(self._decoder, held + bls.to_tensors(inputs), outputs, bls.cpu())
        # Copy the arrays: a view would keep the answer's block of shared memory occupied while it is in use.
        return {name: np.array(tensor.as_numpy()) for name, tensor in answer.items()}

    def nbytes(self, embeddings: Mapping[str, Any]) -> int:
        """See session.Models."""
        return bls.float_bytes(embeddings)
