"""The entry of the video model in Triton. It calls the models of the tracker by BLS (Business Logic Scripting).

``execute`` starts and ends sessions at once, because this takes no time. It passes all other requests to threads:
operations of one session run in sequence, those of different sessions concurrently. Frames are opened and encoded in
separate threads, so that frame t + 1 is encoded while t is tracked, and so are searches for words.

Parameters in config.pbtxt: see wire.video.parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy.typing as npt

from ...families import get_family, variant_of
from ...families.tables import ENCODER
from ...wire import contract, video
from .. import bls
from ..concept_models import ConceptModels
from ..concepts import Concepts
from ..python_model import VIDEO_COUNTERS, VIDEO_GAUGES, PythonModel
from ..tasks import Pool, Task
from .memory import Limits
from .messages import read_request
from .model import VideoModel, VideoModelSettings
from .models import Embeddings, TrackingModels

SWEEP_SECONDS = 1.0
"""Seconds between sweeps for idle sessions."""
_SESSION = "session"
"""Kind of the requests that are answered at once; a label of metrics."""


class TritonPythonModel(PythonModel):
    """One video model. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        super().initialize(args)
        self.family = self.family.at(self.number("image_size", self.family.image_size))
        limit = self.number("cache_bytes", video.DEFAULT_CACHE_BYTES)
        limits = Limits(
            self.number("max_objects", video.DEFAULT_MAX_OBJECTS),
            min(self.number("max_prompted_frames", video.DEFAULT_MAX_PROMPTED_FRAMES), video.MAX_PROMPTED_FRAMES),
            self.number("session_bytes", video.DEFAULT_SESSION_BYTES),
        )
        settings = VideoModelSettings(
            self.number("max_sessions", video.DEFAULT_MAX_SESSIONS),
            self.number("idle_seconds", video.DEFAULT_IDLE_SECONDS),
            limits,
        )
        objects = self.number("objects_at_a_time", video.DEFAULT_OBJECTS_AT_A_TIME)
        threads = self.number("threads", contract.DEFAULT_THREADS)
        pending = self.number("max_pending", video.DEFAULT_MAX_PENDING)
        self._work = Pool("operation", threads, pending)
        self._frames = Pool("frame", threads, pending)
        self._searches = Pool("find", threads, pending)
        self._names = dict(self.parameters)
        self._model = VideoModel(
            self.family,
            TrackingModels(self.family, self._run, objects),
            bls.fitting(limit, contract.embedding_bytes(self.family), in_shared_memory=self.gpu is None),
            bls.weights_identity(self.repository / self.parameters[ENCODER]),
            settings,
            self._work.threads,
            self._concepts(),
        )
        pools = [self._work, self._frames, self._searches]
        self.measure(pools, VIDEO_COUNTERS, VIDEO_GAUGES, self._model.gauges, [_SESSION])
        threading.Thread(target=self._sweep, name="sweep", daemon=True).start()

    def admit(
        self, request: Any, inputs: Mapping[str, Any], sender: Any, wanted: Container[str]
    ) -> Future[None] | None:
        """Answer a request, or pass it to the threads for its operation; see PythonModel."""
        tensors = {name: tensor.as_numpy() for name, tensor in inputs.items()}
        asked = read_request(tensors, video.SNAPSHOT in wanted)
        session = self._model.sessions.find(asked)
        if asked.operation == video.FIND:
            # A search runs without its trace; see the session model of images.
            self._searches.check_room()
            task = Task(self._searches.name, self.waiting, sender, wanted)
            stopped = partial(self.is_stopped, sender)
            return self.start(task, self._searches, partial(self._model.carry_out, asked, session, stopped))
        answer = partial(self._model.carry_out, asked, session)
        if (session is None and asked.snapshot is None) or asked.operation == video.CLOSE_SESSION:
            self.run(Task(_SESSION, self.waiting, sender, wanted), answer)
            return None
        is_frame = asked.operation == video.ADD_FRAMES
        pool = self._frames if is_frame else self._work
        pool.check_room()
        task = Task(pool.name, self.waiting, sender, wanted, bls.trace_of(request))
        return self.start(task, pool, answer, None if session is None or is_frame else session.strand.submit)

    def _run(
        self,
        role: str,
        held: Embeddings,
        arrays: Mapping[str, npt.NDArray[Any]],
        outputs: tuple[str, ...],
        is_kept: bool,
    ) -> Mapping[str, Any]:
        """Run a model; see images.Run. Kept outputs are Triton tensors, which stay where the model put them."""
        return bls.run(self._names[role], held, arrays, outputs, self.memory if is_kept else None)

    def _concepts(self) -> Concepts | None:
        """Return the settings of searches for concepts; None if the family has no models for them at this size.

        The names of the models follow from that of the encoder, so that a config.pbtxt of an earlier version works.
        """
        if not self.family.concepts or self.family.image_size != get_family(self.family.name).image_size:
            return None
        variant = variant_of(self.parameters[ENCODER])
        self._names |= {role: self.family.model_name(role, variant) for role in self.family.concepts}
        self.concept_models = ConceptModels(self.repository, self.family, self._names)
        return self.concept_models.settings(self.gpu is not None)

    def _sweep(self) -> None:
        while not self.stops.wait(SWEEP_SECONDS):
            reply = self._model.close_idle()
            if reply.counts["sessions_expired"]:
                self.report(reply)
