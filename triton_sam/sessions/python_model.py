"""The base of the programs that Triton runs: parameters, thread pools, admission, metrics and shutdown.

``execute`` passes each request to a thread, which answers through the response sender of the request, and returns at
once. One instance with one cache therefore serves many requests concurrently. The exception is a request that belongs
to a trace of OpenTelemetry: Triton frees the trace when ``execute`` returns, so ``execute`` waits for the answer, and
other requests wait meanwhile.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from .._common.text import one_line
from ..errors import ServerBusyError
from ..families import get_family
from ..wire.contract import INTERNAL
from . import bls
from .messages import Reply, Tensors
from .tasks import Pool, Reports, Submit, Task, TaskCancelledError, Waiting

RESTARTS_VARIABLE = "TRITON_SAM_RESTARTS"
"""The environment variable with the number of times that the supervisor has restarted Triton."""
PREFIX = "triton_sam_"
COUNTERS = {
    "cache_hits": "Requests whose image was in the cache",
    "cache_misses": "Requests whose image was not in the cache: new images, and unknown or expired ids",
    "cache_evictions": "Images that made room for others",
    "unknown_images": "Requests with an unknown or expired id, whose image the client must send again",
    "encodes": "Images encoded",
    "encode_seconds": "Time spent on encoding images, from compressed bytes to embeddings",
    "decodes": "Prompts decoded",
    "decode_seconds": "Time spent on decoding prompts, from the cached embeddings to logits",
    "finds": "Searches for all instances of concepts",
    "find_seconds": "Time spent on these searches, without the encoding of images",
    "text_encodes": "Texts encoded for these searches",
    "failures": "Requests answered with an error",
    "faults": "Requests answered with an INTERNAL error, which is an error of the server; included in failures",
    "refusals": "Requests refused because too many waited already",
    "restarts": "How often Triton was started again, because it or the process of one of its models had died",
}
GAUGES = {
    "cache_bytes": "Bytes of embeddings in the cache",
    "cache_limit_bytes": "Bytes of embeddings that the cache may hold",
    "cache_images": "Images in the cache",
}
VIDEO_COUNTERS = {
    **{name: text for name, text in COUNTERS.items() if name not in ("unknown_images", "decodes", "decode_seconds")},
    "sessions_started": "Video sessions started",
    "sessions_restored": "Video sessions started from a snapshot",
    "sessions_expired": "Video sessions closed because nobody used them",
    "sessions_refused": "Video sessions refused because there were too many already",
    "prompts": "Prompts on frames of videos",
    "prompt_seconds": "Time spent on prompts, from the cached embeddings to logits",
    "frames_tracked": "Frames tracked, each once for all objects",
    "objects_tracked": "Objects tracked, each once for every frame",
    "track_seconds": "Time spent on tracking, with waiting for the embeddings of the frames",
    "repeats": "Requests that were answered with the stored answer to the same step",
}
VIDEO_GAUGES = {
    **GAUGES,
    "sessions": "Video sessions that are open",
    "session_bytes": "Bytes of the outputs that all video sessions keep",
}
FRONT_COUNTERS = {name: COUNTERS[name] for name in ("failures", "faults", "refusals")}
"""Counters of the front ends, which do not cache images."""
REQUEST_SECONDS = "request_seconds"
WAITING_SECONDS = "waiting_seconds"
WAITING_REQUESTS = "waiting_requests"
TIMES = {
    REQUEST_SECONDS: "Seconds from the arrival of a request in the model to its answer; without cancelled requests",
    WAITING_SECONDS: "Seconds that a request waited in the model, for a thread, the encoder, or the decoder in this "
    "process; with cancelled requests",
    WAITING_REQUESTS: "Requests that wait in the model",
}
"""Metrics with the label ``kind``: a search takes a thousand times as long as a click."""
_DECADES = [10.0**exponent for exponent in range(-3, 3)]
BUCKETS = {
    REQUEST_SECONDS: [number * decade for decade in _DECADES for number in (1, 1.5, 2, 3, 5, 7)],
    WAITING_SECONDS: [number * decade for decade in _DECADES for number in (1, 3)],
}
"""Upper bounds of the histograms in seconds. The dashboard shows quantiles of the request seconds only."""


class TritonMetrics:
    """Updates Triton's custom metrics ``triton_sam_*{model="NAME"}``, those of TIMES also with a ``kind``.

    Only one thread may call the methods, see tasks.Reports.
    """

    def __init__(
        self, model: str, kinds: Iterable[str], counters: Mapping[str, str], gauges: Mapping[str, str]
    ) -> None:
        types = pb_utils.MetricFamily
        # Triton drops a family as soon as it has no reference.
        self._families: list[Any] = []
        self._metrics: dict[str, Any] = {}
        for names, kind, ending in ((counters, types.COUNTER, "_total"), (gauges, types.GAUGE, "")):
            for name, description in names.items():
                family = types(name=f"{PREFIX}{name}{ending}", description=description, kind=kind)
                self._families.append(family)
                self._metrics[name] = family.Metric(labels={"model": model})
        self._times: dict[tuple[str, str], Any] = {}
        labels = [{"model": model, "kind": kind} for kind in kinds]
        for name, description in TIMES.items():
            kind = types.HISTOGRAM if name in BUCKETS else types.GAUGE
            buckets = {"buckets": BUCKETS[name]} if name in BUCKETS else {}
            family = types(name=f"{PREFIX}{name}", description=description, kind=kind)
            self._families.append(family)
            # Create every series now, so that Prometheus sees the first request as an increase.
            self._times |= {(name, each["kind"]): family.Metric(labels=each, **buckets) for each in labels}

    def report(self, counts: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        for name, value in counts.items():
            self._metrics[name].increment(value)
        for name, value in gauges.items():
            self._metrics[name].set(value)

    def observe(self, kind: str, waited: float, took: float | None) -> None:
        self._times[WAITING_SECONDS, kind].observe(waited)
        if took is not None:
            self._times[REQUEST_SECONDS, kind].observe(took)

    def set_waiting(self, kind: str, number: int) -> None:
        self._times[WAITING_REQUESTS, kind].set(number)


class PythonModel(ABC):
    """The base class. A subclass implements admit(), and initialize(), which ends with measure()."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters. Other models cannot be called yet, because they may still be loading."""
        self.config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in self.config["parameters"].items()}
        self.name = args["model_name"]
        self.repository = Path(args["model_repository"]).parent
        self.family = get_family(self.parameters["family"].lower())
        self.gpu = bls.gpu(args)
        self.memory = self.gpu or bls.cpu()
        self.stops = threading.Event()
        self._reports = Reports()
        self._refused = self._refused_reported = 0
        self._refusals_wait = threading.Event()

    def number(self, key: str, default: int) -> int:
        """Return a parameter of config.pbtxt, which must be a positive integer."""
        text = self.parameters.get(key, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise pb_utils.TritonModelException(f"parameter {key} must be a whole number above 0, not {text!r}")
        return int(text)

    def measure(
        self,
        pools: Iterable[Pool],
        counters: Mapping[str, str],
        gauges: Mapping[str, str],
        sizes: Callable[[Reply | None], Mapping[str, float]] = lambda _: {},
        other_kinds: Iterable[str] = (),
    ) -> None:
        """Start measuring the requests of some pools, and those of other kinds.

        Args:
            sizes: returns the gauges that the request of a reply has changed, by name; all gauges for None.
        """
        self._sizes = sizes
        self._pools = tuple(pools)
        kinds = [*other_kinds, *(pool.name for pool in self._pools)]
        self.metrics = TritonMetrics(self.name, kinds, counters, gauges)
        self.waiting = Waiting(kinds, self._reports, self.metrics.set_waiting)
        self.metrics.report({}, sizes(None))
        restarts = float(os.environ.get(RESTARTS_VARIABLE, "0"))
        if restarts and "restarts" in counters:
            self.metrics.report({"restarts": restarts}, {})

    def execute(self, requests: list[Any]) -> None:
        """Admit or refuse every request. Wait for traced requests."""
        traced: list[Future[None]] = []
        for request in requests:
            sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
            inputs: dict[str, Any] = {}
            try:
                inputs = {tensor.name(): tensor for tensor in request.inputs()}
                running = self.admit(request, inputs, sender, wanted)
            except ServerBusyError as error:
                self._refuse(error, inputs, sender, wanted)
            except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
                reply = Reply().fail(error, self.error_tensors(error, inputs))
                bls.send(reply, sender, wanted)
                self.report(reply)
            else:
                if running is not None:
                    traced.append(running)
        wait(traced)

    def finalize(self) -> None:
        """Wait for the running requests."""
        self.stops.set()
        for pool in self._pools:
            pool.threads.shutdown(cancel_futures=True)
        self._reports.close()

    @abstractmethod
    def admit(
        self, request: Any, inputs: Mapping[str, Any], sender: Any, wanted: Container[str]
    ) -> Future[None] | None:
        """Answer a request, or start() it. Return its future if it is traced.

        Args:
            inputs: its tensors by name. A refused request does not need its arrays.
        """

    def error_tensors(self, error: Exception, inputs: Mapping[str, Any]) -> Tensors:  # noqa: ARG002 - for subclasses
        """Return the outputs with the error of a refused request, in addition to the status; usually none."""
        return {}

    def is_stopped(self, sender: Any) -> bool:
        """Return whether the answer to a search is no longer needed."""
        return self.stops.is_set() or bool(sender.is_cancelled())

    def start(
        self, task: Task, pool: Pool, answer: Callable[[], Reply], submit: Submit | None = None
    ) -> Future[None] | None:
        """Answer a request in a thread. It holds a place of the pool meanwhile.

        Args:
            submit: runs the work later; None: a thread of the pool runs it.

        Returns:
            The future if the request is traced.
        """
        try:
            pool.change_free(-1)
            task.pool = pool
            running = (submit or pool.threads.submit)(partial(self.run, task, answer))
        except BaseException:
            task.release()
            raise
        running.add_done_callback(partial(self._ended, task))
        return None if task.trace is None else running

    def run(self, task: Task, answer: Callable[[], Reply]) -> None:
        """Answer a request in this thread, unless it was cancelled while it waited.

        The place is released before the answer is sent, so that the client can send its next request.
        """
        reply = Reply()
        try:
            with task:
                if task.sender.is_cancelled():
                    raise TaskCancelledError
                reply = answer()
                task.release()
                bls.send(reply, task.sender, task.wanted)
                task.answered()
        except TaskCancelledError as end:
            reply = end.reply or reply
            bls.send_cancelled(task.sender)
        finally:
            self.report(reply, task)

    def report(self, reply: Reply, task: Task | None = None) -> None:
        """Report the counts of a reply and the times of its request later: each metric is a call to the server."""
        self._reports.submit(self._report, reply, task)

    def _report(self, reply: Reply, task: Task | None) -> None:
        if task is not None:
            self.metrics.observe(task.kind, task.waited, task.took)
        self.metrics.report(reply.counts, self._sizes(reply))

    def _ended(self, task: Task, future: Future[None]) -> None:
        """Answer a request whose work failed, or never ran because the threads ended."""
        task.release()
        if future.cancelled():
            bls.send_error(task.sender, "the server stops", pb_utils.TritonError.UNAVAILABLE)
        elif (error := future.exception()) is not None:
            bls.send_error(task.sender, f"{INTERNAL}: {one_line(error)}", pb_utils.TritonError.INTERNAL)

    def _refuse(self, error: ServerBusyError, inputs: Mapping[str, Any], sender: Any, wanted: Container[str]) -> None:
        """Answer at once that too many requests wait. Refusals are reported in batches, at little cost to others."""
        bls.send(Reply(self.error_tensors(error, inputs), error.with_traceback(None)), sender, wanted)
        self._refused += 1
        if not self._refusals_wait.is_set():
            self._refusals_wait.set()
            self._reports.submit(self._report_refusals)

    def _report_refusals(self) -> None:
        self._refusals_wait.clear()
        refused = self._refused
        self.metrics.report({"refusals": refused - self._refused_reported}, {})
        self._refused_reported = refused
