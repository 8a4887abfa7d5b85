"""The widget for notebooks, without a browser: messages of the browser's side come in, and JPEGs go out."""

import importlib
import io
import sys

import numpy as np
import pytest
from PIL import Image
from support.clicked_client import ClickedClient

from triton_sam.errors import ConfigurationError, MissingDependencyError


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


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "triton_sam.integrations.notebook", raising=False)
    with pytest.raises(MissingDependencyError, match="notebook"):
        importlib.import_module("triton_sam.integrations.notebook")
