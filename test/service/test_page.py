"""A person works on one image on the page: headless Chromium, a real service, and a real Triton."""

import io
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.conditions import settled, wait_until
from support.running_browser import SWITCHED_ON, drag
from support.session_requests import metrics

from triton_sam import Cleanup, SAM2TritonClient
from triton_sam.masks.rle import rle_to_mask

DECODERS_DIFFER = 3
"""Levels of 255 by which Chromium and Pillow may differ when they decode the same JPEG."""
POINTS = "tritonSam.scene.active.points.map(({x, y, label}) => [Math.round(x), Math.round(y), label])"
PROMPT = "[tritonSam.scene.active.points.length, tritonSam.scene.active.box]"
BOXES = "tritonSam.scene.objects.map((object) => object.box)"
CHOICE = "tritonSam.masks.choiceOf(tritonSam.scene.active)"
COUNTS = "tritonSam.scene.objects.map((object) => tritonSam.masks.resultOf(object).scores.length)"
FOCUSED = "document.activeElement"
KEY_NAMES = {
    "pageup": "page up",
    "pagedown": "page down",
    "arrowleft": "←",
    "arrowright": "→",
    "arrowup": "↑",
    "arrowdown": "↓",
    "escape": "esc",
}
"""Keys whose names on the page are others."""


def labels(page):
    return [label for _, _, label in page.page.evaluate(POINTS)]


def saved(page):
    """Return the mask that the page writes for the active object."""
    return np.asarray(Image.open(io.BytesIO(page.download("#save-mask")[1]))) == 255


def test_every_key_is_in_the_list_of_keys(page):
    keys, shown = page.page.evaluate("""async () => [
        Object.keys((await import("/static/keys.js")).ACTS).flatMap((keys) => keys.split(/(?<=.)\\+/)),
        [...document.querySelectorAll("#key-list kbd")].map((key) => key.textContent.toLowerCase())]""")
    assert len(set(keys)) > 35
    same = {"=", "y", "backspace"}  # + without Shift on many keyboards, and second keys
    assert {KEY_NAMES.get(key, key) for key in keys} - same <= set(shown)


def test_a_first_visit(page, images):
    """The demo model says what it is, hints lead to the first object, and all times are told alike."""
    assert page.page.inner_text("#demo") == "demo model, official weights: triton-sam setup sam2"
    assert page.page.inner_text("#model") == "sam2 (demo)"
    assert page.page.is_hidden(".panel")
    assert page.page.is_hidden("#camera")  # a mouse has no camera
    assert page.page.is_hidden("#choose-url")  # this service opens no addresses
    page.page.keyboard.press("u")
    assert page.page.is_hidden("#url-dialog")
    page.open(images / "shapes.jpg")
    assert page.page.inner_text("#hint") == "Click on an object in the image, or drag a box around it."
    page.page.mouse.move(*page.at(300, 300))
    page.page.mouse.move(*page.at(200, 180), steps=3)
    page.wait("document.getElementById('hover-info').textContent !== ''")
    page.click(200, 180)
    page.settled()
    assert page.page.inner_text("#hint").startswith("Right-click a part to exclude it.")
    page.wait("document.getElementById('service-info').textContent !== ''")
    told = [page.page.inner_text(f"#{name}-info") for name in ("hover", "service", "click")]
    assert [re.sub(r"\d+", "N", each) for each in told] == ["preview: N ms", "service: N ms", "last click: N ms"]
    assert len(page.page.evaluate("tritonSam.stats.clicks")) == 1
    page.page.route("**/v1/models", lambda route: route.fulfill(json={"models": [{"name": "sam2", "demo": False}]}))
    page.page.reload()
    page.ready()
    assert page.page.is_hidden("#demo")


