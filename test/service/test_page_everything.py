"""The page finds everything, in headless Chromium, over a real service. Most of its searches need no Triton."""

import io
import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support.conditions import wait_until
from support.fake_everything import service_with_everything, shapes
from support.running_browser import open_page

from triton_sam.masks.rle import rle_to_mask

MASKS = shapes()
COUNT = len(MASKS)


@pytest.fixture(scope="module")
def running():
    with service_with_everything() as running:
        yield running


@pytest.fixture
def finder(running):
    yield running[1]
    running[1].reset()


@pytest.fixture
def page(browser, running, finder, images):
    with open_page(browser, running[0].url) as page:
        page.open(images / "shapes.jpg")
        page.uncheck("#hover")  # which asks a Triton
        yield page


def inside(number):
    """The point of an object that is farthest from its edge in its middle row."""
    rows = np.flatnonzero(MASKS[number].any(axis=1))
    row = int(rows[len(rows) // 2])
    edges = np.flatnonzero(np.diff(np.pad(MASKS[number][row].astype(np.int8), 1)))
    start, end = max(zip(edges[::2], edges[1::2], strict=True), key=lambda run: run[1] - run[0])
    return int(start + end) // 2, row


def find(page, count=COUNT):
    page.page.click("#find")
    page.wait(f"!tritonSam.everything.isSearching && tritonSam.everything.items.length === {count}")


def info(page):
    return page.page.inner_text("#found-info")


def objects(page):
    return page.page.evaluate("tritonSam.scene.objects.length")


def saved(page):
    """Return the mask that the page writes for the active object."""
    return np.asarray(Image.open(io.BytesIO(page.download("#save-mask")[1])))


def test_objects_are_kept_merged_deleted_and_chosen_by_keys(page, images):
    find(page)
    assert info(page) == f"{COUNT} found"
    assert page.page.is_hidden("#found-merge")
    page.click(*inside(0))
    assert info(page) == f"1 of {COUNT} selected"
    page.click(*inside(1))
    page.page.focus("#found-merge")
    page.page.keyboard.press("Enter")
    assert info(page) == f"1 of {COUNT - 1} selected"
    assert page.page.evaluate("document.activeElement.id") == "canvas"  # the button is hidden
    page.page.click("#found-keep")
    assert page.facts()[0].startswith("found · score 0.8")
    mask = saved(page)
    assert (mask.dtype, mask.shape) == (np.uint8, (600, 800))
    np.testing.assert_array_equal(mask == 255, MASKS[0] | MASKS[1])
    page.click(*inside(2))
    page.page.keyboard.press("Delete")
    assert info(page) == f"{COUNT - 3} found"
    page.page.click("#found-keep")  # all others
    assert (objects(page), page.page.is_hidden("#found")) == (COUNT - 2, True)
    coco = json.loads(page.download("#save-coco")[1])
    expected = [MASKS[0] | MASKS[1], *MASKS[3:]]
    for annotation, wanted in zip(coco["annotations"], expected, strict=True):
        np.testing.assert_array_equal(rle_to_mask(annotation["segmentation"]), wanted)
        assert annotation["area"] == wanted.sum()
    for left in (COUNT - 3, COUNT - 2, COUNT - 1, COUNT):  # undo gives the objects back
        page.page.keyboard.press("Control+z")
        page.wait(f"tritonSam.everything.items.length === {left}", 10)
    assert objects(page) == 0
    for key, number in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", COUNT - 1)):
        page.page.keyboard.press(key)
        assert page.page.evaluate("tritonSam.everything.selected.map((item) => item.number)") == [number]
    page.open(images / "coffee.jpg")
    assert page.page.is_hidden("#found")
    assert page.page.evaluate("tritonSam.everything.items.length") == 0


@pytest.mark.slow
def test_a_found_object_is_painted_and_refined_by_clicks(page):
    page.page.fill("#opacity", "100")
    x, y = inside(0)
    before = page.pixel(x - 20, y)
    find(page)
    page.page.click("#found-keep")
    color = page.page.evaluate("tritonSam.scene.objects[0].color")
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    wait_until(lambda: page.pixel(x - 20, y)[:3] == wanted)
    assert before[:3] != wanted
    page.page.keyboard.press("Control+z")
    page.wait(f"tritonSam.everything.items.length === {COUNT}")
    page.click(*inside(0))
    page.page.keyboard.press("r")
    assert info(page) == "Click to refine"
    x, y = inside(1)
    page.click(x, y, button="right")
    object_ = page.page.evaluate("tritonSam.scene.active")
    rows, columns = np.nonzero(MASKS[0])
    assert object_["box"] == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert [point["label"] for point in object_["points"]] == [1, 0]
    assert MASKS[0][int(object_["points"][0]["y"]), int(object_["points"][0]["x"])]
    page.page.keyboard.press("Escape")
    assert info(page) == f"{COUNT - 1} found"
    page.page.keyboard.press("Control+z")
    page.wait("tritonSam.scene.active.box === null")
    assert page.facts()[0].startswith("found · score")  # its own mask again


@pytest.mark.slow
def test_objects_appear_as_they_come_and_better_ones_take_their_places(page, finder):
    finder.finds = False
    page.page.click("#find")
    assert "pred_iou_thresh" in page.banner()
    assert page.page.is_hidden("#found")
    page.page.click("#banner-close")
    finder.reset()
    finder.limit = 2
    closed = finder.closed
    page.page.click("#find")
    page.wait("tritonSam.everything.items.length === 2")
    assert page.page.is_visible("#found-progress")
    assert page.page.is_disabled("#find")
    page.page.click("#found-stop")
    wait_until(lambda: finder.closed == closed + 1)
    assert page.page.evaluate("tritonSam.everything.items.length") < COUNT
    assert page.page.is_enabled("#find")
    assert page.page.is_hidden("#banner")

    finder.removes, finder.limit = True, 1
    page.page.click("#find")
    page.wait("tritonSam.everything.items.length === 1")
    page.click(*inside(0))
    page.page.keyboard.press("k")  # an object that was kept stays when a better one comes
    finder.limit = None
    page.wait("!tritonSam.everything.isSearching")
    assert info(page) == f"{COUNT - 1} found"
    np.testing.assert_array_equal(saved(page) == 255, MASKS[0])
    page.page.keyboard.press("Escape")
    find(page, COUNT - 1)
    page.click(*inside(0))
    assert info(page) == f"{COUNT - 1} found"
