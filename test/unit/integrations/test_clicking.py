"""Clicked objects: the newest position wins, clicks go first, and undo leads back."""

import numpy as np
import pytest
from support.clicked_client import ClickedClient
from support.conditions import wait_until

from triton_sam.errors import ConfigurationError, InferenceError
from triton_sam.integrations.clicking import Clicking

IMAGE = np.zeros((40, 60, 3), np.uint8)


class Person:
    """Clicks in an image, and remembers the views."""

    def __init__(self):
        self.client, self.views = ClickedClient(), []
        self.clicking = Clicking(self.client, IMAGE, self.views.append)

    def click(self, *points):
        for point in points:
            self.clicking.click(*point)

    def masks(self):
        return [sorted(map(tuple, np.argwhere(each.mask)[:, ::-1].tolist())) for each in self.clicking.segments()]


@pytest.fixture
def person():
    return Person()


def test_clicks_of_two_objects(person):
    person.click((5, 6), (7, 8), (9, 9, 0))
    person.clicking.next_object()
    person.clicking.next_object()  # without a point of the one before, it changes nothing
    person.clicking.click(30, 20)
    assert person.masks() == [[(5, 6), (7, 8)], [(30, 20)]]
    view = person.views[-1]
    assert (view.points, view.labels, view.error) == (((30.0, 20.0),), (1,), "")
    assert len(view.masks) == 2


def test_points_outside_of_the_image_are_moved_to_its_border(person):
    person.clicking.click(-3, 99)
    assert person.masks() == [[(0, 39)]]
    with pytest.raises(ConfigurationError, match="a label is 1"):
        person.clicking.click(1, 1, 2)


def test_undo_leads_back_to_the_object_before(person):
    person.click((1, 1), (2, 2))
    person.clicking.next_object()
    person.click((3, 3))
    person.clicking.undo()
    assert person.masks() == [[(1, 1), (2, 2)]]
    person.clicking.undo()  # the second object has no points
    person.clicking.undo()
    assert person.masks() == [[(1, 1)]]
    person.clicking.undo()
    person.clicking.undo()
    assert person.masks() == []
    assert person.views[-1].points == ()


def test_clear_removes_all_and_a_late_answer_changes_nothing(person):
    person.clicking.click(1, 1)
    assert person.masks() == [[(1, 1)]]
    person.client.goes_on.clear()
    person.clicking.click(2, 2)
    wait_until(lambda: len(person.client.asked) == 2)
    person.clicking.clear()
    person.client.goes_on.set()
    assert person.masks() == []
    assert person.views[-1].masks == (None,)


def test_only_the_newest_position_is_asked_and_a_click_goes_first(person):
    person.client.goes_on.clear()
    person.clicking.hover(1, 1)
    wait_until(lambda: len(person.client.asked) == 1)
    for x in range(2, 30):
        person.clicking.hover(x, 1)
    person.client.goes_on.set()
    person.clicking.segments()
    assert [points for points, _ in person.client.asked] == [[(1, 1)], [(29, 1)]]
    assert person.views[-1].preview.mask[1, 29]

    person.client.goes_on.clear()
    person.clicking.hover(4, 4)
    wait_until(lambda: len(person.client.asked) == 3)
    person.clicking.hover(5, 5)
    person.clicking.click(6, 6)
    person.client.goes_on.set()
    assert person.masks() == [[(6, 6)]]
    assert [points for points, _ in person.client.asked[3:]] == [[(6, 6)]]  # the click has replaced the position
    assert person.views[-1].preview is None


def test_a_preview_is_the_answer_to_a_click_there_and_ends_with_the_mouse(person):
    person.clicking.click(1, 1)
    person.clicking.hover(9, 9)
    person.clicking.segments()
    assert person.client.asked[-1] == ([(1, 1), (9, 9)], [1, 1])
    assert person.views[-1].preview.area == 2
    assert person.masks() == [[(1, 1)]]
    person.clicking.leave()
    person.clicking.segments()
    assert person.views[-1].preview is None


def test_an_error_is_shown_until_the_next_answer_and_keeps_the_mask(person):
    person.clicking.click(1, 1)
    person.clicking.segments()
    person.client.errors.append(InferenceError("the server is gone"))
    person.clicking.click(2, 2)
    assert person.masks() == [[(1, 1)]]
    assert person.views[-1].error == "the server is gone"
    person.clicking.click(3, 3)
    assert person.masks() == [[(1, 1), (2, 2), (3, 3)]]
    assert person.views[-1].error == ""
