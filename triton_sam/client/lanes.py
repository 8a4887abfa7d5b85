"""A state machine, without I/O, threads or clocks, that decides which request is sent next.

A lane is the queue of one mouse. Only its newest request matters: a new request replaces the one that waits. Lanes take
turns. Every change returns `Actions` for the caller to carry out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

Work = TypeVar("Work")


class State(str, Enum):
    """The state of a request. The last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(eq=False)
class Job(Generic[Work]):
    """One request.

    Args:
        lane_name: name of its lane; None for a request outside of all lanes, which no other request replaces.
    """

    id: str
    lane_name: str | None
    work: Work
    state: State = State.PENDING
    lane: _Lane[Work] = field(init=False, repr=False)


@dataclass
class Actions(Generic[Work]):
    """The actions that a change requires.

    Args:
        aborted: jobs that were cancelled after they were sent; the caller cancels them on the wire.
    """

    start: list[Job[Work]] = field(default_factory=list)
    dropped: list[Job[Work]] = field(default_factory=list)
    aborted: list[Job[Work]] = field(default_factory=list)

    @property
    def cancelled(self) -> list[Job[Work]]:
        """All jobs that the change cancelled."""
        return self.dropped + self.aborted


@dataclass(eq=False)
class _Lane(Generic[Work]):
    """Requests of one mouse: at most one waits, and a few run. ``running`` starts with the oldest."""

    name: str | None
    waiting: Job[Work] | None = None
    running: list[Job[Work]] = field(default_factory=list)
    ended: Counter[State] = field(default_factory=Counter)

    @property
    def newest(self) -> Job[Work] | None:
        return self.waiting or (self.running[-1] if self.running else None)


class Lanes(Generic[Work]):
    """All requests of a client. Not thread-safe: the caller must hold a lock.

    Args:
        cancel_running: whether a new request cancels a running one if its lane already runs ``per_lane`` requests. It
            cancels the youngest, because the oldest is closest to its answer: a lane that always cancelled the oldest
            would never receive an answer while requests arrive faster than answers.
        history: number of idle lanes whose counts are kept. The lane that has been idle longest is evicted first.
    """

    def __init__(self, *, per_lane: int = 1, total: int = 8, cancel_running: bool = False, history: int = 256) -> None:
        self._per_lane = per_lane
        self._total = total
        self._cancel_running = cancel_running
        self._history = history
        self._jobs: dict[str, Job[Work]] = {}
        self._lanes: dict[str, _Lane[Work]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._queue: deque[_Lane[Work]] = deque()
        self._running = 0
        self.sent = 0

    def get(self, request_id: str) -> Job[Work] | None:
        """Return the request with this id; None if it is unknown or has ended."""
        return self._jobs.get(request_id)

    def submit(self, jobs: Iterable[Job[Work]]) -> Actions[Work]:
        """Queue requests, the newest last. Requests that they replace are never sent. start() starts them."""
        step: Actions[Work] = Actions()
        for job in jobs:
            job.lane = self._lane(job.lane_name)
            self._jobs[job.id] = job
            self._replace(job, step)
        return step

    def start(self) -> Actions[Work]:
        """Start the requests that the limits allow. Lanes take turns."""
        return self._fill(Actions())

    def finish(self, job: Job[Work], state: State) -> Actions[Work] | None:
        """Record the end of a running request; return None if it was cancelled before: its answer is unwanted."""
        if job.state is not State.RUNNING:
            return None
        step: Actions[Work] = Actions()
        lane = job.lane
        overtaken = lane.running[: lane.running.index(job)] if state is State.COMPLETED else []
        self._end(job, state)
        for older in overtaken:
            self._cancel(older, step)
        return self._fill(step)

    def cancel(self, request_id: str) -> Actions[Work]:
        """Cancel one request. Does nothing if it is unknown or has ended."""
        job = self._jobs.get(request_id)
        return self._cancel_all([job] if job is not None else [])

    def cancel_lane(self, name: str, *, keep_latest: bool) -> Actions[Work]:
        """Cancel all requests of a lane, except the newest with ``keep_latest``."""
        lane = self._lanes.get(name)
        jobs = [] if lane is None else _alive(lane)
        return self._cancel_all([job for job in jobs if not (keep_latest and lane and job is lane.newest)])

    def cancel_everything(self) -> Actions[Work]:
        """Cancel every request of every lane."""
        return self._cancel_all(list(self._jobs.values()))

    def forget(self, name: str) -> Actions[Work]:
        """Cancel all requests of a lane and discard its counts."""
        step = self.cancel_lane(name, keep_latest=False)
        self._lanes.pop(name, None)
        self._idle.pop(name, None)
        return step

    def counts(self, name: str) -> dict[str, int]:
        """Return the number of a lane's requests in each state; all are zero for an unknown lane."""
        lane = self._lanes.get(name) or _Lane(name)
        alive = {State.PENDING: int(lane.waiting is not None), State.RUNNING: len(lane.running)}
        return {state.value: alive.get(state, lane.ended[state]) for state in State}

    def _replace(self, job: Job[Work], step: Actions[Work]) -> None:
        lane = job.lane
        older, lane.waiting = lane.waiting, job
        if older is not None:
            self._end(older, State.CANCELLED)
            step.dropped.append(older)
        else:
            self._queue.append(lane)
        if self._cancel_running and len(lane.running) == self._per_lane:
            self._cancel(lane.running[-1], step)

    def _cancel_all(self, jobs: Iterable[Job[Work]]) -> Actions[Work]:
        step: Actions[Work] = Actions()
        for job in jobs:
            self._cancel(job, step)
        return self._fill(step)

    def _cancel(self, job: Job[Work], step: Actions[Work]) -> None:
        lane = job.lane
        if job is lane.waiting:
            lane.waiting = None
            self._queue.remove(lane)
            step.dropped.append(job)
        else:
            step.aborted.append(job)
        self._end(job, State.CANCELLED)

    def _end(self, job: Job[Work], state: State) -> None:
        lane = job.lane
        if job.state is State.RUNNING:
            lane.running.remove(job)
            self._running -= 1
        job.state = state
        lane.ended[state] += 1
        del self._jobs[job.id]
        if lane.newest is None and lane.name is not None:
            self._idle[lane.name] = None
            while len(self._idle) > self._history:
                del self._lanes[self._idle.popitem(last=False)[0]]

    def _fill(self, step: Actions[Work]) -> Actions[Work]:
        for _ in range(len(self._queue)):
            if self._running >= self._total:
                break
            lane = self._queue.popleft()
            job = lane.waiting
            if job is None or len(lane.running) >= self._per_lane:
                self._queue.append(lane)
                continue
            lane.waiting = None
            lane.running.append(job)
            job.state = State.RUNNING
            self._running += 1
            self.sent += 1
            step.start.append(job)
        return step

    def _lane(self, name: str | None) -> _Lane[Work]:
        if name is None:
            return _Lane(None)
        self._idle.pop(name, None)
        return self._lanes.setdefault(name, _Lane(name))


def _alive(lane: _Lane[Work]) -> list[Job[Work]]:
    return [*lane.running, *([lane.waiting] if lane.waiting is not None else [])]
