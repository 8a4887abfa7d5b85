"""A scripted person in Chromium: three images, twelve objects, a reload, killed servers, all exports, and both imports.

Nothing is lost, and every mask is the same one, bit for bit, wherever the work goes.
"""

import io
import json
import os
import re
import signal
import zipfile
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

from support.conditions import wait_until  # noqa: E402
from support.running_browser import STORED, Page, drag, edited, masks_of, open_page  # noqa: E402
from support.running_service import ServiceProgram  # noqa: E402

from triton_sam.masks.rle import rle_to_mask  # noqa: E402

NAMES = ("shapes.jpg", "coffee.jpg", "street.jpg")
KINDS = ("click", "box", "points", "brush")
LABELS = ("thing", "frame", "thing", "drawn")
"""The labels of the objects of an image; two objects share one."""
OBJECTS = "tritonSam.scene.objects"
OUTAGE = re.compile(r"ERR_CONNECTION_REFUSED|WebSocket connection to .* failed|status of 50[23]")
"""Messages of the browser itself about a service that is not there."""
FORGOTTEN = re.compile(r"status of 404")
"""Message of the browser itself about an image that the new service does not have yet; the page sends it again."""
Masks = dict[str, dict[str, np.ndarray]]
"""The masks of the objects by the name of the image and that of the object."""


@pytest.fixture
def killed(own_triton, tmp_path):
    with ServiceProgram(own_triton.grpc_url, tmp_path) as service:
        yield service


def write(page: Page, field: str, index: int, text: str) -> None:
    page.page.locator(f".object {field}").nth(index).fill(text)
    page.page.keyboard.press("Enter")


def draw_objects(page: Page, name: str) -> None:
    """Make four objects in the open image, each in another way, and give them names and labels."""
    size = page.page.evaluate("[tritonSam.image.width, tritonSam.image.height]")

    def place(x: float, y: float) -> tuple[float, float]:
        return x * size[0], y * size[1]

    for index, kind in enumerate(KINDS):
        if index:
            page.page.keyboard.press("n")
        if kind == "box":
            drag(page, place(0.53, 0.1), place(0.88, 0.4))
        else:
            page.click(*place(*{"click": (0.25, 0.3), "points": (0.77, 0.7), "brush": (0.3, 0.75)}[kind]))
        page.settled()
        if kind == "points":
            page.page.keyboard.down("Alt")
            page.click(*place(0.6, 0.93))
            page.page.keyboard.up("Alt")
            page.settled()
        if kind == "brush":
            page.page.keyboard.press("p")
            drag(page, place(0.1, 0.9), place(0.4, 0.95))
            edited(page, index)
            page.page.keyboard.press("a")
        write(page, "input:not(.label)", index, f"{kind} of {name}")
        write(page, ".label", index, LABELS[index])
    labels = page.page.evaluate(f"{OBJECTS}[2].points.map((point) => point.label)")
    assert labels == [1, 0]


def show(page: Page, index: int) -> str:
    """Show an image of the strip; return its name."""
    if page.page.inner_text("#image-number") != f"{index + 1} / {len(NAMES)}":
        page.page.locator("#thumbs button").nth(index).click()
    page.opened(NAMES[index])
    page.settled()
    return NAMES[index]


def work_of(page: Page) -> tuple[dict[str, Any], Masks]:
    """Return all members of all objects, and their masks at full size, image by image."""
    assert page.page.locator("#thumbs button").count() == len(NAMES)
    objects, masks = {}, {}
    for index in range(len(NAMES)):
        name = show(page, index)
        objects[name] = page.page.evaluate(OBJECTS)
        masks[name] = masks_of(page)
    return objects, masks


def assert_equal(found: Masks, expected: Masks) -> None:
    """All twelve masks are there, under their names and in their order, and equal pixel by pixel."""
    order = {name: list(masks) for name, masks in found.items()}
    assert order == {name: [f"{kind} of {name}" for kind in KINDS] for name in NAMES}
    for name, masks in expected.items():
        for each, mask in masks.items():
            np.testing.assert_array_equal(found[name][each], mask, err_msg=each)


def assert_kept(page: Page, objects: dict[str, Any], masks: Masks) -> None:
    """All objects are as they were, with all their members, and so are their masks."""
    found = work_of(page)
    assert found[0] == objects
    assert_equal(found[1], masks)


def click_while_away(page: Page) -> None:
    """Set another point at the first object of the image, while a server is not there."""
    count = page.page.evaluate(f"{OBJECTS}[0].points.length")
    page.page.locator(".object .facts").nth(0).click()
    x, y = page.page.evaluate(f"[{OBJECTS}[0].points[0].x, {OBJECTS}[0].points[0].y]")
    page.click(x + 30, y + 20)
    assert page.page.evaluate(f"{OBJECTS}[0].points.length") == count + 1


