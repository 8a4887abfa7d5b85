"""The corners of the outline of a mask: they are moved, added and removed, and the mask follows."""

import io
import json
import re
import zipfile

import numpy as np
import pytest
from support.hand_changes import drag, edited, masks_of

from triton_sam.masks.rle import rle_to_mask

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

NAME = "Object 1"
SAID = "document.getElementById('said').textContent"
AREA = "tritonSam.resultOf(tritonSam.scene.active).found?.area"
RIM = 6
"""Pixels of the image beside a moved side, in which the simple outline and the mask may differ."""


@pytest.fixture
def outlined(shapes):
    """An object made by a box, with the corners of its outline."""
    shapes.page.uncheck("#hover")
    drag(shapes, (90, 90), (320, 290))
    shapes.wait("tritonSam.scene.objects.length === 1")
    shapes.settled()
    shapes.page.keyboard.press("v")
    return shapes


def next_corner(page):
    """Choose the next corner by the keyboard, and return its number, the number of corners, and its place."""
    page.page.keyboard.press(".")
    found = re.match(r"Corner (\d+) of (\d+): (-?\d+), (-?\d+)", page.page.evaluate(SAID))
    return [int(each) for each in found.groups()] if found else None


def corners_of(page):
    """The corners of the outline, when it is there, in their order; the last one is the chosen one at the end."""
    page.page.keyboard.press("Escape")
    page.wait("document.getElementById('corner-remove').disabled")
    for _ in range(200):
        if first := next_corner(page):
            break
        page.page.wait_for_timeout(50)
    return [tuple(first[2:]), *(tuple(next_corner(page)[2:]) for _ in range(first[1] - 1))]


def rightmost(corners):
    """The corner that is farthest to the right, with those before and after it."""
    at = max(range(len(corners)), key=lambda index: corners[index][0])
    return corners[at - 1], corners[at], corners[(at + 1) % len(corners)]


def scale_of(page):
    """Pixels of the screen for one of the image."""
    return (page.at(800, 0)[0] - page.at(0, 0)[0]) / 800


def differs_only_within(before, after, places):
    (left, top), (right, bottom) = np.min(places, axis=0) - RIM, np.max(places, axis=0) + RIM
    changed = before ^ after
    changed[max(top, 0) : bottom, max(left, 0) : right] = False
    return not changed.any()


def exported(page):
    """The mask of the only object in the data set of all images."""
    page.page.select_option("#export-format", "coco")
    with zipfile.ZipFile(io.BytesIO(page.download("#export")[1])) as archive:
        (annotation,) = json.loads(archive.read("coco.json"))["annotations"]
    return rle_to_mask(annotation["segmentation"]).astype(bool)


def test_a_corner_is_dragged_and_the_mask_follows_there_and_nowhere_else(outlined):
    page = outlined
    before = masks_of(page)[NAME]
    previous, corner, following = rightmost(corners_of(page))
    moved = (corner[0] + 80, corner[1])
    drag(page, corner, moved)
    edited(page, 0)
    after = masks_of(page)[NAME]
    assert after[corner[1], corner[0] + 40]
    assert not before[corner[1], corner[0] + 40]
    assert differs_only_within(before, after, [previous, corner, following, moved])
    assert np.array_equal(exported(page), after)
    page.page.keyboard.press("Control+z")
    assert np.array_equal(masks_of(page)[NAME], before)
    assert rightmost(corners_of(page))[1] == corner
    page.page.keyboard.press("Control+Shift+z")
    assert np.array_equal(masks_of(page)[NAME], after)
    assert rightmost(corners_of(page))[1] == pytest.approx(moved, abs=2)


