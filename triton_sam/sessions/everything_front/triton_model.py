"""The entry of the front end in Triton. It calls the session model by BLS (Business Logic Scripting).

``execute`` passes each request to a thread and returns at once. The thread asks the session model for one part after
the other, and sends each answer as it comes, until nobody waits any more.

Parameters in config.pbtxt: ``alias_of`` (name of the session model), ``max_jobs`` (streams at a time).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ...errors import ServerBusyError
from ...repository.names import ALIAS_KEY
from ...wire import contract
from .. import bls
from ..metrics import FRONT_COUNTERS, TritonMetrics, TritonTimes
from ..reply import Reply
from ..times import Clock, Reports, RequestTimes
from .parts import cut

_WANTED = frozenset({contract.RESULT_JSON})


class TritonPythonModel:
    """One front end. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters. The session model cannot be called yet, because it may still be loading."""
        given = json.loads(args["model_config"])["parameters"]
        parameters = {key: value["string_value"] for key, value in given.items()}
        self._session = parameters[ALIAS_KEY]
        jobs = bls.number(parameters, "max_jobs", contract.DEFAULT_MAX_JOBS)
        self._pool = bls.Pool("stream", jobs, jobs)
        self._caller = bls.Caller()
        self._stops = threading.Event()
        self._reports = Reports()
        name, kinds = args["model_name"], [self._pool.name]
        self._metrics = TritonMetrics(pb_utils, name, counters=FRONT_COUNTERS, gauges={})
        self._times = RequestTimes(TritonTimes(pb_utils, name, kinds), self._reports, kinds)

    def execute(self, requests: list[Any]) -> None:
        """Pass every request to a thread; refuse those for which there is no place."""
        for request in requests:
            sender = request.get_response_sender()
            if not self._pool.places.acquire(blocking=False):
                self._fail(ServerBusyError("too many searches run here already"), sender, "refusals")
                continue
            # Copies: Triton takes the memory of the inputs back when this method returns.
            tensors = {tensor.name(): np.array(tensor.as_numpy()) for tensor in request.inputs()}
            clock = self._times.arrived(self._pool.name)
            self._pool.threads.submit(self._run, clock, tensors, sender)

    def finalize(self) -> None:
        """End the streams after their current part."""
        self._stops.set()
        self._pool.threads.shutdown(cancel_futures=True)
        self._reports.close()

    def _run(self, clock: Clock, tensors: Mapping[str, npt.NDArray[Any]], sender: Any) -> None:
        with clock:
            try:
                image_id, parts = cut(tensors)
                for number, part in enumerate(parts, 1):
                    if self._stops.is_set() or sender.is_cancelled():
                        sender.send(bls.cancelled(), flags=bls.FINAL)
                        return
                    answer = pb_utils.InferenceResponse([self._answer(image_id, part)])
                    # The last answer says so itself: clients hear of an empty last one only if they ask for it.
                    sender.send(answer, flags=bls.FINAL if number == len(parts) else 0)
            except Exception as error:  # noqa: BLE001 - one failure must not affect other streams
                self._fail(error, sender, "failures")
            finally:
                self._pool.places.release()
            clock.answered()

    def _fail(self, error: Exception, sender: Any, count: str) -> None:
        reply = Reply(error=error.with_traceback(None))
        reply.counts[count] = 1
        bls.send(reply, sender, _WANTED)
        self._reports.submit(self._metrics.add_all, reply.counts)

    def _answer(self, image_id: bytes, part: bytes) -> Any:
        """Return the session model's answer to one part.

        Raises:
            ServerError: the session model refused it; the message keeps the code of the error.
        """
        inputs = {contract.IMAGE_ID: image_id, contract.EVERYTHING_PART: part}
        arrays = {name: np.array([value], np.object_) for name, value in inputs.items()}
        outputs = (contract.RESULT_JSON,)
        return self._caller.call(self._session, bls.to_tensors(arrays), outputs, bls.cpu())[contract.RESULT_JSON]
