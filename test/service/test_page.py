"""The page in headless Chromium, over a real service and a real Triton."""

import io
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_sam import SAM2TritonClient
from triton_sam.masks.rle import rle_to_mask
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

pytest.importorskip("fastapi")
from support.conditions import settled, wait_until
from support.running_browser import NARROW, SWITCHED_ON, WIDE, Page, open_phone

LAYOUT_FAULTS = (Path(__file__).parents[1] / "data" / "layout_faults.js").read_text(encoding="utf-8")
DECODERS_DIFFER = 3
"""Levels of 255 by which Chromium and Pillow may differ when they decode the same JPEG."""


def test_the_page_says_that_the_model_is_the_demo_model(page):
    assert page.page.inner_text("#demo") == "demo model, official weights: triton-sam setup"
    assert page.page.inner_text("#model") == "sam2 (demo)"
    page.page.route("**/v1/models", lambda route: route.fulfill(json={"models": [{"name": "sam2", "demo": False}]}))
    page.page.reload()
    page.ready()
    assert page.page.is_hidden("#demo")


def test_a_click_gives_a_mask_and_undo_takes_it_back(shapes):
    bare = shapes.pixel(20, 580)
    shapes.click(200, 180)
    shapes.settled()
    assert shapes.facts()[0].startswith("1 point · score 0.")
    assert "ms" in shapes.page.inner_text("#click-info")
    painted = shapes.page.evaluate("tritonSam.stats.clicks")
    assert len(painted) == 1
    shapes.click(300, 60, button="right")
    shapes.settled()
    assert shapes.facts()[0].startswith("2 points")
    points = "tritonSam.scene.active.points.map((point) => point.label)"
    assert shapes.page.evaluate(points) == [1, 0]
    shapes.page.keyboard.press("Control+z")
    assert shapes.page.evaluate(points) == [1]
    shapes.page.click("#undo")
    assert shapes.page.evaluate("tritonSam.scene.objects.length") == 0
    shapes.wait("document.getElementById('undo').disabled")
    shapes.page.keyboard.press("Control+Shift+z")
    shapes.page.click("#redo")
    assert shapes.page.evaluate(points) == [1, 0]
    shapes.settled()
    shapes.page.click("#clear")
    assert shapes.facts() == []
    assert bare[3] == 255


def test_the_mask_on_the_screen_is_the_mask(shapes, service_triton, images):
    """Colours change where the Python client says that there is foreground, and nowhere else."""
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        mask = client.segment([[200, 180]], [1], cleanup=SWITCHED_ON)[0].mask
    shapes.page.uncheck("#hover")
    shapes.page.fill("#opacity", "100")
    # Away from its edge, where outlines lie, and from the point.
    blocks = mask[:600, :800].reshape(30, 20, 40, 20).mean(axis=(1, 3))
    places = [(int(column) * 20 + 10, int(row) * 20 + 10) for row, column in np.argwhere((blocks == 0) | (blocks == 1))]
    places = [(x, y) for x, y in places if abs(x - 200) + abs(y - 180) > 60][::7]
    before = [shapes.pixel(x, y) for x, y in places]
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.wait_for_timeout(300)  # a frame
    wrong = [
        place
        for place, old in zip(places, before, strict=True)
        if (shapes.pixel(*place) != old) != bool(mask[place[1], place[0]])
    ]
    assert len(places) > 30
    assert len(wrong) <= len(places) // 20, wrong


def test_a_box_by_dragging_and_several_objects(shapes):
    shapes.page.mouse.move(*shapes.at(430, 60))
    shapes.page.mouse.down()
    shapes.page.mouse.move(*shapes.at(600, 150), steps=4)
    shapes.page.mouse.move(*shapes.at(700, 230), steps=4)
    shapes.page.mouse.up()
    shapes.settled()
    assert shapes.facts()[0].startswith("box · score")
    box = shapes.page.evaluate("tritonSam.scene.active.box")
    assert box == pytest.approx([430, 60, 700, 230], abs=2)
    shapes.page.keyboard.press("n")
    shapes.click(620, 420)
    shapes.settled()
    assert len(shapes.facts()) == 2
    shapes.page.locator(".object input:not(.label)").nth(1).fill("star")
    shapes.page.keyboard.press("Enter")
    assert shapes.page.evaluate("tritonSam.scene.objects[1].name") == "star"
    shapes.page.locator('[data-role="bin"]').nth(0).click()
    assert len(shapes.facts()) == 1


def drag(page, start, by):
    page.page.mouse.move(*start)
    page.page.mouse.down()
    page.page.mouse.move(start[0] + by[0], start[1] + by[1], steps=4)
    page.page.mouse.up()


