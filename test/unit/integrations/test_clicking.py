"""Clicked objects: the newest position wins, clicks go first, undo leads back; and the widget that shows them."""

import importlib
import io
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until

from triton_sam.errors import ConfigurationError, InferenceError, MissingDependencyError
from triton_sam.inputs.images import open_image
from triton_sam.integrations.clicking import Clicking
from triton_sam.masks.segment import Segment

IMAGE = np.zeros((40, 60, 3), np.uint8)


class ClickedClient:
    """Returns a mask whose pixels are set at the points inside the object, and answers when a test lets it.

    `asked` has the points of each request. The small logits of a network cannot show single pixels.
    """

    def __init__(self):
        self.asked = []
        self.errors = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def encode(self, image):
        return SimpleNamespace(image_size=open_image(image).size)

    def segment(self, points, labels, *, image):
        self.asked.append((list(points), list(labels)))
        assert self.goes_on.wait(60)
        if self.errors:
            raise self.errors.pop()
        mask = np.zeros(image.image_size[::-1], bool)
        for (x, y), label in zip(points, labels, strict=True):
            mask[int(y), int(x)] = label
        return [Segment(mask, 0.5, None)]


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


# The widget for notebooks, without a browser: messages of the browser's side come in, and JPEGs go out


@pytest.fixture
def notebook():
    pytest.importorskip("anywidget")
    return importlib.import_module("triton_sam.integrations.notebook")


@pytest.fixture
def clicker(notebook):
    return notebook.Clicker(np.full((300, 400, 3), 90, np.uint8), ClickedClient(), max_side=100)


def browser(clicker, **message):
    """Do as the browser's side does with a message; return the segments."""
    clicker._handle_custom_msg(message, [])
    return clicker.segments


def shown(clicker):
    return np.asarray(Image.open(io.BytesIO(clicker.shown)))


def test_the_image_is_shown_small_with_its_own_size(clicker):
    assert clicker.segments == []
    assert shown(clicker).shape == (75, 100, 3)
    assert clicker.size == [400, 300]
    assert clicker.status == "object 1"
    with pytest.raises(ConfigurationError, match="max_side must be at least 64"):
        clicker.__class__(np.zeros((30, 40, 3), np.uint8), ClickedClient(), max_side=10)


def test_clicks_of_the_browser_become_segments(clicker):
    browser(clicker, kind="click", x=200.0, y=100.0, label=1)
    browser(clicker, kind="click", x=10.0, y=20.0, label=0)
    (segment,) = browser(clicker, kind="hover", x=300.0, y=200.0)
    assert segment.mask.shape == (300, 400)
    assert segment.mask[100, 200]
    assert clicker.status == "object 1: score 0.50, 1 pixels"
    browser(clicker, kind="leave")
    browser(clicker, kind="next_object")
    assert len(browser(clicker, kind="click", x=5.0, y=5.0, label=1)) == 2
    assert clicker.status.startswith("object 2")
    assert len(browser(clicker, kind="undo")) == 1
    assert browser(clicker, kind="clear") == []
    assert browser(clicker, kind="unknown") == []
    clicker.click(3, 4)  # the methods do as the browser
    clicker.next_object()
    clicker.click(8, 9)
    assert [each.area for each in clicker.segments] == [1, 1]
    clicker.undo()
    assert len(clicker.segments) == 1


def test_points_and_masks_are_drawn_at_their_places(clicker):
    assert clicker.segments == []  # the image is shown
    before = shown(clicker).astype(int)
    browser(clicker, kind="click", x=200.0, y=100.0, label=1)
    changed = np.argwhere(np.abs(shown(clicker) - before).max(axis=2) > 60)
    assert len(changed)
    np.testing.assert_allclose(changed.mean(axis=0), (25, 50), atol=3)  # 100 / 4, 200 / 4
    browser(clicker, kind="clear")
    np.testing.assert_array_equal(shown(clicker), before)


def test_an_error_of_the_server_stands_below_the_image(notebook):
    client = ClickedClient()
    clicker = notebook.Clicker(np.zeros((30, 40, 3), np.uint8), client)
    client.errors.append(InferenceError("the server is gone"))
    assert browser(clicker, kind="click", x=1.0, y=1.0, label=1) == []
    assert clicker.status == "the server is gone"


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "triton_sam.integrations.notebook", raising=False)
    with pytest.raises(MissingDependencyError, match="notebook"):
        importlib.import_module("triton_sam.integrations.notebook")