def test_clicks_are_taken_back_moved_and_removed(shapes):
    page, keys = shapes, shapes.page.keyboard
    page.click(200, 180)
    page.settled()
    assert page.facts()[0].startswith("1 point · score 0.")
    page.click(300, 60, button="right")
    page.settled()
    assert page.facts()[0].startswith("2 points")
    assert labels(page) == [1, 0]
    keys.press("Control+z")
    page.page.click("#undo")
    assert page.objects() == 0
    page.wait("document.getElementById('undo').disabled")
    keys.press("Control+Shift+z")
    page.page.click("#redo")
    assert labels(page) == [1, 0]
    page.settled()
    page.page.click("#clear")
    assert page.facts() == []

    keys.down("Alt")
    page.click(300, 60)
    keys.up("Alt")
    keys.press("d")
    page.click(310, 90)
    keys.press("a")
    page.click(200, 180)
    page.settled()
    assert labels(page) == [0, 0, 1]
    drag(page, (200, 180), (180, 200))
    page.settled()
    assert page.page.evaluate(POINTS)[2] == [pytest.approx(180, abs=1), pytest.approx(200, abs=1), 1]
    assert page.page.evaluate("tritonSam.scene.active.box") is None
    page.click(300, 60, button="right")  # a point that is there is removed
    assert labels(page) == [0, 1]
    keys.press("d")
    page.click(310, 90)
    assert labels(page) == [1]


def test_boxes_and_objects_have_names_and_are_deleted(shapes):
    page = shapes
    page.page.mouse.move(*page.at(200, 180))
    page.page.mouse.down()
    x, y = page.at(200, 180)
    page.page.mouse.move(x + 7, y, steps=4)  # a trembling hand
    page.page.mouse.up()
    page.settled()
    assert page.page.evaluate(PROMPT) == [1, None]
    page.page.mouse.move(*page.at(430, 60))
    page.page.mouse.down()
    x, y = page.at(430, 60)
    page.page.mouse.move(x + 100, y + 6, steps=4)  # too narrow for a box
    page.page.mouse.up()
    assert page.page.evaluate(PROMPT) == [1, None]
    page.page.keyboard.press("n")
    drag(page, (430, 60), (700, 230))
    page.settled()
    assert page.facts()[1].startswith("box · score")
    drag(page, (100, 300), (250, 500))  # a second box is another object
    page.settled()
    boxes = page.page.evaluate(BOXES)
    assert boxes[1:] == [pytest.approx([430, 60, 700, 230], abs=2), pytest.approx([100, 300, 250, 500], abs=2)]
    drag(page, (200, 180), (260, 240))  # the point belongs to an object that is not active
    page.settled()
    assert len(page.facts()) == 4
    page.page.locator(".object input:not(.label)").nth(1).fill("star")
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("tritonSam.scene.objects[1].name") == "star"
    bins = page.page.locator('[data-role="bin"]')
    bins.nth(0).click()
    assert len(page.facts()) == 3
    assert page.page.evaluate(f"{FOCUSED}.id") == "canvas"
    page.page.click("#undo")
    assert len(page.facts()) == 4
    bins.nth(2).focus()
    for left in ("Delete Object 4", "Delete star", "Delete Object 1"):  # the focus stays in the list
        page.page.keyboard.press("Enter")
        assert page.page.evaluate(f"{FOCUSED}.getAttribute('aria-label')") == left
    page.page.keyboard.press("Enter")
    assert (len(page.facts()), page.page.evaluate(f"{FOCUSED}.id")) == (0, "canvas")


def test_candidates_belong_to_an_object(two_objects):
    page = two_objects
    first, second = page.facts()
    assert "px" not in first  # only the active object shows its area
    area, width, height, x, y = map(int, re.search(r"≈ (\d+) px · (\d+) . (\d+) at (\d+), (\d+)", second).groups())
    exact = json.loads(page.download("#save-coco")[1])["annotations"][1]
    assert area == pytest.approx(exact["area"], rel=0.05)
    assert [x, y, width, height] == pytest.approx(exact["bbox"], abs=12)  # a cell of the small mask has 3 pixels
    page.page.keyboard.press("m")
    page.settled()
    assert page.page.evaluate(COUNTS) == [1, 3]
    assert page.facts()[0] == first
    drawn = """[...document.querySelectorAll('.candidates canvas')].map((canvas) =>
        new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size > 20)"""
    page.wait(f"{drawn}.join() === 'true,true,true'")
    chips = page.page.locator(".candidates button")
    page.page.keyboard.press("1")
    assert page.page.evaluate(CHOICE) == 0
    chips.nth(1).focus()
    page.page.keyboard.press("Enter")
    page.wait(f"{CHOICE} === 1")
    assert page.page.evaluate(f"[...{FOCUSED}.parentElement.children].indexOf({FOCUSED})") == 1
    assert chips.evaluate_all("all => all.map((chip) => chip.getAttribute('aria-checked'))").count("true") == 1
    chips.nth(2).click()
    assert page.page.evaluate(CHOICE) == 2
    page.page.locator(".facts").nth(0).click()
    assert page.page.locator('[data-multi="0"]').get_attribute("aria-checked") == "true"
    page.page.keyboard.press("n")
    assert page.page.evaluate("tritonSam.scene.active.multimask") is True  # the last choice holds for new objects
    page.page.locator(".facts").nth(1).click()
    page.page.click('[data-multi="0"]')
    page.settled()
    assert chips.count() == 0


