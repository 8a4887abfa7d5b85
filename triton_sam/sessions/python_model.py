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
from .metrics import RESTARTS_VARIABLE, TritonMetrics
from .tasks import Pool, Reports, Submit, Task, TaskCancelledError, Waiting


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
        self.metrics = TritonMetrics(pb_utils, self.name, kinds, counters, gauges)
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
        """Answer a request in a thread of a pool. Return the future if the request is traced."""
        running = task.start(pool, partial(self.run, task, answer), submit)
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
        except TaskCancelledError:
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
