"""The order in which requests go to the server: a state machine, no server involved."""

import pytest

from triton_sam.client.lanes import Job, Lanes, State


class Wire:
    """Carries out steps on paper."""

    def __init__(self, **options):
        self.lanes = Lanes(**options)
        self.sent = []
        self.jobs = {}

    def ask(self, *names):
        """Ask for requests named by lane and number: a1 is a request of lane a."""
        for name in names:
            self.jobs[name] = Job(name, name[0], None)
            self.book(self.lanes.submit([self.jobs[name]]))
        self.book(self.lanes.start())

    def answer(self, name, state=State.COMPLETED):
        self.book(self.lanes.finish(self.jobs[name], state))

    def book(self, step):
        self.sent += [job.id for job in step.start]
        return [job.id for job in step.cancelled]

    def states(self, *names):
        return [self.jobs[name].state.value for name in names]


def test_only_the_newest_waits_and_the_running_one_goes_on():
    wire = Wire()
    wire.ask("a1")
    wire.ask("a2", "a3", "a4")
    assert wire.states("a1", "a2", "a3", "a4") == ["running", "cancelled", "cancelled", "pending"]
    wire.answer("a1")
    assert wire.sent == ["a1", "a4"]


def test_a_failure_lets_the_next_one_go():
    wire = Wire()
    wire.ask("a1")
    wire.ask("a2")
    wire.answer("a1", State.FAILED)
    assert wire.sent == ["a1", "a2"]
    assert wire.lanes.counts("a") == {"pending": 0, "running": 1, "completed": 0, "cancelled": 0, "failed": 1}


def test_lanes_take_turns_for_the_places():
    wire = Wire(total=2)
    wire.ask("a1", "b1", "c1", "d1")
    assert wire.sent == ["a1", "b1"]
    wire.ask("a2")  # it has had its turn: behind those that wait
    wire.answer("a1")
    wire.ask("d2", "b2")  # d1 is replaced, its turn is kept
    for name in ("b1", "c1", "d2"):
        wire.answer(name)
    assert wire.sent == ["a1", "b1", "c1", "d2", "a2", "b2"]


@pytest.mark.parametrize(("places", "running"), [(1, ["a3"]), (2, ["a1", "a3"])])
def test_cancel_running_spares_the_oldest_of_several(places, running):
    wire = Wire(per_lane=places, cancel_running=True)
    for name in ("a1", "a2", "a3"):
        wire.ask(name)
    assert [name for name, job in wire.jobs.items() if job.state is State.RUNNING] == running


def test_an_answer_makes_older_requests_pointless():
    wire = Wire(per_lane=2)
    wire.ask("a1")
    wire.ask("a2")
    wire.answer("a2")
    assert wire.states("a1", "a2") == ["cancelled", "completed"]


def test_an_answer_that_comes_after_the_cancellation_is_not_booked():
    wire = Wire()
    wire.ask("a1")
    assert wire.book(wire.lanes.cancel("a1")) == ["a1"]
    assert wire.lanes.finish(wire.jobs["a1"], State.COMPLETED) is None
    assert wire.lanes.counts("a")["completed"] == 0


def test_keep_latest_keeps_the_waiting_one_and_starts_it():
    wire = Wire()
    wire.ask("a1")
    wire.ask("a2")
    assert wire.book(wire.lanes.cancel_lane("a", keep_latest=True)) == ["a1"]
    assert wire.sent == ["a1", "a2"]
    assert wire.book(wire.lanes.cancel_lane("a", keep_latest=True)) == []
    assert wire.book(wire.lanes.cancel_lane("a", keep_latest=False)) == ["a2"]
    assert len(wire.lanes) == 0


def test_idle_lanes_are_forgotten_busy_ones_are_not():
    wire = Wire(history=2)
    wire.ask("a1")
    for name in ("b1", "c1", "d1"):
        wire.ask(name)
        wire.answer(name)
    assert [wire.lanes.counts(name)["completed"] for name in "bcd"] == [0, 1, 1]
    assert wire.lanes.counts("a")["running"] == 1
