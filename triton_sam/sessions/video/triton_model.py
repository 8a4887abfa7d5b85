"""The entry of the video model in Triton. It calls the models of the tracker by BLS (Business Logic Scripting).

``execute`` answers what takes no time at once: new sessions and their end. It passes all other requests to threads:
operations of one session run one after the other, those of other sessions at the same time, and frames are opened and
encoded in threads of their own, so that frame t + 1 is encoded while t is tracked. It waits for requests that belong to
a trace of OpenTelemetry, because Triton frees the trace when ``execute`` returns.

Parameters in config.pbtxt: see wire.video.parameters.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Container, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ...errors import ServerBusyError, VideoError
from ...families import get_family
from ...families.base import Family, FloatArray
from ...families.tables import ENCODER
from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ...wire import contract, video
from .. import bls
from ..cache import ImageCache
from ..metrics import RESTARTS_VARIABLE, VIDEO_COUNTERS, VIDEO_GAUGES, TritonMetrics, TritonTimes
from ..reply import Reply
from ..times import Reports, RequestTimes
from .calls import attention_inputs, decoder_inputs, memory_inputs, read_decoded
from .limits import Limits
from .model import Settings, VideoModel
from .models import Decoded, DecoderPrompt, Embeddings, Memories
from .sessions import VideoSession

AT_ONCE = (video.CLOSE_SESSION, video.CANCEL_PROPAGATION)
"""Operations that wait for no other, besides a new session without a snapshot."""
SWEEP_SECONDS = 1.0
"""Idle sessions are looked for so often."""
_SESSION = "session"
"""Kind of the requests that are answered at once, a label of metrics."""


class TritonPythonModel:
    """One video model. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters. Other models cannot be called yet, because they may still be loading."""
        parameters = {
            key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()
        }
        official = get_family(parameters["family"].lower())
        family = official.at(bls.number(parameters, "image_size", official.image_size))
        device = bls.gpu(args)
        limit = bls.number(parameters, "cache_bytes", video.DEFAULT_CACHE_BYTES)
        cache = ImageCache(bls.fitting(limit, contract.embedding_bytes(family), in_shared_memory=device is None))
        limits = Limits(
            bls.number(parameters, "max_objects", video.DEFAULT_MAX_OBJECTS),
            bls.number(parameters, "max_prompted_frames", video.DEFAULT_MAX_PROMPTED_FRAMES),
            bls.number(parameters, "session_bytes", video.DEFAULT_SESSION_BYTES),
        )
        settings = Settings(
            bls.number(parameters, "max_sessions", video.DEFAULT_MAX_SESSIONS),
            bls.number(parameters, "idle_seconds", video.DEFAULT_IDLE_SECONDS),
            limits,
        )
        objects = bls.number(parameters, "objects_at_a_time", video.DEFAULT_OBJECTS_AT_A_TIME)
        threads = bls.number(parameters, "threads", contract.DEFAULT_THREADS)
        pending = bls.number(parameters, "max_pending", video.DEFAULT_MAX_PENDING)
        self._networks = BlsTrackingModels(family, parameters, device or bls.cpu(), objects)
        self._work = bls.Pool("operation", threads, pending)
        self._frames = bls.Pool("frame", threads, pending)
        self._model = VideoModel(
            family,
            self._networks,
            cache,
            TritonMetrics(
                pb_utils,
                args["model_name"],
                int(os.environ.get(RESTARTS_VARIABLE, "0")),
                VIDEO_COUNTERS,
                VIDEO_GAUGES,
            ),
            bls.weights_identity(Path(args["model_repository"]).parent / parameters[ENCODER]),
            settings,
            self._work.threads,
        )
        self._reports = Reports()
        kinds = [_SESSION, *(pool.name for pool in (self._work, self._frames))]
        self._times = RequestTimes(TritonTimes(pb_utils, args["model_name"], kinds), self._reports, kinds)
        self._ends = threading.Event()
        threading.Thread(target=self._sweep, name="sweep", daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        """Answer every request or pass it to a thread. Wait for those that are traced."""
        traced: list[Future[None]] = []
        for request in requests:
            sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
            try:
                served = self._admit(request, sender, wanted)
            except ServerBusyError as error:
                self._send(_refusal(error, "refusals"), sender, wanted)
                continue
            except Exception as error:  # noqa: BLE001 - every refusal is an answer
                with self._times.arrived(_SESSION) as clock:
                    self._send(_refusal(error, "failures"), sender, wanted)
                    clock.answered()
                continue
            if served is not None:
                traced.append(served)
        wait(traced)

    def finalize(self) -> None:
        """Wait for the running requests."""
        self._ends.set()
        for threads in (self._work.threads, self._frames.threads):
            threads.shutdown(cancel_futures=True)
        self._reports.close()

    def _admit(self, request: Any, sender: Any, wanted: Container[str]) -> Future[None] | None:
        """Answer a request, or pass it to the threads for its operation. Return its future if it is traced.

        Raises:
            SamError: the request is refused.
        """
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        session = self._model.find_session(tensors)
        operation = bytes(tensors[video.OPERATION].ravel()[0]).decode()
        is_start = session is None and video.SNAPSHOT not in tensors
        if is_start or operation in AT_ONCE:
            with self._times.arrived(_SESSION) as clock:
                self._send(self._model.answer(tensors, session), sender, wanted)
                clock.answered()
            return None
        pool = self._frames if operation == video.ADD_FRAMES else self._work
        place = pool.take(self._times)
        if place is None:
            raise ServerBusyError("too many requests wait here already: try again in a moment")
        with place:
            trace = bls.trace_of(request)
            submit = None if session is None or pool is self._frames else session.strand.submit
            served = place.submit(partial(self._serve, place, tensors, session, sender, wanted, trace), sender, submit)
            return None if trace is None else served

    def _serve(
        self,
        place: bls.Place,
        tensors: Mapping[str, npt.NDArray[Any]],
        session: VideoSession | None,
        sender: Any,
        wanted: Container[str],
        trace: Any,
    ) -> None:
        with place.clock as clock:
            if sender.is_cancelled():
                bls.send_cancelled(sender)
                return
            with self._networks.traced(trace):
                reply = self._model.answer(tensors, session, wants_snapshot=video.SNAPSHOT in wanted)
            place.release()
            self._send(reply, sender, wanted)
            clock.answered()

    def _send(self, reply: Reply, sender: Any, wanted: Container[str]) -> None:
        bls.send(reply, sender, wanted)
        self._reports.submit(self._model.report, reply)

    def _sweep(self) -> None:
        """Close idle sessions from time to time."""
        while not self._ends.wait(SWEEP_SECONDS):
            reply = self._model.close_idle()
            if reply.counts["sessions_expired"]:
                self._reports.submit(self._model.report, reply)


class BlsTrackingModels(bls.Caller):
    """Calls the models of a tracker through Triton. Embeddings stay Triton tensors where the models put them.

    Args:
        family: the family at the size of its encoder's image.
        names: names of the models by role.
        memory: memory in which the encoder and the memory attention put embeddings.
        objects_at_a_time: maximum number of objects in one call.
    """

    def __init__(self, family: Family, names: Mapping[str, str], memory: Any, objects_at_a_time: int) -> None:
        super().__init__()
        if family.tracking is None:
            raise VideoError(f"{family.name} has no models for videos")
        self.objects_at_a_time = objects_at_a_time
        self._family = family
        self._names = names
        self._memory = memory
        self._outputs = {role: spec.output_names for role, spec in family.tracking.models.items()}

    def encode(self, inputs: Mapping[str, FloatArray]) -> Embeddings:
        """See models.TrackingModels."""
        outputs = self._family.encoder.output_names
        return self.call(self._names[ENCODER], bls.to_tensors(inputs), outputs, self._memory)

    def nbytes(self, embeddings: Embeddings) -> int:
        """See models.TrackingModels."""
        return bls.float_bytes(embeddings)

    def attend(self, frame: Embeddings, memories: Memories) -> Any:
        """See models.TrackingModels."""
        (conditioned,) = self._run(MEMORY_ATTENTION, *attention_inputs(frame, memories), self._memory).values()
        return conditioned

    def decode(self, frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> Decoded:
        """See models.TrackingModels."""
        return read_decoded(self._arrays(TRACKING_DECODER, *decoder_inputs(frame, conditioned, prompt)))

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> FloatArray:
        """See models.TrackingModels."""
        (memory,) = self._arrays(MEMORY_ENCODER, *memory_inputs(frame, masks, scores, is_prompted)).values()
        return memory

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See models.TrackingModels."""
        answer = self._arrays(MASK_PROMPT, {}, {"mask": mask})
        return answer["mask_input"], answer["masks"]

    def _arrays(self, role: str, held: Embeddings, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FloatArray]:
        # Copy the arrays: a view would keep the answer's block of shared memory occupied while it is in use.
        answer = self._run(role, held, arrays, bls.cpu())
        return {name: np.array(tensor.as_numpy()) for name, tensor in answer.items()}

    def _run(self, role: str, held: Embeddings, arrays: Mapping[str, npt.NDArray[Any]], memory: Any) -> dict[str, Any]:
        tensors = [bls.named(name, tensor) for name, tensor in held.items()] + bls.to_tensors(arrays)
        return self.call(self._names[role], tensors, self._outputs[role], memory)


def _refusal(error: Exception, count: str) -> Reply:
    reply = Reply(error=error.with_traceback(None))
    reply.counts[count] += 1
    return reply