def test_the_mask_on_the_screen_is_the_mask(shapes, service_triton, images):
    """Colours change where the Python client says that there is foreground, and nowhere else."""
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        mask = client.segment([[200, 180]], [1], cleanup=SWITCHED_ON)[0].mask
    shapes.uncheck("#hover")
    shapes.page.fill("#opacity", "100")
    # Away from its edge, where outlines lie, and from the point.
    blocks = mask[:600, :800].reshape(30, 20, 40, 20).mean(axis=(1, 3))
    places = [(int(column) * 20 + 10, int(row) * 20 + 10) for row, column in np.argwhere((blocks == 0) | (blocks == 1))]
    places = [(x, y) for x, y in places if abs(x - 200) + abs(y - 180) > 60][::7]
    before = [shapes.pixel(x, y) for x, y in places]
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    wrong = [
        place
        for place, old in zip(places, before, strict=True)
        if (shapes.pixel(*place) != old) != bool(mask[place[1], place[0]])
    ]
    assert len(places) > 30
    assert len(wrong) <= len(places) // 20, wrong


@pytest.mark.slow
def test_clean_up_and_threshold_change_masks_as_in_the_client(shapes, service_triton, images):
    """A click on the ground gives a mask of several parts and with holes."""
    page = shapes
    page.click(20, 580)
    page.settled()
    point = page.page.evaluate("[[tritonSam.scene.active.points[0].x, tritonSam.scene.active.points[0].y]]")
    found = []
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        for is_cleaned, area, threshold, cleanup in (
            (True, None, 0, SWITCHED_ON),
            (True, None, 3, replace(SWITCHED_ON, mask_threshold=3)),
            (True, "256", 0, replace(SWITCHED_ON, max_hole_area=256, max_sprinkle_area=256)),
            (True, "0", 0, Cleanup(keep_clicked=True)),
            (False, None, 0, Cleanup()),
            (False, None, -2.5, Cleanup(mask_threshold=-2.5)),
        ):
            page.unfold()
            page.page.set_checked("#cleanup", is_cleaned)
            assert page.page.is_disabled("#cleanup-area") is not is_cleaned
            if area:
                page.page.fill("#cleanup-area", area)
            page.page.fill("#threshold", str(threshold))
            page.settled()
            found.append(saved(page))
            np.testing.assert_array_equal(found[-1], client.segment(point, [1], cleanup=cleanup)[0].mask)
    assert (found[0] != found[4]).any()
    assert (found[2] != found[3]).any()
    assert found[1].sum() < found[0].sum()
    assert found[5].sum() > found[4].sum()