def test_corners_are_added_and_removed(outlined):
    page = outlined
    before = masks_of(page)[NAME]
    corners = corners_of(page)
    start, end = max(
        zip(corners, [*corners[1:], corners[0]], strict=True), key=lambda side: np.hypot(*np.subtract(*side))
    )
    middle = tuple(int(each) for each in np.mean([start, end], axis=0))
    page.page.mouse.dblclick(*page.at(*middle))
    assert len(corners_of(page)) == len(corners) + 1
    assert np.array_equal(masks_of(page)[NAME], before)  # until the corner moves
    page.page.click("#undo")
    assert len(corners_of(page)) == len(corners)
    assert np.array_equal(masks_of(page)[NAME], before)
    page.page.mouse.dblclick(*page.at(*middle))
    drag(page, middle, (205, 190))  # towards the middle of the object
    edited(page, 0)
    dented = masks_of(page)[NAME]
    assert np.count_nonzero(dented) < np.count_nonzero(before)
    assert differs_only_within(before, dented, [start, middle, end, (205, 190)])
    page.click(205, 190, button="right")
    page.wait(f"{AREA} !== {np.count_nonzero(dented)}")
    filled = masks_of(page)[NAME]
    assert len(corners_of(page)) == len(corners)
    assert differs_only_within(before, filled, [start, end])
    assert np.count_nonzero(filled ^ before) < np.count_nonzero(dented ^ before) / 4
    page.page.keyboard.press("Control+z")  # each change is one step
    assert np.array_equal(masks_of(page)[NAME], dented)
    page.page.keyboard.press("Control+z")
    assert np.array_equal(masks_of(page)[NAME], before)


@pytest.mark.slow
def test_corners_are_moved_and_removed_by_the_keyboard(outlined):
    page = outlined
    keyboard = page.page.keyboard
    before = masks_of(page)[NAME]
    corners = corners_of(page)
    previous, corner, following = rightmost(corners)
    while tuple(next_corner(page)[2:]) != corner:
        pass
    keyboard.down("ArrowRight")
    for _ in range(4):
        keyboard.down("ArrowRight")  # a key that is held repeats, and stays one step for undo
    assert page.page.evaluate(AREA) is None
    keyboard.up("ArrowRight")
    edited(page, 0)
    after = masks_of(page)[NAME]
    moved = (round(corner[0] + 50 / scale_of(page)), corner[1])
    assert rightmost(corners_of(page))[1] == pytest.approx(moved, abs=1)
    assert after[corner[1], (corner[0] + moved[0]) // 2]
    assert differs_only_within(before, after, [previous, corner, following, moved])
    now = rightmost(corners_of(page))[1]
    while tuple(next_corner(page)[2:]) != now:
        pass
    keyboard.press("Delete")
    page.wait(f"{AREA} < {np.count_nonzero(after)}")
    assert len(corners_of(page)) == len(corners) - 1
    keyboard.press("Control+z")
    keyboard.press("Control+z")
    assert np.array_equal(masks_of(page)[NAME], before)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["key", "button"])
def test_a_corner_is_added_without_a_pointer(outlined, way):
    page = outlined
    before = masks_of(page)[NAME]
    corners = corners_of(page)
    page.page.keyboard.press("Escape")
    assert page.page.is_disabled("#corner-add")
    number, _, *first = next_corner(page)
    following = corners[number % len(corners)]
    if way == "key":
        page.page.keyboard.press("i")
    else:
        page.page.click("#corner-add")
    added = re.match(r"Corner (\d+) of (\d+): (-?\d+), (-?\d+)", page.page.evaluate(SAID))
    assert [int(each) for each in added.groups()[:2]] == [number + 1, len(corners) + 1]
    middle = np.mean([first, following], axis=0)
    assert [int(each) for each in added.groups()[2:]] == pytest.approx(list(middle), abs=1)
    assert np.array_equal(masks_of(page)[NAME], before)  # until the corner moves
    page.page.click("#undo")
    assert len(corners_of(page)) == len(corners)


@pytest.mark.slow
def test_the_outline_has_as_many_corners_as_the_user_wants(outlined):
    page = outlined
    before = masks_of(page)[NAME]

    def outline(detail):
        page.page.evaluate(
            "(value) => { const e = document.getElementById('corner-detail'); e.value = value;"
            " e.dispatchEvent(new Event('input')); }",
            detail,
        )
        return len(corners_of(page)), float(page.page.inner_text("#corner-tolerance").removesuffix(" px"))

    (fewest, coarse), (default, middle), (most, fine) = outline(-3), outline(0), outline(2)
    assert fewest < default < most
    assert coarse == pytest.approx(8 * middle, rel=0.05)
    assert 1 <= fine < middle
    assert np.array_equal(masks_of(page)[NAME], before)
    outline(-3)
    previous, corner, following = rightmost(corners_of(page))
    moved = (corner[0] + 60, corner[1])
    drag(page, corner, moved)
    edited(page, 0)
    after = masks_of(page)[NAME]
    assert after[corner[1], corner[0] + 20]
    kept = ~(before ^ after)
    kept[:, min(previous[0], corner[0], following[0]) - 20 :] = True
    assert kept.all()


