"""Objects that are selected, and masks that are changed by hand: brush, eraser, polygons, joined and copied objects."""

import json

import numpy as np
import pytest
from support.running_browser import drag, edited, masks_of
from support.tools import filled, near

from triton_sam.masks.rle import rle_to_mask

NAMES = "tritonSam.scene.objects.map((object) => object.name)"


ACTIVE = "tritonSam.scene.active?.name"


@pytest.mark.slow
def test_brush_and_eraser_change_the_mask_at_full_size(two_objects):
    page = two_objects
    before = masks_of(page)
    page.page.keyboard.press("p")
    size = page.page.evaluate("Number(document.getElementById('brush-size').value)")
    page.page.keyboard.press("]")
    larger = page.page.evaluate("Number(document.getElementById('brush-size').value)")
    assert larger > size
    drag(page, (100, 560), (300, 560))
    edited(page, 1)
    after = masks_of(page)
    scale = (page.at(800, 0)[0] - page.at(0, 0)[0]) / 800
    radius = larger / 2 / scale  # test_page_modules.py compares the pixels of strokes
    line = after["Object 2"] & ~before["Object 2"]
    rows, columns = np.nonzero(line)
    edges = [columns.min(), columns.max() + 1, rows.min(), rows.max() + 1]
    assert edges == pytest.approx([100 - radius, 300 + radius, 560 - radius, 560 + radius], abs=2)
    assert np.array_equal(after["Object 1"], before["Object 1"])
    page.page.keyboard.press("x")
    drag(page, (80, 560), (320, 560))
    page.wait(f"tritonSam.masks.resultOf(tritonSam.scene.active).found.area !== {np.count_nonzero(after['Object 2'])}")
    erased = masks_of(page)["Object 2"]
    assert not (erased & line).any()
    assert not (erased & ~before["Object 2"]).any()
    page.page.keyboard.press("Control+z")  # each stroke is one step
    assert np.array_equal(masks_of(page)["Object 2"], after["Object 2"])
    page.page.keyboard.press("Control+z")
    assert np.array_equal(masks_of(page)["Object 2"], before["Object 2"])
    page.page.keyboard.press("n")
    page.page.keyboard.press("p")
    drag(page, (100, 500), (150, 500))  # the brush begins an object
    edited(page, 2)
    page.page.fill("#brush-size", "400")
    page.page.keyboard.press("x")
    drag(page, (100, 500), (150, 500))
    page.wait("document.getElementById('banner').textContent.includes('nothing would be left')")
    assert len(masks_of(page)) == 3


def test_what_is_begun_on_an_image_changes_no_other_image(shapes, images):
    page = shapes
    for key, name in (("p", "coffee.jpg"), ("a", "street.jpg"), ("b", "cells.jpg")):
        page.page.keyboard.press(key)
        page.page.mouse.move(*page.at(100, 100))
        page.page.mouse.down()
        page.page.mouse.move(*page.at(300, 300), steps=4)
        page.open(images / name)
        page.page.mouse.move(*page.at(200, 200))
        page.page.mouse.up()
        page.page.evaluate("tritonSam.edits.attempt(() => {})")  # after all earlier edits
        assert page.objects() == 0, key
    page.page.keyboard.press("Enter")  # the keyboard's cursor, and the first corner of a box
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("Boolean(tritonSam.cursor.corner)")
    page.open(images / "shapes.jpg")
    assert not page.page.evaluate("Boolean(tritonSam.cursor.corner)")
    page.page.keyboard.press("a")
    page.click(200, 180)
    page.settled()
    page.page.locator(".object .label").click()
    page.page.keyboard.type("blob")  # not confirmed
    page.open(images / "coffee.jpg")
    assert page.page.evaluate("tritonSam.pictures.shelf.labels") == ["blob"]


