"""The regions of earlier calls that Label Studio's page does not send again."""

import pytest

from triton_sam.service.adapters.task_regions import MOST_TASKS, SECONDS, Region, TaskMemory, asked_of
from triton_sam.service.problems import Problem

SIZE = (100, 100)


def point(name, x=50.0, y=50.0, *, positive=True, label="cat"):
    value = {"x": x, "y": y, **({} if label is None else {"keypointlabels": [label]})}
    return Region(type="keypointlabels", value=value, is_positive=positive, id=name)


def box(name, x=10.0, y=10.0, side=20.0, label="cat"):
    value = {"x": x, "y": y, "width": side, "height": side, "rectanglelabels": [label]}
    return Region(type="rectanglelabels", value=value, id=name)


def away(name, x=50.0, y=50.0, label="cat"):
    return point(name, x, y, positive=False, label=label)


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ask(clock):
    """Send calls for a task; each answers with (box, points, labels) of each object, and their labels."""
    memory = TaskMemory(clock)

    def ask(*regions, task=1):
        targets, labels = asked_of(memory.joined(task, regions), SIZE)
        found = [(each.box and list(each.box), list(each.points), list(each.labels)) for each in targets]
        return found, labels

    return ask


def test_a_background_point_corrects_the_box_of_the_call_before(ask):
    assert ask(box("b"))[0] == [([10, 10, 30, 30], [], [])]
    inside = ask(away("n", 20, 20))
    assert inside == ([([10, 10, 30, 30], [[20, 20]], [0])], ["cat"])
    both = ask(away("n", 20, 20), away("o", 90, 90))
    assert both[0] == [([10, 10, 30, 30], [[20, 20], [90, 90]], [0, 0])]
    assert ask(away("o", 90, 90))[0] == [([10, 10, 30, 30], [[90, 90]], [0])]  # the other one is deleted
    more = ask(away("o", 90, 90), point("p", 15, 15))
    assert more[0] == [([10, 10, 30, 30], [[90, 90], [15, 15]], [0, 1])]


def test_a_background_point_without_a_label_corrects_the_point_before(ask):
    ask(point("p"))
    assert ask(away("n", 60, 60, label=None)) == ([(None, [[50, 50], [60, 60]], [1, 0])], ["cat"])
    found = ask(point("p"), point("q", 55, 55))  # the page still has it
    assert found == ([(None, [[60, 60], [50, 50], [55, 55]], [0, 1, 1])], ["cat"])


def test_a_new_foreground_point_or_box_is_a_new_object(ask):
    ask(box("b"))
    assert ask(point("p", 20, 20))[0] == [(None, [[20, 20]], [1])]
    assert ask(away("n"))[0] == [(None, [[20, 20], [50, 50]], [1, 0])]
    assert ask(box("c", 60, 60))[0] == [([60, 60, 80, 80], [], [])]


def test_a_background_point_alone_is_an_error(ask, clock):
    with pytest.raises(Problem, match="first set a point on it"):
        ask(away("n"))
    ask(box("b"), task=2)
    with pytest.raises(Problem, match="first set a point on it"):
        ask(away("n"))  # that was another task
    ask(box("b"))
    clock.seconds = SECONDS + 1
    with pytest.raises(Problem, match="first set a point on it"):
        ask(away("n"))


def test_the_memory_has_bounds(ask):
    for task in range(MOST_TASKS + 1):
        ask(box("b"), task=task)
    assert ask(away("n"), task=MOST_TASKS)[0]
    with pytest.raises(Problem):
        ask(away("n"), task=0)
    ask(*[point(str(number)) for number in range(10_000)], task=1)
    with pytest.raises(Problem):
        ask(away("n"), task=1)


@pytest.mark.parametrize(
    "region",
    [
        Region(type="keypointlabels", value={"x": "a", "y": 1}),
        Region(type="keypointlabels", value={"x": 1}),
        Region(type="rectanglelabels", value={"x": 1, "y": 1, "width": 10**400, "height": 1}),
    ],
)
def test_regions_that_cannot_be_used_are_not_remembered(ask, region):
    ask(box("b"))
    with pytest.raises(Problem, match="a region needs the numbers"):
        ask(region)
    assert ask(away("n"))[0] == [([10, 10, 30, 30], [[50, 50]], [0])]


def test_ids_of_other_kinds_join_nothing(ask):
    for name in (7, None, "", "n" * 10_000, {"a": 1}, [1]):
        ask(box(name))
        assert ask(point(name, 90, 90))[0] == [(None, [[90, 90]], [1])]