def assert_click_is_answered(page: Page) -> None:
    """That point gets its mask, and so does one more; undo takes both back."""
    wait_until(lambda: page.facts()[0].startswith("2 points · score"))
    page.ready()
    page.settled()
    x, y = page.page.evaluate(f"[{OBJECTS}[0].points[0].x, {OBJECTS}[0].points[0].y]")
    page.click(x - 30, y + 20)
    page.settled()
    wait_until(lambda: page.facts()[0].startswith("3 points · score"))
    page.page.click("#undo")
    page.page.click("#undo")
    wait_until(lambda: page.facts()[0].startswith("1 point · score"))


def forgive(page: Page, expected: re.Pattern[str]) -> None:
    """Take what the browser says about a missing server out of its log, and nothing else."""
    page.faults[:] = [fault for fault in page.faults if not expected.search(fault)]
    assert page.faults == []


def unpacked(page: Page, form: str) -> dict[str, bytes]:
    page.page.select_option("#export-format", form)
    name, content = page.download("#export")
    assert name == f"objects-{form}.zip"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {each: archive.read(each) for each in archive.namelist()}


def masks_of_coco(coco: dict[str, Any]) -> Masks:
    """Check the labels of a COCO file with run lengths, and return its masks."""
    names = {each["id"]: each["file_name"] for each in coco["images"]}
    labels = {each["id"]: each["name"] for each in coco["categories"]}
    masks: Masks = {name: {} for name in names.values()}
    for each in coco["annotations"]:
        masks[names[each["image_id"]]][each["name"]] = rle_to_mask(each["segmentation"]).astype(bool)
        assert labels[each["category_id"]] == LABELS[KINDS.index(each["name"].split()[0])]
    return masks


def test_nothing_is_lost(browser, killed, own_triton, images, tmp_path):
    paths = [images / name for name in NAMES]
    with open_page(browser, killed.url) as page:
        page.uncheck("#hover")
        page.page.set_input_files("#file", paths)
        for index, name in enumerate(NAMES):
            show(page, index)
            draw_objects(page, name)
        objects, masks = work_of(page)
        assert_equal(masks, masks)
        assert all(mask.any() for each in masks.values() for mask in each.values())

        page.wait(STORED)
        page.page.reload()
        page.opened(NAMES[-1])
        assert_kept(page, objects, masks)
        assert page.faults == []

        pid = own_triton.pid
        os.kill(pid, signal.SIGKILL)
        click_while_away(page)
        wait_until(lambda: own_triton.restarts == 1 and own_triton.pid != pid)
        assert_click_is_answered(page)
        assert_kept(page, objects, masks)
        forgive(page, OUTAGE)

        killed.kill()
        page.page.wait_for_selector('#state[data-state="down"]')
        click_while_away(page)
        killed.start()
        assert_click_is_answered(page)
        forgive(page, OUTAGE)
        coco = unpacked(page, "coco")["coco.json"]  # the service has forgotten the images that are not shown
        assert_equal(masks_of_coco(json.loads(coco)), masks)
        page.until(lambda: len(page.faults) == 2)  # one for each of them
        forgive(page, FORGOTTEN)
        assert_kept(page, objects, masks)

        options = page.page.eval_on_selector_all("#export-format option", "all => all.map((each) => each.value)")
        assert options == ["coco", "coco-polygons", "yolo", "voc", "labelme", "geojson", "labels"]
        for form in options:  # test_exports.py compares the files with the masks
            assert any(unpacked(page, form).values())
        project = tmp_path / "project.triton-sam.zip"
        project.write_bytes(page.download("#save-project")[1])

    with open_page(browser, killed.url) as other:
        other.page.set_input_files("#file", project)
        other.opened(NAMES[0])
        assert_kept(other, objects, masks)

    path = tmp_path / "coco.json"
    path.write_bytes(coco)
    with open_page(browser, killed.url) as third:
        third.page.set_input_files("#file", [*paths, path])
        third.opened(NAMES[0])
        third.wait("tritonSam.pictures.shelf.drawn.length === 3")  # the image that is shown comes first
        assert third.page.inner_text("#banner") == ""
        assert all(each.startswith("imported") for each in third.facts())
        again, found = work_of(third)
        assert_equal(found, masks)
        for name in NAMES:
            named = [(each["name"], each["label"]) for each in again[name]]
            assert named == [(each["name"], each["label"]) for each in objects[name]]
        assert json.loads(unpacked(third, "coco")["coco.json"]) == json.loads(coco)
        third.page.click("#undo")
        assert third.facts() == []