def test_a_second_box_is_another_object(shapes):
    drag(shapes, shapes.at(430, 60), (120, 80))
    drag(shapes, shapes.at(100, 100), (120, 80))
    shapes.settled()
    boxes = shapes.page.evaluate("tritonSam.scene.objects.map((object) => object.box)")
    assert [box[:2] for box in boxes] == [pytest.approx([430, 60], abs=2), pytest.approx([100, 100], abs=2)]
    shapes.page.click("#undo")
    assert shapes.page.evaluate("tritonSam.scene.objects.length") == 1


def test_a_trembling_hand_clicks_and_a_narrow_drag_is_nothing(shapes):
    """Lengths are in pixels of the screen: a move of 7 is a click, and a box needs 8 on each side."""
    drag(shapes, shapes.at(200, 180), (7, 0))
    shapes.settled()
    prompt = "[tritonSam.scene.active.points.length, tritonSam.scene.active.box]"
    assert shapes.page.evaluate(prompt) == [1, None]
    drag(shapes, shapes.at(430, 60), (100, 6))
    assert shapes.page.evaluate(prompt) == [1, None]


def test_alt_and_the_tool_make_background_points(shapes):
    shapes.page.keyboard.down("Alt")
    shapes.click(300, 60)
    shapes.page.keyboard.up("Alt")
    shapes.page.keyboard.press("d")
    shapes.click(310, 70)
    shapes.page.keyboard.press("a")
    shapes.click(200, 180)
    shapes.settled()
    assert shapes.page.evaluate("tritonSam.scene.active.points.map((point) => point.label)") == [0, 0, 1]


def test_three_candidates(shapes):
    shapes.page.keyboard.press("m")
    shapes.click(200, 180)
    shapes.settled()
    chips = shapes.page.locator(".candidates button")
    assert chips.count() == 3
    shapes.page.keyboard.press("1")
    assert shapes.page.evaluate("tritonSam.choiceOf(tritonSam.scene.active)") == 0
    chips.nth(1).click()
    assert shapes.page.evaluate("tritonSam.choiceOf(tritonSam.scene.active)") == 1
    shapes.page.click('[data-multi="0"]')
    shapes.settled()
    assert shapes.page.locator(".candidates button").count() == 0


def test_downloads_equal_the_api(shapes, service_triton, images):
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        points = [[200, 180], [620, 420]]
        shapes.click(*points[0])
        shapes.settled()
        shapes.page.keyboard.press("n")
        shapes.click(*points[1])
        shapes.settled()
        exact = shapes.page.evaluate("tritonSam.scene.objects.map((o) => [o.points[0].x, o.points[0].y])")
        masks = [client.segment([point], [1], cleanup=SWITCHED_ON)[0].mask for point in exact]
    name, content = shapes.download("#save-mask")
    assert name == "shapes-object-2.png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))) == 255, masks[1])
    name, content = shapes.download("#save-coco")
    coco = json.loads(content)
    assert name == "shapes-coco.json"
    assert coco["images"] == [{"id": 1, "file_name": "shapes.jpg", "width": 800, "height": 600}]
    assert [category["name"] for category in coco["categories"]] == ["Object 1", "Object 2"]
    for annotation, mask in zip(coco["annotations"], masks, strict=True):
        np.testing.assert_array_equal(rle_to_mask(annotation["segmentation"]), mask)
        assert annotation["area"] == mask.sum()
    plain = np.asarray(Image.open(images / "shapes.jpg").convert("RGB")).astype(int)
    name, content = shapes.download("#save-overlay")
    overlay = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    changed = np.abs(overlay - plain).max(axis=2) > DECODERS_DIFFER
    assert name == "shapes-overlay.png"
    np.testing.assert_array_equal(changed, masks[0] | masks[1])
    name, content = shapes.download("#save-cutout")
    rows, columns = np.nonzero(masks[1])
    part = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
    cutout = np.asarray(Image.open(io.BytesIO(content)))
    assert name == "shapes-object-2-cutout.png"
    np.testing.assert_array_equal(cutout[..., 3] == 255, masks[1][part])
    difference = np.abs(cutout[..., :3].astype(int) - plain[part])[masks[1][part]]
    assert difference.max() <= DECODERS_DIFFER


def test_downloads_leave_out_hidden_objects(shapes):
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.keyboard.press("n")
    shapes.click(620, 420)
    shapes.settled()
    shapes.page.locator('[data-role="eye"]').nth(1).click()
    coco = json.loads(shapes.download("#save-coco")[1])
    assert [category["name"] for category in coco["categories"]] == ["Object 1"]
    assert len(coco["annotations"]) == 1
    for button in ("#save-mask", "#save-cutout"):
        assert shapes.page.locator(button).is_disabled()
    shapes.page.locator('[data-role="eye"]').nth(0).click()
    for button in ("#save-overlay", "#save-coco"):
        assert shapes.page.locator(button).is_disabled()