@pytest.mark.slow
def test_the_arrow_keys_leave_the_cursor_for_the_corners(outlined):
    page = outlined
    keyboard = page.page.keyboard
    corners = corners_of(page)
    keyboard.press("a")
    page.page.focus("#canvas")
    keyboard.press("Enter")
    assert "Cursor in the middle" in page.page.evaluate(SAID)
    keyboard.press("v")
    assert len(corners_of(page)) == len(corners)
    keyboard.press("ArrowUp")
    edited(page, 0)


@pytest.mark.slow
def test_a_move_by_arrow_keys_is_kept_when_the_user_goes_to_another_image(outlined, images):
    page = outlined
    keyboard = page.page.keyboard
    before = masks_of(page)[NAME]
    page.open(images / "coffee.jpg")
    keyboard.press("PageUp")
    page.opened("shapes.jpg")
    page.settled()
    previous, corner, following = rightmost(corners_of(page))
    while tuple(next_corner(page)[2:]) != corner:
        pass
    keyboard.down("ArrowRight")
    keyboard.down("ArrowRight")
    keyboard.press("PageDown")  # while the arrow key is still down
    keyboard.up("ArrowRight")
    page.opened("coffee.jpg")
    assert page.page.evaluate("tritonSam.scene.objects.length") == 0
    keyboard.press("PageUp")
    page.opened("shapes.jpg")
    page.settled()
    after = masks_of(page)[NAME]
    moved = (round(corner[0] + 20 / scale_of(page)), corner[1])
    assert after[corner[1], corner[0] + 8]
    assert differs_only_within(before, after, [previous, corner, following, moved])


@pytest.mark.slow
def test_an_outline_that_failed_is_tried_again(outlined):
    page = outlined
    corners_of(page)
    page.page.route("**/segment", lambda route: route.abort())  # early: it takes effect a little later
    page.page.keyboard.press("a")
    page.click(200, 200)
    page.settled()
    page.page.keyboard.press("v")
    page.wait("document.getElementById('banner').textContent.includes('corners cannot be shown')")
    page.page.unroute("**/segment")
    page.faults.clear()  # the browser reports the request that was given up
    page.click(200, 200)
    assert len(corners_of(page)) >= 3


@pytest.mark.slow
def test_corners_are_moved_added_and_removed_by_touch(browser, service, images):
    from support.running_browser import open_phone

    with open_phone(browser, service.url) as page:
        page.open(images / "shapes.jpg")
        page.page.locator("[data-tool=polygon]").tap()
        for corner in [(150, 100), (650, 100), (650, 500), (150, 500), (150, 100)]:
            page.page.touchscreen.tap(*page.at(*corner))
        edited(page, 0)
        page.page.locator("[data-tool=corners]").tap()
        assert page.page.locator("#corner-remove").bounding_box()["height"] >= 44
        square = masks_of(page)[NAME]
        count = len(corners_of(page))
        page.page.touchscreen.tap(*page.at(400, 100))
        page.page.touchscreen.tap(*page.at(400, 100))
        touch(page, (400, 100), (400, 300))
        page.wait(f"{AREA} < {np.count_nonzero(square)}")
        dented = masks_of(page)[NAME]
        assert not dented[200, 400]
        assert differs_only_within(square, dented, [(150, 100), (650, 300)])
        page.page.touchscreen.tap(*page.at(400, 300))
        page.page.locator("#corner-remove").tap()
        page.wait(f"{AREA} > {np.count_nonzero(dented)}")
        assert len(corners_of(page)) == count
        assert masks_of(page)[NAME][200, 400]


def touch(page, start, end):
    """Drag with a finger."""
    client = page.page.context.new_cdp_session(page.page)
    places = np.linspace(page.at(*start), page.at(*end), 6)
    for kind, points in [("touchStart", places[:1]), *(("touchMove", [each]) for each in places[1:]), ("touchEnd", [])]:
        touched = [{"x": float(x), "y": float(y)} for x, y in points]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})
