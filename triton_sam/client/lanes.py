"""Which request of which lane goes to the server next: a state machine without I/O, threads or clocks.

A lane is the queue of one mouse. In it only the newest request matters: a new one replaces the one that waits. Lanes
take turns. The caller carries out what each change asks for, a `Step`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

Work = TypeVar("Work")


class State(str, Enum):
    """Where a request stands; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(eq=False)
class Job(Generic[Work]):
    """One request.

    Args:
        id: its name, unique among those alive.
        lane_name: name of its lane; None for a request that stands alone, which nothing replaces.
        work: what the caller needs to carry it out.
    """

    id: str
    lane_name: str | None
    work: Work
    state: State = State.PENDING
    lane: _Lane[Work] = field(init=False, repr=False)


@dataclass
class Step(Generic[Work]):
    """What a change asks for: jobs to send, jobs that ended before they were sent, jobs to cancel on the wire."""

    start: list[Job[Work]] = field(default_factory=list)
    dropped: list[Job[Work]] = field(default_factory=list)
    aborted: list[Job[Work]] = field(default_factory=list)

    @property
    def cancelled(self) -> list[Job[Work]]:
        """All jobs that the change cancelled."""
        return self.dropped + self.aborted


@dataclass(eq=False)
class _Lane(Generic[Work]):
    """Requests of one mouse: at most one waits, a few run, the oldest first."""

    name: str | None
    waiting: Job[Work] | None = None
    running: list[Job[Work]] = field(default_factory=list)
    ended: Counter[State] = field(default_factory=Counter)

    @property
    def newest(self) -> Job[Work] | None:
        return self.waiting or (self.running[-1] if self.running else None)

    @property
    def is_idle(self) -> bool:
        return self.newest is None


class Lanes(Generic[Work]):
    """All requests of a client. Not safe for threads: the caller locks.

    Args:
        per_lane: requests of one lane that may be on the wire at a time.
        total: requests of all lanes that may be.
        cancel_running: a new request takes the place of a running one when its lane has no free one. With more than
            one place it is the youngest that gives way: the oldest is nearest to its answer, and were it to go, a lane
            whose requests come faster than answers would never see one.
        history: idle lanes whose counts are remembered; the longest idle one is forgotten first.
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

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, request_id: str) -> Job[Work] | None:
        """Return the request of this id that has not ended."""
        return self._jobs.get(request_id)

    def submit(self, jobs: Iterable[Job[Work]]) -> Step[Work]:
        """Add requests, the newest last; what they replace is never sent. Starts none: see start()."""
        step: Step[Work] = Step()
        for job in jobs:
            job.lane = self._lane(job.lane_name)
            self._jobs[job.id] = job
            self._replace(job, step)
        return step

    def start(self) -> Step[Work]:
        """Start what may be started; lanes take turns."""
        return self._fill(Step())

    def finish(self, job: Job[Work], state: State) -> Step[Work] | None:
        """Book the end of a running request; None when it was cancelled meanwhile and its answer is not wanted."""
        if job.state is not State.RUNNING:
            return None
        step: Step[Work] = Step()
        lane = job.lane
        overtaken = lane.running[: lane.running.index(job)] if state is State.COMPLETED else []
        self._end(job, state)
        for older in overtaken:
            self._cancel(older, step)
        return self._fill(step)

    def cancel(self, request_id: str) -> Step[Work]:
        """Cancel one request; nothing happens when it is unknown or has ended."""
        job = self._jobs.get(request_id)
        return self._cancel_all([job] if job is not None else [])

    def cancel_lane(self, name: str, *, keep_latest: bool) -> Step[Work]:
        """Cancel a lane's requests, all or all but the newest."""
        lane = self._lanes.get(name)
        jobs = [] if lane is None else _alive(lane)
        return self._cancel_all([job for job in jobs if not (keep_latest and lane and job is lane.newest)])

    def cancel_everything(self) -> Step[Work]:
        """Cancel every request of every lane."""
        return self._cancel_all(list(self._jobs.values()))

    def forget(self, name: str) -> Step[Work]:
        """Cancel a lane's requests and drop its counts."""
        step = self.cancel_lane(name, keep_latest=False)
        self._lanes.pop(name, None)
        self._idle.pop(name, None)
        return step

    def counts(self, name: str) -> dict[str, int]:
        """Number of a lane's requests by state; zeros for one that is unknown."""
        lane = self._lanes.get(name) or _Lane(name)
        alive = {State.PENDING: int(lane.waiting is not None), State.RUNNING: len(lane.running)}
        return {state.value: alive.get(state, lane.ended[state]) for state in State}

    def _replace(self, job: Job[Work], step: Step[Work]) -> None:
        lane = job.lane
        older, lane.waiting = lane.waiting, job
        if older is not None:
            self._end(older, State.CANCELLED)
            step.dropped.append(older)
        else:
            self._queue.append(lane)
        if self._cancel_running and len(lane.running) == self._per_lane:
            self._cancel(lane.running[-1], step)

    def _cancel_all(self, jobs: Iterable[Job[Work]]) -> Step[Work]:
        step: Step[Work] = Step()
        for job in jobs:
            self._cancel(job, step)
        return self._fill(step)

    def _cancel(self, job: Job[Work], step: Step[Work]) -> None:
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
        if lane.is_idle and lane.name is not None:
            self._idle[lane.name] = None
            while len(self._idle) > self._history:
                del self._lanes[self._idle.popitem(last=False)[0]]

    def _fill(self, step: Step[Work]) -> Step[Work]:
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
