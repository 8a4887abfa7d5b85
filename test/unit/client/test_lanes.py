"""The order in which requests go to the server: any sequence of calls against the rules, no server involved.

The dispatcher is the lanes with threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import strategies  # noqa: F401 - chooses the profile of hypothesis

from triton_sam.client.dispatcher import Dispatcher, Work
from triton_sam.client.lanes import Job, Lanes, State
from triton_sam.transport.threads import Threads, pause

NAMES = ("a", "b", "c")


@dataclass(eq=False)
class Mouse:
    """The expected state of one lane: at most one request waits, and ``running`` has the oldest first."""

    waiting: Job[None] | None = None
    running: list[Job[None]] = field(default_factory=list)
    ended: Counter[State] = field(default_factory=Counter)

    @property
    def alive(self):
        return [*self.running, *([self.waiting] if self.waiting else [])]


class LanesMachine(RuleBasedStateMachine):
    """Calls lanes in any order. Each rule says which requests the call must drop, abort and start."""

    @initialize(
        per_lane=st.integers(1, 2), total=st.integers(1, 4), cancel_running=st.booleans(), history=st.integers(0, 2)
    )
    def make(self, per_lane, total, cancel_running, history):
        self.per_lane, self.total, self.cancel_running, self.history = per_lane, total, cancel_running, history
        self.lanes = Lanes(per_lane=per_lane, total=total, cancel_running=cancel_running, history=history)
        self.jobs = []
        self.mice = {}
        self.named = {}
        self.turns = []
        self.idle = []
        self.sent = 0

    # The rules of lanes, by which each step is judged

    def end(self, job, state):
        """Book the end of a request. A named lane without requests is idle, and the longest idle ones are forgotten."""
        mouse = self.mice.pop(job)
        mouse.ended[state] += 1
        if job in mouse.running:
            mouse.running.remove(job)
        else:
            mouse.waiting = None
        if not mouse.alive and job.lane_name is not None:
            self.idle.append(job.lane_name)
        while len(self.idle) > self.history:
            del self.named[self.idle.pop(0)]

    def cancel_jobs(self, jobs):
        """Book requests as cancelled; return those that waited and those that ran."""
        dropped = [job for job in jobs if job is self.mice[job].waiting]
        aborted = [job for job in jobs if job not in dropped]
        for job in jobs:
            mouse = self.mice[job]
            if job in dropped:
                self.turns.remove(mouse)
            self.end(job, State.CANCELLED)
        return dropped, aborted

    def start_jobs(self):
        """Book the starts of the lanes whose turn it is. A full lane is passed over and queues anew."""
        started = []
        for mouse in list(self.turns):
            if sum(map(len, self.all_running())) == self.total:
                break
            self.turns.remove(mouse)
            if len(mouse.running) == self.per_lane:
                self.turns.append(mouse)
                continue
            assert mouse.waiting is not None
            started.append(mouse.waiting)
            mouse.running.append(mouse.waiting)
            mouse.waiting = None
        self.sent += len(started)
        return started

    def all_running(self):
        return [mouse.running for mouse in set(self.mice.values())]

    def judge(self, step, jobs):
        """Check that a call cancels exactly these requests, and then starts the next ones."""
        assert step is not None
        dropped, aborted = self.cancel_jobs(jobs)
        assert (step.dropped, step.aborted) == (dropped, aborted)
        assert step.cancelled == dropped + aborted
        assert step.start == self.start_jobs()

    # The calls

    @rule(names=st.lists(st.sampled_from([*NAMES, None]), min_size=1, max_size=4))
    def submit(self, names):
        jobs = [Job(f"{len(self.jobs) + n}", name, None) for n, name in enumerate(names)]
        self.jobs += jobs
        step = self.lanes.submit(jobs)
        dropped, aborted = [], []
        for job in jobs:
            name = job.lane_name
            if name in self.idle:
                self.idle.remove(name)
            mouse = Mouse() if name is None else self.named.setdefault(name, Mouse())
            self.mice[job] = mouse
            if mouse.waiting is None:
                self.turns.append(mouse)
            else:
                dropped.append(mouse.waiting)
                mouse.ended[State.CANCELLED] += 1
                del self.mice[mouse.waiting]
            mouse.waiting = job
            if self.cancel_running and len(mouse.running) == self.per_lane:
                aborted.append(mouse.running[-1])
                self.end(mouse.running[-1], State.CANCELLED)
        assert (step.start, step.dropped, step.aborted) == ([], dropped, aborted)
        self.judge(self.lanes.start(), [])

    @precondition(lambda self: any(self.all_running()))
    @rule(data=st.data(), state=st.sampled_from([State.COMPLETED, State.FAILED]))
    def finish(self, data, state):
        """An answer makes the older requests of its lane pointless; an error does not."""
        job = data.draw(st.sampled_from([job for job in self.jobs if job.state is State.RUNNING]))
        mouse = self.mice[job]
        older = mouse.running[: mouse.running.index(job)] if state is State.COMPLETED else []
        step = self.lanes.finish(job, state)
        self.end(job, state)
        self.judge(step, older)
        assert job.state is state

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), call=st.sampled_from(["cancel", "cancel_lane", "forget", "finish_late", "everything"]))
    def cancel(self, data, call):
        """One rule for all of them, because most calls have to be new requests and answers."""
        job = data.draw(st.sampled_from(self.jobs))
        name = data.draw(st.sampled_from(NAMES))
        alive = self.named.get(name, Mouse()).alive
        if call == "cancel":  # also a request that has ended: it stays as it is
            self.judge(self.lanes.cancel(job.id), [job] if job in self.mice else [])
        elif call == "cancel_lane":
            keep_latest = data.draw(st.booleans())
            self.judge(self.lanes.cancel_lane(name, keep_latest=keep_latest), alive[:-1] if keep_latest else alive)
        elif call == "forget":
            self.judge(self.lanes.forget(name), alive)
            self.named.pop(name, None)
            self.idle = [each for each in self.idle if each != name]
        elif call == "finish_late" and job not in self.mice:
            state = job.state
            assert self.lanes.finish(job, State.COMPLETED) is None
            assert job.state is state
        elif call == "everything":
            self.judge(self.lanes.cancel_everything(), [job for job in self.jobs if job in self.mice])

    # These rules hold after every call.

    @invariant()
    def the_limits_hold(self):
        assert sum(map(len, self.all_running())) <= self.total
        assert all(len(running) <= self.per_lane for running in self.all_running())
        assert self.lanes.sent == self.sent

    @invariant()
    def counts_and_states_are_those_of_the_requests(self):
        assert len(self.lanes._jobs) == len(self.mice)
        for job in self.jobs:
            mouse = self.mice.get(job)
            assert self.lanes.get(job.id) is (None if mouse is None else job)
            if mouse is not None:
                assert job.state is (State.PENDING if job is mouse.waiting else State.RUNNING)
        for name in NAMES:
            mouse = self.named.get(name, Mouse())
            alive = {State.PENDING: int(mouse.waiting is not None), State.RUNNING: len(mouse.running)}
            assert self.lanes.counts(name) == {state.value: alive.get(state, mouse.ended[state]) for state in State}


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(max_examples=60, stateful_step_count=25)


def test_an_answer_makes_the_older_requests_of_its_lane_pointless():
    """Said once more without chance: the machine above seldom has two requests of one lane on the wire."""
    lanes = Lanes(per_lane=2)
    jobs = [Job(name, "lane", None) for name in ("older", "newer")]
    for job in jobs:
        lanes.submit([job])
        lanes.start()
    step = lanes.finish(jobs[1], State.COMPLETED)
    assert step is not None
    assert step.aborted == [jobs[0]]


@pytest.fixture
def threads():
    made = Threads()
    yield made
    made.close()


def test_a_prediction_that_is_cancelled_before_it_was_sent_is_not_sent(threads):
    """Another thread may cancel between the decision to send a request and its start."""
    called = threading.Event()
    dispatcher = Dispatcher(threads, Lanes())
    (job,) = dispatcher.submit([Work(called.set)], "lane")

    def start_and_cancel(lanes):
        step = lanes.start()
        assert job.state is State.RUNNING
        job.work.future.cancel()
        return step

    dispatcher.change(start_and_cancel)
    assert dispatcher.sent == 1
    threads.submit(lambda: None).result(120)
    assert not called.is_set()


def test_closing_cancels_the_predictions_that_run_and_those_that_wait(threads):
    dispatcher = Dispatcher(threads, Lanes(total=1))
    jobs = [dispatcher.submit([Work(lambda: pause(600))], lane)[0] for lane in ("first", "second")]
    dispatcher.start()
    dispatcher.close()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.work.future.result(120)


def test_a_prediction_that_begins_while_the_client_closes_is_cancelled(threads):
    """Its lanes were closed before it was submitted, and its threads before it starts."""
    dispatcher = Dispatcher(threads, Lanes())
    dispatcher.close()
    (job,) = dispatcher.submit([Work(lambda: None)], "lane")
    threads.close()
    dispatcher.start()
    assert job.work.future.cancelled()
    assert dispatcher.counts("lane")["cancelled"] == 1
