"""The page for somebody who sees it for the first time: hints, drops, the camera, the list of keys, the times."""

import html
import re
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

STATIC = Path(__file__).parents[2] / "triton_sam" / "service" / "static"
NAMES = {
    "pageup": "page up",
    "pagedown": "page down",
    "arrowleft": "←",
    "arrowright": "→",
    "escape": "esc",
}
"""Keys whose names on the page are others."""
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


def test_every_key_is_in_the_list_of_keys():
    text = (STATIC / "index.html").read_text("utf-8")
    dialog = text[text.index('id="keys-dialog"') :].split("</dialog>")[0]
    shown = {html.unescape(key).lower() for key in re.findall("<kbd>(.*?)</kbd>", dialog)}
    letters = [
        re.search(r"const LETTERS = \{(.*?)\};", (STATIC / name).read_text("utf-8"), re.DOTALL).group(1)
        for name in ("keys.js", "hand-tools.js")
    ]
    keys = {key for each in letters for key in re.findall(r'(?:^|[{,])\s*"?([^\s",]+?)"?:', each, re.MULTILINE)}
    assert len(keys) > 30
    same = {"="}  # + without Shift on many keyboards
    assert {NAMES.get(key, key) for key in keys - same} <= shown


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_drop_opens_an_image_and_says_so(browser, service, theme):
    from support.running_browser import open_page

    with open_page(browser, service.url, color_scheme=theme) as page:
        page.page.evaluate(DROP, ["dragover", "dropped.jpg"])
        content, contrast = page.page.evaluate(CONTRAST)
        assert content == '"Drop to open"'
        assert contrast >= READABLE
        page.page.evaluate(DROP, ["drop", "dropped.jpg"])
        page.opened("dropped.jpg")
        assert page.page.evaluate(CONTRAST)[0] == "none"


def test_hints_lead_to_the_first_object_and_times_are_told_alike(page, images):
    assert page.page.inner_text("#hint") == "Open an image or a video first."
    page.open(images / "shapes.jpg")
    assert page.page.inner_text("#hint") == "Click on an object in the image, or drag a box around it."
    page.page.mouse.move(*page.at(300, 300))
    page.page.mouse.move(*page.at(200, 180), steps=3)
    page.wait("document.getElementById('hover-info').textContent !== ''")
    page.click(200, 180)
    page.settled()
    assert page.page.is_hidden("#hint")
    page.wait("document.getElementById('service-info').textContent !== ''")
    told = [page.page.inner_text(f"#{name}-info") for name in ("hover", "service", "click")]
    assert [re.sub(r"\d+", "N", each) for each in told] == ["preview: N ms", "service: N ms", "last click: N ms"]


def test_a_phone_opens_a_photograph_of_its_camera(browser, service, images, page):
    from support.running_browser import open_phone

    assert page.page.is_hidden("#camera")  # a mouse has no camera
    with open_phone(browser, service.url) as phone:
        assert phone.page.get_attribute("#photo", "capture") == "environment"
        with phone.page.expect_file_chooser() as chooser:
            phone.page.tap("#camera")
        chooser.value.set_files(images / "shapes.jpg")
        phone.opened("shapes.jpg")