@pytest.mark.slow
def test_objects_are_selected_copied_joined_subtracted_sorted_and_coloured(two_objects):
    page = two_objects
    page.page.keyboard.down("Control")
    page.click(180, 150)
    page.click(20, 20)  # no mask
    page.page.keyboard.up("Control")
    assert page.page.evaluate(ACTIVE) == "Object 1"
    page.page.keyboard.press("s")
    page.click(620, 420)
    before = page.at(180, 150)
    drag(page, (180, 150), (240, 200))
    assert page.at(180, 150) != before  # the image moved, and nothing was added
    assert page.page.evaluate(ACTIVE) == "Object 2"
    masks = masks_of(page)
    assert len(masks) == 2
    page.unfold()
    page.page.click("#edit-duplicate")
    page.settled()
    assert page.page.evaluate(NAMES) == ["Object 1", "Object 2", "Object 2 copy"]
    page.page.locator(".facts").nth(0).click()
    page.page.select_option("#edit-other", label="Object 2")
    page.page.click("#edit-merge")
    edited(page, 0)
    assert page.page.evaluate(NAMES) == ["Object 1", "Object 2 copy"]
    both = masks["Object 1"] | masks["Object 2"]
    assert np.array_equal(masks_of(page)["Object 1"], both)
    page.page.click("#edit-subtract")
    page.wait("tritonSam.masks.resultOf(tritonSam.scene.active).found.area < " + str(np.count_nonzero(both)))
    now = masks_of(page)
    assert np.array_equal(now["Object 1"], masks["Object 1"] & ~masks["Object 2"])
    assert np.array_equal(now["Object 2 copy"], masks["Object 2"])
    page.page.click("#undo")
    assert np.array_equal(masks_of(page)["Object 1"], both)

    page.page.keyboard.press("Alt+ArrowDown")
    assert page.page.evaluate(NAMES) == ["Object 2 copy", "Object 1"]
    page.page.locator(".object .swatch").nth(0).drag_to(page.page.locator(".object .facts").nth(1))
    page.wait(f"{NAMES}.join() === 'Object 1,Object 2 copy'")
    page.page.fill("#edit-color", "#123456")
    assert page.page.evaluate("tritonSam.scene.active.color") == "#123456"
    page.page.click("#undo")
    page.page.click("#undo")
    assert page.page.evaluate(NAMES) == ["Object 2 copy", "Object 1"]

    page.page.locator(".facts").nth(1).click()
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.page.click("#copy-rle")
    page.wait("document.getElementById('edit-info').textContent.includes('RLE')")
    copied = json.loads(page.page.evaluate("navigator.clipboard.readText()"))
    expected = masks_of(page)["Object 1"]
    assert np.array_equal(rle_to_mask(copied["segmentation"]).astype(bool), expected)
    page.page.click("#copy-cutout")
    page.wait("document.getElementById('edit-info').textContent.includes('cut-out')")
    size = page.page.evaluate(
        """(async () => { const [item] = await navigator.clipboard.read();
        const image = await createImageBitmap(await item.getType("image/png"));
        return [image.width, image.height]; })()"""
    )
    rows, columns = np.nonzero(expected)
    assert size == [np.ptp(columns) + 1, np.ptp(rows) + 1]


CORNERS = [(100, 480), (300, 480), (300, 580), (100, 580)]


@pytest.mark.slow
def test_polygons_are_added_to_the_mask_and_taken_out(two_objects):
    page = two_objects
    before = masks_of(page)
    page.page.keyboard.press("n")
    page.page.keyboard.press("Shift+G")
    page.click(*CORNERS[0])
    page.wait("document.getElementById('banner').textContent.includes('has a mask')")
    page.page.keyboard.press("g")
    assert page.page.locator("#polygon-buttons").is_hidden()
    for corner in CORNERS:
        page.click(*corner)
    page.page.click("#undo")
    assert "3 corners" in page.page.inner_text("#polygon-hint")
    page.page.keyboard.press("Backspace")
    assert page.page.locator("#polygon-close").is_disabled()
    page.page.keyboard.press("Escape")
    assert page.page.locator("#polygon-buttons").is_hidden()
    page.page.click("#undo")  # the object that has begun
    page.page.locator(".facts").nth(1).click()
    for corner in CORNERS:
        page.click(*corner)
    page.page.keyboard.press("Tab")
    details = page.page.locator(".panel details").first
    before_keys = details.evaluate("(each) => each.open")
    for key, is_open in (("Space", not before_keys), ("Enter", before_keys)):
        details.locator("summary").press(key)
        assert details.evaluate("(each) => each.open") == is_open
    assert "4 corners" in page.page.inner_text("#polygon-hint")
    drag(page, (100, 580), (60, 590))  # a corner that is there is moved
    page.click(300, 480, button="right")
    assert "3 corners" in page.page.inner_text("#polygon-hint")
    page.click(*CORNERS[0])
    edited(page, 1)
    after = masks_of(page)
    triangle = filled([[CORNERS[0], CORNERS[2], (60, 590)]], before["Object 2"].shape)
    assert near(after["Object 2"], before["Object 2"] | triangle, 2)
    assert np.array_equal(after["Object 1"], before["Object 1"])
    page.page.keyboard.press("Shift+G")
    for corner in CORNERS:
        page.click(*corner)
    page.page.click("#polygon-close")
    page.wait(f"tritonSam.masks.resultOf(tritonSam.scene.active).found.area !== {np.count_nonzero(after['Object 2'])}")
    cut = masks_of(page)["Object 2"]
    assert not cut[485:575, 105:295].any()
    assert np.array_equal(cut[:478], after["Object 2"][:478])
    page.page.keyboard.press("Control+z")  # each polygon is one step
    assert np.array_equal(masks_of(page)["Object 2"], after["Object 2"])
    page.page.keyboard.press("Control+z")
    assert np.array_equal(masks_of(page)["Object 2"], before["Object 2"])
