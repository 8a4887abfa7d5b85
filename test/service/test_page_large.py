"""The page of slides and maps in headless Chromium, over a real service and a real Triton."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.large_images import write_tiff
from support.running_browser import GRAVE, LAYOUT_FAULTS, NARROW, WIDE, window
from support.running_service import running_service

DISC = (200 + 800, 180 + 600)
"""The middle of a red disc, in pixels of the slide."""
MAP = "map of a town whose name is long.tif"
MASKS = "tritonSam.scene.objects.map(tritonSam.maskOf)"
TILES_ARE_THERE = "tritonSam.image && tritonSam.tiles.isComplete(tritonSam.stage, devicePixelRatio)"


@pytest.fixture(scope="module")
def slides(tmp_path_factory, images):
    folder = tmp_path_factory.mktemp("slides")
    with Image.open(images / "shapes.jpg") as shapes:
        pixels = np.tile(np.asarray(shapes.convert("RGB")), (3, 3, 1))
    write_tiff(folder / "slide.tif", pixels)
    write_tiff(folder / MAP, pixels[:700, :900], levels=1)
    return folder


@pytest.fixture(scope="module")
def slide_service(service_triton, slides):
    with running_service(service_triton.grpc_url, large_images=str(slides)) as running:
        yield running


@pytest.fixture
def opened(browser, slide_service):
    """The page with the slide; each test says its window."""
    with contextlib.ExitStack() as windows:

        def open_it(name="slide.tif", **options):
            page = windows.enter_context(window(browser, f"{slide_service.url}/large#{name}", **options))
            page.wait(TILES_ARE_THERE)
            return page

        yield open_it


def at(page, x, y):
    frame = page.page.locator("#canvas").bounding_box()
    left, top = page.page.evaluate(f"tritonSam.stage.toScreen({x}, {y})")
    return frame["x"] + left, frame["y"] + top


def answered(page):
    page.wait(
        "tritonSam.scene.active && tritonSam.maskOf(tritonSam.scene.active) && document.getElementById('busy').hidden"
    )
    return page.page.evaluate("tritonSam.maskOf(tritonSam.scene.active)")


def color(page, x, y):
    """Return the colour of the canvas at a pixel of the image, after the next picture."""
    return page.page.evaluate(
        """async ([x, y]) => { for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
        const c = document.getElementById("canvas"), [left, top] = tritonSam.stage.toScreen(x, y);
        const r = c.width / c.getBoundingClientRect().width;
        return [...c.getContext("2d").getImageData(left * r, top * r, 1, 1).data]; }""",
        [x, y],
    )


@pytest.mark.slow
def test_objects_are_clicked_boxed_taken_back_and_saved(opened, slide_service):
    page = opened()
    bare = color(page, *DISC)
    page.page.mouse.click(*at(page, *DISC))
    mask = answered(page)
    ids = {each["name"]: each["id"] for each in slide_service.http.get("/v1/large").json()["images"]}
    point, scale = page.page.evaluate("[tritonSam.scene.active.points[0], Math.max(1, tritonSam.stage.unit)]")
    body = {"points": [[point["x"], point["y"]]], "labels": [1], "scale": scale}
    (wanted,) = slide_service.http.post(f"/v1/large/{ids['slide.tif']}/segment", json=body).json()["masks"]
    assert mask == wanted
    x, y, width, height = mask["bbox"]
    assert x < DISC[0] < x + width
    assert y < DISC[1] < y + height
    assert color(page, DISC[0] + 25, DISC[1] + 25) != color(page, DISC[0] + 825, DISC[1] + 25)  # an equal disc beside
    page.page.mouse.click(*at(page, DISC[0] + 60, DISC[1]), button="right")
    answered(page)
    assert page.page.evaluate("tritonSam.scene.active.points.map(({ label }) => label)") == [1, 0]
    assert page.page.inner_text("#object-info").startswith("object 1 · 2 prompts · score 0.")
    page.page.keyboard.press("Control+z")
    assert page.page.evaluate("tritonSam.maskOf(tritonSam.scene.active)") == mask
    page.page.click("#undo")
    assert page.page.evaluate("tritonSam.scene.objects.length") == 0
    assert color(page, *DISC) == bare

    page.page.keyboard.press("b")
    page.page.mouse.move(*at(page, DISC[0] - 120, DISC[1] - 120))
    page.page.mouse.down()
    page.page.mouse.move(*at(page, DISC[0] + 130, DISC[1] + 130), steps=4)
    page.page.mouse.up()
    answered(page)
    box = page.page.evaluate("tritonSam.scene.active.box")
    assert box == pytest.approx([DISC[0] - 120, DISC[1] - 120, DISC[0] + 130, DISC[1] + 130], abs=6)
    page.page.keyboard.press("n")
    page.page.keyboard.press("a")
    page.page.mouse.click(*at(page, DISC[0] + 800, DISC[1]))
    answered(page)
    name, content = page.download("#save")
    document = json.loads(content)
    assert name == "slide.tif.geojson"
    assert [each["properties"]["object"] for each in document["features"]] == [1, 2]
    ring = document["features"][0]["geometry"]["coordinates"][0][0]
    assert ring[0] == ring[-1]

    page.page.keyboard.press("+")
    with page.held("/segment$") as waiting:
        for x in (DISC[0], DISC[0] + 800):
            page.page.keyboard.press("n")
            page.page.mouse.click(*at(page, x, DISC[1] + 600))
        page.until(lambda: len(waiting) == 2)
        assert len(json.loads(page.download("#save")[1])["features"]) == 2
        assert "lacks 2 objects" in page.banner()
        masks = page.page.evaluate(MASKS)
        with page.held(r"/v1/large/\w+$") as held:
            for label in (MAP, "slide.tif"):
                page.page.select_option("#image", label=label)
            page.until(lambda: len(held) == 2)
            held.pop().continue_()
            page.wait(TILES_ARE_THERE)
            with page.page.expect_event("requestfinished", lambda request: request.url.endswith(ids[MAP])):
                held.pop().continue_()
            page.page.evaluate("new Promise(requestAnimationFrame)")
        assert page.page.evaluate("tritonSam.image.name") == "slide.tif"
        assert page.page.evaluate(MASKS) == masks
    page.wait(f"{MASKS}.every(Boolean)")
    assert page.page.evaluate(MASKS)[:2] == masks[:2]
    assert len({route.request.post_data_json["scale"] for route in waiting}) == 1
    asked = []
    page.page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    page.page.reload()
    assert asked == ["beforeunload"]
    assert page.faults == []


@pytest.mark.slow
def test_moves_zooms_and_other_images_show_the_right_level(opened, slide_service):
    page = opened()
    page.page.mouse.move(*at(page, *DISC))
    for _ in range(12):
        page.page.mouse.wheel(0, -400)
    page.wait("tritonSam.stage.scale === 32")  # the highest one, which further events do not change
    page.wait(TILES_ARE_THERE)
    assert page.page.evaluate("tritonSam.tiles.levelFor(tritonSam.stage.unit)") == 0
    before = page.page.evaluate("tritonSam.stage.middle()")
    x, y = 640, 400
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x + 100, y + 50, steps=3)
    page.page.mouse.up()
    scale = page.page.evaluate("tritonSam.stage.unit")
    after = page.page.evaluate("tritonSam.stage.middle()")
    assert [before[0] - after[0], before[1] - after[1]] == pytest.approx([100 * scale, 50 * scale], abs=0.5)
    assert page.page.evaluate("tritonSam.scene.objects.length") == 0  # a move is no click
    page.page.click("#zoom-fit")
    page.wait(TILES_ARE_THERE)
    assert page.page.evaluate("tritonSam.tiles.levelFor(tritonSam.stage.unit)") == 1

    page.page.set_viewport_size(NARROW)
    page.page.select_option("#image", label=MAP)
    page.wait("tritonSam.image?.width === 900")
    page.wait(TILES_ARE_THERE)
    assert page.page.evaluate(LAYOUT_FAULTS) == []
    page.page.goto(slide_service.url)
    page.ready()
    assert page.page.evaluate(LAYOUT_FAULTS) == []
    page.page.set_viewport_size(WIDE)
    page.page.click('.status a[href="large"]')
    page.wait("location.pathname === '/large' && window.tritonSam?.image")
    assert page.faults == []


@pytest.mark.slow
def test_the_keyboard_alone_is_enough(opened):
    page = opened()
    for _ in range(12):
        page.page.keyboard.press("Tab")
        if page.page.evaluate("document.activeElement.id") == "canvas":
            break
    page.page.keyboard.press("+")
    middle = page.page.evaluate("tritonSam.stage.middle()")
    page.page.keyboard.press("ArrowLeft")
    page.page.keyboard.press("ArrowUp")
    moved = page.page.evaluate("tritonSam.stage.middle()")
    assert moved[0] < middle[0]
    assert moved[1] < middle[1]
    page.page.keyboard.press("Enter")
    answered(page)
    point = page.page.evaluate("tritonSam.scene.active.points[0]")
    assert [point["x"], point["y"]] == pytest.approx(moved)
    page.page.keyboard.press("n")
    page.page.keyboard.press("b")
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    answered(page)
    x1, y1, x2, y2 = page.page.evaluate("tritonSam.scene.active.box")
    assert [x1, y1] == pytest.approx(moved)
    assert x2 > x1
    assert y2 > y1
    assert page.faults == []


@pytest.mark.slow
def test_the_layout_holds_in_both_themes_and_on_a_phone(opened):
    axe = (Path(pytest.importorskip("axe_playwright_python").__file__).parent / "axe.min.js").read_text("utf-8")
    for viewport, theme in ((WIDE, "dark"), (NARROW, "light")):
        page = opened(viewport=viewport, color_scheme=theme, bypass_csp=True)
        page.page.evaluate(axe)
        page.page.mouse.click(*at(page, *DISC))
        answered(page)
        assert page.page.evaluate(LAYOUT_FAULTS) == []
        assert page.page.evaluate(GRAVE) == []
        assert page.page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.faults == []