def test_hovering_costs_one_decode_for_each_mask_and_leaves_nothing_behind(shapes, service, service_triton):
    triton = Transport(parse_url(service_triton.http_url))

    def decodes():
        return int(triton.statistics("sam2_decoder")["inference_count"])

    shapes.click(620, 420)  # a mask that refers to the point: the preview adds to it
    shapes.settled()
    before = settled(decodes)
    for step in range(120):
        shapes.page.mouse.move(*shapes.at(100 + 4 * step, 120 + 2 * step))
    wait_until(lambda: _idle(service))
    shapes.wait("tritonSam.stats.hover.length > 0")
    settled(decodes)
    painted = shapes.page.evaluate("tritonSam.stats.hover.length")
    assert decodes() - before <= painted + 2
    assert shapes.page.evaluate("tritonSam.preview.path instanceof Path2D")
    at_rest = decodes()
    time.sleep(1.0)
    assert decodes() == at_rest
    shapes.page.mouse.move(5, 5)
    shapes.wait("tritonSam.preview === null")
    triton.close()


def _idle(service):
    """Whether no client of the service has anything at Triton or waiting."""
    clients = service.app.state.engine._clients.values()
    return all(len(client._dispatcher._lanes) == 0 for client in clients)


def _hovers_replaced(service):
    """How many previews were cancelled or gave way to a newer one."""
    labels = {"lane": "hover", "outcome": "replaced"}
    name = "triton_sam_service_live_predictions_total"
    return service.app.state.engine.metrics.registry.get_sample_value(name, labels) or 0


def test_the_mouse_that_leaves_cancels_what_it_asked_for(shapes, service, service_triton):
    before = _hovers_replaced(service)
    os.kill(service_triton.pid, signal.SIGSTOP)  # no answer comes before the mouse has left
    try:
        for step in range(10):
            shapes.page.mouse.move(*shapes.at(100 + 40 * step, 120 + 20 * step))
        wait_until(lambda: not _idle(service))
        shapes.page.mouse.move(5, 5)
        wait_until(lambda: _idle(service))
        wait_until(lambda: _hovers_replaced(service) > before)
    finally:
        os.kill(service_triton.pid, signal.SIGCONT)
    assert shapes.page.evaluate("tritonSam.preview") is None


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
    assert shapes.page.evaluate("tritonSam.scene.objects.length") == 0
    shapes.click(200, 180)
    shapes.settled()
    point = shapes.page.evaluate("tritonSam.scene.active.points[0]")
    assert (point["x"], point["y"]) == pytest.approx((200, 180), abs=1)


def test_a_sample_a_paste_and_a_file_that_is_no_picture(page, images, tmp_path):
    page.page.click('[data-sample="coffee.jpg"]')
    page.opened("coffee.jpg")
    page.page.evaluate(
        """async () => { const blob = await (await fetch("/static/samples/shapes.jpg")).blob();
        const data = new DataTransfer(); data.items.add(new File([blob], "pasted.jpg", {type: "image/jpeg"}));
        dispatchEvent(new ClipboardEvent("paste", {clipboardData: data})); }"""
    )
    page.opened("pasted.jpg")
    text = tmp_path / "text.png"
    text.write_text("no picture")
    page.page.set_input_files("#file", text)
    page.page.wait_for_selector("#banner:not([hidden])")
    assert "text.png: unsupported or damaged image" in page.page.inner_text("#banner")
    assert page.page.evaluate("tritonSam.image.name") == "pasted.jpg"
    page.faults.clear()  # the browser reports the 415


def test_a_tiff_that_browsers_cannot_show(page, tmp_path):
    path = tmp_path / "cells.tif"
    Image.fromarray((np.arange(300 * 200, dtype=np.uint32) % 65000).astype(np.uint16).reshape(200, 300)).save(path)
    page.open(path)
    page.click(150, 100)
    page.settled()
    assert page.facts()[0].startswith("1 point")


def test_touch(browser, service, images):
    with open_phone(browser, service.url) as page:
        page.open(images / "shapes.jpg")
        page.page.touchscreen.tap(*page.at(200, 180))
        page.settled()
        assert page.facts()[0].startswith("1 point")
        assert page.page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280x800", "390x844"])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_nothing_overlaps_and_everything_can_be_read(browser, service, images, viewport, theme):
    context = browser.new_context(viewport=viewport, color_scheme=theme)
    page = Page(context.new_page())
    page.page.goto(service.url)
    page.ready()
    assert page.page.evaluate(LAYOUT_FAULTS) == []
    page.open(images / "shapes.jpg")
    page.page.keyboard.press("m")
    page.click(200, 180)
    page.settled()
    assert page.page.evaluate(LAYOUT_FAULTS) == []
    assert page.page.evaluate("document.documentElement.dataset.theme") == theme
    page.page.click("#theme")
    assert page.page.evaluate("document.documentElement.dataset.theme") != theme
    assert page.faults == []
    context.close()
