"""The page finds everything, in headless Chromium, over a real service. Most of its searches need no Triton."""

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageFilter

pytest.importorskip("fastapi")
from support.conditions import wait_until
from support.fake_everything import service_with_everything, shapes
from support.running_browser import ASIDE, LAYOUT_FAULTS, NARROW, WIDE, open_page

from triton_sam import SAM2TritonClient
from triton_sam.masks.rle import rle_to_mask

SMALL_TARGETS = """[...document.querySelectorAll("#found button, #find")]
    .map((e) => [e, e.getBoundingClientRect()])
    .filter(([e, b]) => b.width && (b.width < 44 || b.height < 44)).map(([e]) => e.id)"""
MASKS = shapes()
COUNT = len(MASKS)


@pytest.fixture(scope="module")
def running():
    with service_with_everything() as running:
        yield running


@pytest.fixture
def finder(running):
    yield running[1]
    running[1].reset()


@pytest.fixture
def page(browser, running, finder, images):
    with open_page(browser, running[0].url) as page:
        page.open(images / "shapes.jpg")
        page.page.uncheck("#hover")  # which asks a Triton
        yield page


def inside(number):
    """The point of an object that is farthest from its edge in its middle row."""
    rows = np.flatnonzero(MASKS[number].any(axis=1))
    row = int(rows[len(rows) // 2])
    edges = np.flatnonzero(np.diff(np.pad(MASKS[number][row].astype(np.int8), 1)))
    start, end = max(zip(edges[::2], edges[1::2], strict=True), key=lambda run: run[1] - run[0])
    return int(start + end) // 2, row


def find(page, count=COUNT):
    page.page.click("#find")
    page.wait(f"!tritonSam.everything.isSearching && tritonSam.everything.items.length === {count}")


def info(page):
    return page.page.inner_text("#found-info")


def objects(page):
    return page.page.evaluate("tritonSam.scene.objects.length")


def middles(masks):
    """Return a point x, y inside each mask and in no smaller one, which a click selects; None where there is none."""
    found = []
    for mask in masks:
        smaller = [other for other in masks if other.sum() < mask.sum()]
        own = mask & ~np.any([np.zeros_like(mask), *smaller], axis=0)
        rows, columns = np.nonzero(np.asarray(Image.fromarray(own).convert("L").filter(ImageFilter.MinFilter(9))))
        found.append((int(columns[len(rows) // 2]), int(rows[len(rows) // 2])) if len(rows) else None)
    return found


def saved(page):
    """Return the mask that the page writes for the active object."""
    return np.asarray(Image.open(io.BytesIO(page.download("#save-mask")[1])))


def test_objects_are_kept_merged_and_deleted(page):
    find(page)
    assert info(page) == f"{COUNT} found"
    assert page.page.is_disabled("#found-merge")
    page.click(*inside(0))
    assert info(page) == f"1 of {COUNT} selected"
    page.click(*inside(1))
    page.page.click("#found-merge")
    assert info(page) == f"1 of {COUNT - 1} selected"
    page.page.click("#found-keep")
    assert page.facts()[0].startswith("found · score 0.8")
    mask = saved(page)
    assert (mask.dtype, mask.shape) == (np.uint8, (600, 800))
    np.testing.assert_array_equal(mask == 255, MASKS[0] | MASKS[1])
    page.click(*inside(2))
    page.page.keyboard.press("Delete")
    assert info(page) == f"{COUNT - 3} found"
    page.page.click("#found-keep")  # all others
    assert (objects(page), page.page.is_hidden("#found")) == (COUNT - 2, True)
    coco = json.loads(page.download("#save-coco")[1])
    expected = [MASKS[0] | MASKS[1], *MASKS[3:]]
    for annotation, wanted in zip(coco["annotations"], expected, strict=True):
        np.testing.assert_array_equal(rle_to_mask(annotation["segmentation"]), wanted)
        assert annotation["area"] == wanted.sum()
    for left in (COUNT - 3, COUNT - 2, COUNT - 1, COUNT):  # undo gives the objects back
        page.page.keyboard.press("Control+z")
        page.wait(f"tritonSam.everything.items.length === {left}", 10)
    assert objects(page) == 0


def test_a_found_object_is_painted_and_refined_by_clicks(page):
    page.page.fill("#opacity", "100")
    x, y = inside(0)
    before = page.pixel(x - 20, y)
    find(page)
    page.page.click("#found-keep")
    color = page.page.evaluate("tritonSam.scene.objects[0].color")
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    wait_until(lambda: page.pixel(x - 20, y)[:3] == wanted)
    assert before[:3] != wanted
    page.page.keyboard.press("Control+z")
    page.wait(f"tritonSam.everything.items.length === {COUNT}")
    page.click(*inside(0))
    page.page.keyboard.press("r")
    assert info(page) == "Click to refine"
    x, y = inside(1)
    page.click(x, y, button="right")
    object_ = page.page.evaluate("tritonSam.scene.active")
    rows, columns = np.nonzero(MASKS[0])
    assert object_["box"] == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert [point["label"] for point in object_["points"]] == [1, 0]
    assert MASKS[0][int(object_["points"][0]["y"]), int(object_["points"][0]["x"])]
    page.page.keyboard.press("Escape")
    assert info(page) == f"{COUNT - 1} found"
    page.page.keyboard.press("Control+z")
    page.wait("tritonSam.scene.active.box === null")
    assert page.facts()[0].startswith("found · score")  # its own mask again


def test_found_objects_are_chosen_by_keys_and_dropped_with_their_image(page, images):
    page.page.keyboard.press("f")
    page.wait(f"!tritonSam.everything.isSearching && tritonSam.everything.items.length === {COUNT}")
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowRight")
    assert page.page.evaluate("tritonSam.everything.selected.map((item) => item.number)") == [1]
    page.page.keyboard.press("ArrowLeft")
    page.page.keyboard.press("ArrowLeft")
    assert page.page.evaluate("tritonSam.everything.selected.map((item) => item.number)") == [COUNT - 1]
    page.page.keyboard.press("k")
    assert objects(page) == 1
    page.page.keyboard.press("Escape")
    assert page.page.is_hidden("#found")
    assert objects(page) == 1
    find(page)
    page.open(images / "coffee.jpg")
    assert page.page.is_hidden("#found")
    assert page.page.evaluate("tritonSam.everything.items.length") == 0


def test_objects_appear_as_they_come_and_better_ones_take_their_places(page, finder):
    finder.finds = False
    page.page.click("#find")
    assert "pred_iou_thresh" in page.banner()
    assert page.page.is_hidden("#found")
    page.page.click("#banner-close")
    finder.reset()
    finder.seconds = 0.4
    closed = finder.closed
    page.page.click("#find")
    page.wait("tritonSam.everything.items.length === 2")
    assert page.page.is_visible("#found-progress")
    assert page.page.is_disabled("#find")
    page.page.click("#found-stop")
    wait_until(lambda: finder.closed == closed + 1)
    assert page.page.evaluate("tritonSam.everything.items.length") < COUNT
    assert page.page.is_enabled("#find")
    assert page.page.is_hidden("#banner")

    finder.removes, finder.seconds = True, 0.3
    page.page.click("#find")
    page.wait("tritonSam.everything.items.length === 1")
    page.click(*inside(0))
    page.page.keyboard.press("k")  # an object that was kept stays when a better one comes
    finder.seconds = 0.0
    page.wait("!tritonSam.everything.isSearching")
    assert info(page) == f"{COUNT - 1} found"
    np.testing.assert_array_equal(saved(page) == 255, MASKS[0])
    page.page.keyboard.press("Escape")
    find(page, COUNT - 1)
    page.click(*inside(0))
    assert info(page) == f"{COUNT - 1} found"


@pytest.mark.parametrize(
    ("viewport", "theme"),
    [(WIDE, "dark"), (NARROW, "light"), pytest.param(ASIDE, "dark", marks=pytest.mark.slow)],
    ids=["wide", "narrow", "aside"],
)
def test_nothing_overlaps_and_fingers_hit(browser, running, finder, images, viewport, theme):
    is_phone = viewport is not WIDE
    with open_page(
        browser, running[0].url, viewport=viewport, color_scheme=theme, has_touch=is_phone, is_mobile=is_phone
    ) as page:
        page.open(images / "shapes.jpg")
        finder.seconds = 0.2
        page.page.click("#find")
        page.wait("tritonSam.everything.items.length > 0")
        assert page.page.evaluate(LAYOUT_FAULTS) == []
        finder.seconds = 0.0
        page.wait("!tritonSam.everything.isSearching")
        page.wait("""(() => { const canvas = document.getElementById("canvas");
            return Math.abs(canvas.getBoundingClientRect().height * devicePixelRatio - canvas.height) < 1; })()""")
        act = page.page.touchscreen.tap if is_phone else page.page.mouse.click
        for number in (0, 1):
            act(*page.at(*inside(number)))
        page.wait("tritonSam.everything.selected.length === 2", 5)
        assert page.page.evaluate(LAYOUT_FAULTS) == []
        if is_phone:
            assert page.page.evaluate(SMALL_TARGETS) == []
        assert page.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


FEW = {"points_per_side": 6, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}


def masks_of(page, items="items"):
    """Return the masks of the found objects that the page shows, or of those that are selected."""
    counts = page.page.evaluate(f"tritonSam.everything.{items}.map(({{rle}}) => rle)")
    return [rle_to_mask(each) for each in counts]


@pytest.mark.slow
def test_over_a_real_triton_objects_are_kept_merged_deleted_and_refined(browser, service, service_triton, images):
    def ask_for_few_points(route):
        route.continue_(post_data=json.dumps({**route.request.post_data_json, **FEW}))

    photo = images / "shapes.jpg"
    with SAM2TritonClient(service_triton.grpc_url) as client, open_page(browser, service.url) as page:
        page.page.route("**/everything", ask_for_few_points)
        page.open(photo)
        for box in ("#hover", "#cleanup"):  # the client asks for plain masks
            page.page.uncheck(box)
        page.page.click("#find")
        page.wait("!tritonSam.everything.isSearching && tritonSam.everything.items.length > 0")
        masks, expected = masks_of(page), [each.mask for each in client.everything(photo, **FEW)]
        assert sorted(mask.tobytes() for mask in masks) == sorted(mask.tobytes() for mask in expected)
        count = len(masks)
        places = [place for place in middles(masks) if place]
        assert len(places) >= 4

        page.page.fill("#opacity", "100")
        for place in places:  # no other object hides one that is selected
            page.click(*place)
            color = page.page.evaluate("tritonSam.everything.selected[0].color")
            wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
            wait_until(lambda place=place, wanted=wanted: page.pixel(*place)[:3] == wanted)
            page.click(*place)

        page.click(*places[0])
        (kept,) = masks_of(page, "selected")
        page.page.keyboard.press("k")
        np.testing.assert_array_equal(saved(page) == 255, kept)

        page.click(*places[1])
        page.click(*places[2])
        first, second = masks_of(page, "selected")
        page.page.click("#found-merge")
        np.testing.assert_array_equal(masks_of(page, "selected"), [first | second])
        page.page.keyboard.press("Delete")
        assert info(page) == f"{count - 3} found"

        page.click(*places[3])
        page.page.keyboard.press("r")
        page.click(3, 3, button="right")
        page.wait("tritonSam.scene.active?.points.length > 1")
        page.settled()
        active = page.page.evaluate("tritonSam.scene.active")
        points = [[each["x"], each["y"]] for each in active["points"]]
        labels = [each["label"] for each in active["points"]]
        (refined,) = client.segment(points, labels, box=active["box"], image=client.encode(photo))
        assert ((saved(page) == 255) != refined.mask).sum() <= 1
