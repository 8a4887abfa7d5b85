"""Changes of what is there: points are moved and removed, objects are selected, and each has candidates of its own."""

import json
import re

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

POINTS = "tritonSam.scene.active.points.map(({x, y, label}) => [Math.round(x), Math.round(y), label])"
COUNTS = "tritonSam.scene.objects.map((object) => tritonSam.resultOf(object).scores.length)"
ACTIVE = "tritonSam.scene.active?.name"


def drag(page, start, end):
    page.page.mouse.move(*page.at(*start))
    page.page.mouse.down()
    page.page.mouse.move(*page.at(*end), steps=5)
    page.page.mouse.up()


@pytest.fixture
def two_objects(shapes):
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.keyboard.press("n")
    shapes.click(620, 420)
    shapes.settled()
    return shapes


def test_a_point_is_moved_by_dragging_it(two_objects):
    page = two_objects
    drag(page, (620, 420), (600, 440))
    page.settled()
    assert page.page.evaluate(POINTS) == [[pytest.approx(600, abs=1), pytest.approx(440, abs=1), 1]]
    assert page.page.evaluate("tritonSam.scene.active.box") is None
    page.page.click("#undo")
    assert page.page.evaluate(POINTS) == [[pytest.approx(620, abs=1), pytest.approx(420, abs=1), 1]]


def test_a_point_of_an_object_that_is_not_active_stays(two_objects):
    page = two_objects
    drag(page, (200, 180), (260, 240))
    page.settled()
    first = page.page.evaluate("tritonSam.scene.objects[0].points[0]")
    assert (first["x"], first["y"]) == (pytest.approx(200, abs=1), pytest.approx(180, abs=1))
    assert len(page.facts()) == 2  # the drag drew a box, as in other places


@pytest.mark.parametrize("way", ["right click", "Alt", "tool"])
def test_a_point_is_removed(two_objects, way):
    page = two_objects
    page.click(640, 400)
    page.settled()
    assert len(page.page.evaluate(POINTS)) == 2
    if way == "right click":
        page.click(640, 400, button="right")
    elif way == "Alt":
        page.page.keyboard.down("Alt")
        page.click(640, 400)
        page.page.keyboard.up("Alt")
    else:
        page.page.keyboard.press("d")
        page.click(640, 400)
    page.settled()
    assert page.page.evaluate(POINTS) == [[pytest.approx(620, abs=1), pytest.approx(420, abs=1), 1]]


def test_a_click_with_control_selects_the_object_of_a_mask(two_objects):
    page = two_objects
    assert page.page.evaluate(ACTIVE) == "Object 2"
    page.page.keyboard.down("Control")
    page.click(180, 150)
    assert page.page.evaluate(ACTIVE) == "Object 1"
    page.click(20, 20)  # no mask
    page.page.keyboard.up("Control")
    assert page.page.evaluate(ACTIVE) == "Object 1"
    assert page.page.evaluate("tritonSam.scene.objects.map((object) => object.points.length)") == [1, 1]


def test_the_select_tool_selects_and_adds_nothing(two_objects):
    page = two_objects
    counts = "tritonSam.scene.objects.map((object) => [object.points.length, object.box])"
    page.page.keyboard.press("s")
    assert page.page.get_attribute('[data-tool="select"]', "aria-checked") == "true"
    page.click(180, 150)
    assert page.page.evaluate(ACTIVE) == "Object 1"
    page.click(20, 20)  # no mask
    before = page.at(180, 150)
    drag(page, (180, 150), (240, 200))
    assert page.at(180, 150) != before  # the image moved
    assert page.page.evaluate(ACTIVE) == "Object 1"
    assert page.page.evaluate(counts) == [[1, None], [1, None]]
    page.page.keyboard.press("a")
    page.click(200, 160)
    page.settled()
    assert page.page.evaluate(counts) == [[2, None], [1, None]]


def test_the_select_tool_works_with_the_cursor_of_the_keyboard(two_objects):
    page = two_objects
    page.page.keyboard.press("e")
    assert page.page.evaluate(ACTIVE) == "Object 1"
    page.page.keyboard.press("s")
    page.page.focus("#canvas")
    page.page.keyboard.press("Enter")  # the cursor begins in the middle, 400, 300
    assert "Enter selects" in page.page.inner_text("#said")
    scale = page.page.evaluate("tritonSam.screenOf(1, 0)[0] - tritonSam.screenOf(0, 0)[0]")
    for key, way in (("ArrowRight", 220), ("ArrowDown", 120)):
        for _ in range(round(way * scale / 10)):  # 10 pixels of the screen a step
            page.page.keyboard.press(key)
    page.page.keyboard.press("Enter")
    assert page.page.evaluate(ACTIVE) == "Object 2"
    assert page.page.evaluate("tritonSam.scene.objects.map((object) => object.points.length)") == [1, 1]


def test_each_object_has_its_own_candidates(two_objects):
    page = two_objects
    before = page.facts()[0]
    page.page.keyboard.press("m")
    page.settled()
    assert page.page.evaluate(COUNTS) == [1, 3]
    assert page.facts()[0] == before
    drawn = """[...document.querySelectorAll('.candidates canvas')].map((canvas) =>
        new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size > 20)"""
    page.wait(f"{drawn}.join() === 'true,true,true'")
    page.page.locator(".facts").nth(0).click()
    assert page.page.locator('[data-multi="0"]').get_attribute("aria-checked") == "true"
    page.page.keyboard.press("n")
    assert page.page.evaluate("tritonSam.scene.active.multimask") is True  # the last choice holds for new objects
    page.page.click("#undo")
    page.page.click("#undo")
    page.settled()
    assert page.page.evaluate(COUNTS) == [1, 1]


def test_the_list_shows_area_and_box_of_the_active_object(two_objects):
    page = two_objects
    first, second = page.facts()
    assert "px" not in first
    area, width, height, x, y = map(int, re.search(r"≈ (\d+) px · (\d+) . (\d+) at (\d+), (\d+)", second).groups())
    exact = json.loads(page.download("#save-coco")[1])["annotations"][1]
    assert area == pytest.approx(exact["area"], rel=0.05)
    assert [x, y, width, height] == pytest.approx(exact["bbox"], abs=12)  # a cell of the small mask has 3 pixels


def test_forty_objects_have_forty_colours(shapes):
    shapes.page.evaluate("for (let i = 0; i < 40; i++) tritonSam.scene.begin()")
    colors = shapes.page.evaluate("tritonSam.scene.objects.map((object) => object.color)")
    assert len(set(colors)) == 40
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)
