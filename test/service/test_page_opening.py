"""Images that are opened on the page: in all ways, while others are on their way, and over a slow line."""

import re

import numpy as np
import pytest
from PIL import Image
from support.running_browser import slow_line

PART = "document.getElementById('busy-part')"
NAMES = "tritonSam.scene.objects.map((object) => object.name)"
READABLE = 4.5
"""The contrast that WCAG 2 asks for."""
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const style = getComputedStyle(document.getElementById("stage"), "::after");
  const light = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const back = ["black", "white"].map((under) => {
    canvas.fillStyle = under;
    canvas.fillRect(0, 0, 1, 1);
    return light(style.backgroundColor);
  });
  const text = light(style.color);
  return [style.content, Math.min(...back.map((each) => Math.max(each, text) / Math.min(each, text)))];
}"""
DROP = """async ([kind, name]) => {
  const data = new DataTransfer();
  data.items.add(new File([await (await fetch("/static/samples/shapes.jpg")).blob()], name, { type: "image/jpeg" }));
  const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  document.getElementById("stage").dispatchEvent(event);
}"""
PASTE = """async () => { const blob = await (await fetch("/static/samples/shapes.jpg")).blob();
  const data = new DataTransfer(); data.items.add(new File([blob], "pasted.jpg", {type: "image/jpeg"}));
  dispatchEvent(new ClipboardEvent("paste", {clipboardData: data})); }"""
OUTSIDE = """[...document.querySelectorAll(".sample")].filter((sample) => {
  const [box, card] = [sample, sample.closest(".card")].map((each) => each.getBoundingClientRect());
  return box.left < card.left || box.right > card.right || box.bottom > card.bottom;
}).length"""


def hold(page, path):
    """Keep the next request to such an address from being answered; returns the list that it comes into."""
    held = []

    def keep(route):  # Playwright takes no method of a list
        held.append(route)

    page.page.route(re.compile(path), keep, times=1)
    return held


def test_images_are_opened_in_all_ways(page, tmp_path):
    assert page.page.locator(".sample").count() == 4
    for size in ((390, 844), (844, 390), (1280, 800)):
        page.page.set_viewport_size({"width": size[0], "height": size[1]})
        assert page.page.evaluate(OUTSIDE) == 0
    page.page.click('[data-sample="cells.jpg"]')
    page.opened("cells.jpg")
    assert page.page.evaluate("[tritonSam.image.width, tritonSam.image.height]") == [800, 600]
    page.page.evaluate(PASTE)
    page.opened("pasted.jpg")
    for theme in ("dark", "light"):
        if page.page.evaluate("document.documentElement.dataset.theme") != theme:
            page.page.click("#theme")
        page.page.evaluate(DROP, ["dragover", f"{theme}.jpg"])
        content, contrast = page.page.evaluate(CONTRAST)
        assert content == '"Drop to open"'
        assert contrast >= READABLE
        page.page.evaluate(DROP, ["drop", f"{theme}.jpg"])
        page.wait("document.getElementById('busy').hidden")
        assert page.page.evaluate(CONTRAST)[0] == "none"
    pixels = (np.arange(300 * 200, dtype=np.uint32) % 65000).astype(np.uint16).reshape(200, 300)
    Image.fromarray(pixels).save(tmp_path / "cells.tif")  # browsers cannot show it
    page.open(tmp_path / "cells.tif")
    before = page.page.locator("#thumbs button").count()
    page.click(150, 100)
    page.settled()
    assert page.facts()[0].startswith("1 point")
    folder = tmp_path / "folder"
    folder.mkdir()
    Image.new("RGB", (30, 20)).save(folder / "plain.png")
    (folder / "notes.txt").write_text("nothing")
    page.page.set_input_files("#folder", folder)
    page.opened("plain.png")
    assert page.page.locator("#thumbs button").count() == before + 1
    text = tmp_path / "text.png"
    text.write_text("no picture")
    page.page.set_input_files("#file", text)
    assert "text.png: unsupported or damaged image" in page.banner()
    assert page.page.evaluate("tritonSam.image.name") == "plain.png"
    page.page.click("#banner-close")
    assert page.page.is_hidden("#banner")
    page.refused(415)
    page.page.evaluate("tritonSam.pictures.openUrl('https://host/folder%2Fphoto.jpg')")
    assert page.banner().startswith("photo.jpg: ")
    page.refused(403)


@pytest.mark.slow
def test_an_image_that_was_overtaken_does_not_come_back_and_names_are_not_lost(page, images, tmp_path):
    slow = tmp_path / "slow.tif"
    Image.new("RGB", (300, 200), "gray").save(slow)
    held = hold(page, "/preview")
    with page.page.expect_request(re.compile("/preview")):
        page.page.set_input_files("#file", slow)
    page.open(images / "shapes.jpg")
    page.page.click('[data-multi="1"]')
    page.click(200, 180)
    page.settled()
    held[0].continue_()
    page.page.wait_for_timeout(500)
    assert page.page.evaluate("tritonSam.image.name") == "shapes.jpg"
    assert page.facts()[0].startswith("1 point · score")

    page.page.keyboard.press("n")
    page.click(620, 420)
    page.settled()
    name = page.page.locator(".object input:not(.label)").nth(0)
    name.click()  # of the object that was not active until then
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("left ")
    page.page.evaluate("document.querySelector('[data-multi=\"0\"]').click()")  # asks for other masks
    page.page.keyboard.type("blo")
    page.settled()
    page.page.wait_for_timeout(100)
    page.page.keyboard.type("b")
    assert name.input_value() == "left blob"
    page.page.keyboard.press("Enter")
    assert page.page.evaluate(NAMES) == ["left blob", "Object 2"]

    held = hold(page, "/v1/images")
    with page.page.expect_request(re.compile("/v1/images")):
        page.page.dispatch_event("#model", "change")  # the page sends the image again
    page.open(images / "coffee.jpg")
    page.page.wait_for_timeout(200)
    assert "coffee.jpg" in page.page.inner_text("#picture-info")
    assert len(held) == 1
    page.click(300, 200)
    page.settled()


@pytest.mark.slow
def test_an_upload_says_how_far_it_is_and_can_be_cancelled(shapes, tmp_path, monkeypatch):
    page = shapes
    monkeypatch.setattr("triton_sam.service.bodies.SECOND_BYTES", 1)  # the service waits for the slow line
    noise = tmp_path / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    Image.fromarray(pixels).save(noise, compress_level=1)
    page.click(200, 180)
    page.settled()
    facts = page.facts()
    with slow_line(page):
        page.page.set_input_files("#file", noise)
        page.wait(f"!{PART}.hidden && {PART}.value > 0 && {PART}.value < 1")
        assert page.page.inner_text("#busy-text") == "Sending the image …"
        part = page.page.evaluate(f"{PART}.value")
        page.wait(f"{PART}.value > {part}")
        page.page.click("#busy-cancel")
        page.wait("document.getElementById('busy').hidden")
    assert page.page.is_hidden("#banner")
    assert page.page.evaluate("tritonSam.image.name") == "shapes.jpg"
    assert page.facts() == facts
    page.click(240, 200)  # the open image still takes clicks
    page.wait("tritonSam.scene.active.points.length === 2")
    page.open(noise)


def test_a_file_over_the_limit_is_not_sent(page, tmp_path):
    sent = []
    page.page.on("request", lambda request: sent.append(request.url))
    for name, mebibytes in (("photo.jpg", 64), ("clip.mp4", 512)):
        with (tmp_path / name).open("wb") as file:
            file.truncate((mebibytes << 20) + 1)
        page.page.set_input_files("#file", tmp_path / name)
        page.wait(f"document.getElementById('banner').textContent.includes('larger than {mebibytes} MiB')")
    assert not [url for url in sent if url.endswith(("/v1/images", "/v1/videos")) or "?model=" in url]
