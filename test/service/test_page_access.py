"""What axe-core says about the page and /docs, and whether the keyboard alone is enough."""

from pathlib import Path

import pytest
from support.running_browser import GRAVE, edited, open_page

SHOW_ALL = """() => {
  for (const id of ["found", "found-choose", "words", "words-found", "words-info", "words-examples"])
    document.getElementById(id).hidden = false;
}"""


@pytest.fixture(scope="module")
def axe():
    return (Path(pytest.importorskip("axe_playwright_python").__file__).parent / "axe.min.js").read_text("utf-8")


@pytest.fixture(params=["dark", pytest.param("light", marks=pytest.mark.slow)])
def themed(request, browser, service):
    """A page whose policy lets the test add axe-core."""
    with open_page(browser, service.url, color_scheme=request.param, bypass_csp=True) as page:
        yield page


def test_axe_has_no_serious_finding(themed, axe, images, service):
    page = themed.page
    page.evaluate(axe)
    found = {"empty": page.evaluate(GRAVE)}
    page.set_input_files("#file", [images / "shapes.jpg", images / "coffee.jpg"])
    themed.opened("shapes.jpg")
    page.keyboard.press("m")
    for place in ((200, 180), (620, 420)):
        page.keyboard.press("n")
        themed.click(*place)
        themed.settled()
    page.evaluate("import('/static/notices.js').then(({ warn }) => warn('Something is wrong.'))")
    found["objects"] = page.evaluate(GRAVE)
    page.evaluate(SHOW_ALL)
    found["everything and words"] = page.evaluate(GRAVE)
    for dialog in page.evaluate("[...document.querySelectorAll('dialog')].map(({ id }) => id)"):
        page.evaluate("(id) => document.getElementById(id).showModal()", dialog)
        found[dialog] = page.evaluate(GRAVE)
        page.keyboard.press("Escape")
    page.evaluate("document.body.dataset.mode = 'video'; document.getElementById('timeline').hidden = false")
    found["video"] = page.evaluate(GRAVE)

    page.goto(f"{service.url}/docs")
    page.wait_for_selector("details")
    for details in page.query_selector_all("details")[:6]:  # all have the same parts
        details.evaluate("(each) => { each.open = true; each.querySelector('.tries button:nth-child(2)')?.click(); }")
    page.evaluate(axe)
    found["documents"] = page.evaluate(GRAVE)
    assert found == {name: [] for name in found}


def test_the_documents_send_requests_and_copy_them(page, service, images):
    page.page.goto(f"{service.url}/docs")
    page.page.wait_for_selector("details")
    text = page.page.inner_text("article")
    assert "/v1/images/{image_id}/segment" in text
    assert "/embedded_model" in text

    def opened(verb, path):
        summaries = page.page.locator("details").filter(has=page.page.locator(f"summary code:text-is('{path}')"))
        details = summaries.filter(has=page.page.locator(f"summary .{verb}"))
        details.evaluate("(each) => { each.open = true; }")
        details.get_by_role("button", name="Try it here").click()
        return details

    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.page.evaluate("() => { globalThis.setTimeout = () => 0; }")  # "Copied" stays
    upload = opened("post", "/v1/images")
    upload.get_by_role("button", name="Copy").click()
    upload.get_by_role("button", name="Copied").wait_for()
    line = page.page.evaluate("navigator.clipboard.readText()")
    assert line.endswith(f"{service.url}/v1/images")
    segment = opened("post", "/v1/images/{image_id}/segment")
    upload.locator("input[type=file]").set_input_files(images / "shapes.jpg")
    upload.get_by_role("button", name="Send").click()
    upload.locator(".answer p:has-text('201')").wait_for()
    segment.locator("textarea").fill('{"points": [[200, 180]]}')
    segment.get_by_role("button", name="Send").click()  # the id is there already
    segment.locator(".answer p:has-text('200')").wait_for()
    assert '"score"' in segment.locator(".answer pre").inner_text()
    look = opened("get", "/v1/images/{image_id}/preview")  # a form that was opened later knows it, too
    look.get_by_role("button", name="Send").click()
    look.locator(".answer img").wait_for()


@pytest.mark.slow
def test_the_keyboard_alone_segments_an_object(shapes):
    keys = shapes.page.keyboard
    for _ in range(40):
        if shapes.page.evaluate("document.activeElement.id") == "canvas":
            break
        keys.press("Tab")
    keys.press("Enter")
    assert "Arrow keys move it" in shapes.page.inner_text("#said")
    scale = shapes.page.evaluate("tritonSam.stage.screenOf(1, 0)[0] - tritonSam.stage.screenOf(0, 0)[0]")
    for _ in range(8):
        keys.press("ArrowLeft")
    keys.press("ArrowUp")
    keys.press("Shift+ArrowUp")
    shapes.page.wait_for_selector(f"#said:text-is('{round(400 - 80 / scale)}, {round(300 - 11 / scale)}')")
    keys.press("Enter")
    shapes.settled()
    point = shapes.page.evaluate("tritonSam.scene.active.points[0]")
    assert (point["x"], point["y"], point["label"]) == pytest.approx((400 - 80 / scale, 300 - 11 / scale, 1), abs=0.01)
    shapes.page.wait_for_selector("#said:has-text('Object 1: 1 point · score')")
    keys.press("ArrowDown")
    keys.press("Shift+Enter")
    assert shapes.page.evaluate("tritonSam.scene.active.points.map(({ label }) => label)") == [1, 0]
    keys.press("b")
    keys.press("Enter")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        keys.press(key)
    keys.press("Enter")
    box = shapes.page.evaluate("tritonSam.scene.active.box")
    assert [box[2] - box[0], box[3] - box[1]] == pytest.approx([20 / scale, 10 / scale], abs=0.02)
    keys.press("Escape")
    keys.press("a")
    keys.press("Enter")  # a new cursor, in the middle
    keys.press("Enter")
    assert shapes.page.evaluate("tritonSam.scene.active.points.at(-1)") == {"x": 400, "y": 300, "label": 1}
    shapes.settled()
    keys.press("Escape")

    keys.press("n")
    keys.press("g")
    keys.press("Enter")  # a cursor in the middle
    keys.press("Enter")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
        for _ in range(5):
            keys.press(key)
        keys.press("Enter")
    keys.press("Enter")  # the last corner again
    edited(shapes, 1)
    x, y, width, height = shapes.page.evaluate("tritonSam.masks.resultOf(tritonSam.scene.active).found.bbox")
    assert (x, y) == (400, 300)
    assert (width, height) == (pytest.approx(50 / scale, abs=1), pytest.approx(50 / scale, abs=1))