@pytest.mark.slow
def test_downloads_equal_the_api_and_leave_out_hidden_objects(two_objects, service_triton, images):
    page = two_objects
    exact = page.page.evaluate("tritonSam.scene.objects.map((o) => [o.points[0].x, o.points[0].y])")
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        masks = [client.segment([point], [1], cleanup=SWITCHED_ON)[0].mask for point in exact]
    name, content = page.download("#save-mask")
    assert name == "shapes-object-2.png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))) == 255, masks[1])
    name, content = page.download("#save-coco")
    coco = json.loads(content)
    assert name == "shapes-coco.json"
    assert coco["images"] == [{"id": 1, "file_name": "shapes.jpg", "width": 800, "height": 600}]
    assert [category["name"] for category in coco["categories"]] == ["Object 1", "Object 2"]
    for annotation, mask in zip(coco["annotations"], masks, strict=True):
        np.testing.assert_array_equal(rle_to_mask(annotation["segmentation"]), mask)
        assert annotation["area"] == mask.sum()
    plain = np.asarray(Image.open(images / "shapes.jpg").convert("RGB")).astype(int)
    name, content = page.download("#save-overlay")
    overlay = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    changed = np.abs(overlay - plain).max(axis=2) > DECODERS_DIFFER
    assert name == "shapes-overlay.png"
    np.testing.assert_array_equal(changed, masks[0] | masks[1])
    name, content = page.download("#save-cutout")
    rows, columns = np.nonzero(masks[1])
    part = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
    cutout = np.asarray(Image.open(io.BytesIO(content)))
    assert name == "shapes-object-2-cutout.png"
    np.testing.assert_array_equal(cutout[..., 3] == 255, masks[1][part])
    difference = np.abs(cutout[..., :3].astype(int) - plain[part])[masks[1][part]]
    assert difference.max() <= DECODERS_DIFFER

    page.page.locator('[data-role="eye"]').nth(1).click()
    coco = json.loads(page.download("#save-coco")[1])
    assert [category["name"] for category in coco["categories"]] == ["Object 1"]
    assert len(coco["annotations"]) == 1
    for button in ("#save-mask", "#save-cutout"):
        assert page.page.locator(button).is_hidden()
    page.page.locator('[data-role="eye"]').nth(0).click()
    for button in ("#save-overlay", "#save-coco"):
        assert page.page.locator(button).is_hidden()


def test_hovering_costs_one_decode_for_each_mask_and_leaves_nothing_behind(shapes, service, service_triton):
    def decodes():
        return metrics(service_triton)["decodes_total"]

    # The connection never counts as slow, so that one preview is under way at a time; of two, one may be dropped.
    shapes.page.evaluate("() => { const { parse } = JSON; JSON.parse = (text) => ({ ...parse(text), ms: 0 }); }")
    shapes.click(620, 420)  # a mask that refers to the point: the preview adds to it
    shapes.settled()
    before = settled(decodes)
    for step in range(120):
        shapes.page.mouse.move(*shapes.at(100 + 4 * step, 120 + 2 * step))
    wait_until(lambda: _idle(service))
    shapes.wait("tritonSam.stats.hover.length > 0")
    shapes.wait(f"tritonSam.stats.hover.length >= {settled(decodes) - before - 2}")
    assert shapes.page.evaluate("tritonSam.preview.path instanceof Path2D")
    at_rest = settled(decodes)
    time.sleep(1.0)
    assert decodes() <= at_rest + 1  # a busy Triton may count the last one late
    shapes.page.mouse.move(5, 5)
    shapes.wait("tritonSam.preview.path === null")


def _idle(service):
    """Whether no client of the service has anything at Triton or waiting."""
    clients = service.app.state.engine._clients.values()
    return all(not client._dispatcher._lanes._jobs for client in clients)


@pytest.mark.slow
def test_zoom_and_pan_keep_the_pixel_under_the_pointer(shapes):
    fitted = shapes.page.inner_text("#zoom-level")
    x, y = shapes.at(200, 180)
    shapes.page.mouse.move(x, y)
    shapes.page.mouse.wheel(0, -400)
    shapes.wait(f"document.getElementById('zoom-level').textContent !== {fitted!r}")
    assert shapes.at(200, 180) == pytest.approx([x, y], abs=1)
    shapes.page.keyboard.down("Space")
    shapes.page.mouse.down()
    shapes.page.mouse.move(x + 50, y + 30, steps=3)
    shapes.page.mouse.up()
    shapes.page.keyboard.up("Space")
    assert shapes.at(200, 180) == pytest.approx([x + 50, y + 30], abs=1)
    assert shapes.objects() == 0
    shapes.click(200, 180)
    shapes.settled()
    point = shapes.page.evaluate("tritonSam.scene.active.points[0]")
    assert (point["x"], point["y"]) == pytest.approx((200, 180), abs=1)
