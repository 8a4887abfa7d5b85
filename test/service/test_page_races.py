"""The page when several things happen at once: pictures overtake each other, masks come while somebody types."""

import re

import pytest
from PIL import Image

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

CANVAS = "document.getElementById('canvas')"
FOCUSED = "document.activeElement"


@pytest.fixture
def three(shapes):
    """An object with three candidates."""
    shapes.page.click('[data-multi="1"]')
    shapes.click(200, 180)
    shapes.settled()
    return shapes


def hold(page, path):
    """Keep the next request to such an address from being answered; returns the list that it comes into."""
    held = []

    def keep(route):  # Playwright takes no method of a list
        held.append(route)

    page.page.route(re.compile(path), keep, times=1)
    return held


def test_a_picture_that_was_overtaken_does_not_come_back(page, images, tmp_path):
    slow = tmp_path / "slow.tif"
    Image.new("RGB", (300, 200), "gray").save(slow)
    held = hold(page, "/preview")
    with page.page.expect_request(re.compile("/preview")):
        page.page.set_input_files("#file", slow)
    page.open(images / "shapes.jpg")
    page.click(200, 180)
    page.settled()
    held[0].continue_()
    page.page.wait_for_timeout(500)
    assert page.page.evaluate("tritonSam.image.name") == "shapes.jpg"
    assert page.facts()[0].startswith("1 point · score")


def test_a_picture_opened_while_another_is_sent_again_is_shown(shapes, images):
    held = hold(shapes, "/v1/images")
    with shapes.page.expect_request(re.compile("/v1/images")):
        shapes.page.dispatch_event("#model", "change")
    shapes.open(images / "coffee.jpg")
    shapes.page.wait_for_timeout(200)
    assert "coffee.jpg" in shapes.page.inner_text("#picture-info")
    assert len(held) == 1
    shapes.click(300, 200)
    shapes.settled()


def test_a_name_is_not_lost_when_a_mask_comes_while_it_is_typed(three):
    three.page.keyboard.press("n")
    three.click(620, 420)
    three.settled()
    name = three.page.locator(".object input:not(.label)").nth(0)
    name.click()  # of the object that was not active until then
    three.page.keyboard.press("Control+a")
    three.page.keyboard.type("left ")
    three.page.evaluate("document.querySelector('[data-multi=\"0\"]').click()")  # asks for other masks
    three.page.keyboard.type("blo")
    three.settled()
    three.page.wait_for_timeout(100)
    three.page.keyboard.type("b")
    assert name.input_value() == "left blob"
    three.page.keyboard.press("Enter")
    assert three.page.evaluate("tritonSam.scene.objects.map((object) => object.name)") == ["left blob", "Object 2"]


def test_a_candidate_that_is_chosen_by_key_keeps_the_focus(three):
    chips = three.page.locator(".candidates button")
    chosen = (three.page.evaluate("tritonSam.choiceOf(tritonSam.scene.active)") + 1) % 3
    chips.nth(chosen).focus()
    three.page.keyboard.press("Enter")
    three.page.wait_for_timeout(100)
    assert three.page.evaluate("tritonSam.choiceOf(tritonSam.scene.active)") == chosen
    assert three.page.evaluate(f"[...{FOCUSED}.parentElement.children].indexOf({FOCUSED})") == chosen
    assert chips.evaluate_all("all => all.map((chip) => chip.getAttribute('aria-checked'))").count("true") == 1


def test_the_picture_stays_under_the_clicks_on_another_monitor(shapes):
    """Chromium tells of an emulated ratio only together with a new size of the window: the stage keeps its own."""
    shapes.page.evaluate("Object.assign(document.getElementById('stage').style, {width: '700px', height: '500px'})")
    shapes.wait(f"{CANVAS}.width === 700")
    before = shapes.pixel(200, 180)
    session = shapes.page.context.new_cdp_session(shapes.page)
    for width, ratio in ((1281, 2), (1282, 1.5)):
        screen = {"width": width, "height": 800, "deviceScaleFactor": ratio, "mobile": False}
        session.send("Emulation.setDeviceMetricsOverride", screen)
        shapes.wait(f"{CANVAS}.width === {700 * ratio:g}", 10)
        assert shapes.pixel(200, 180) == pytest.approx(before, abs=10)
