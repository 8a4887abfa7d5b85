"""Labels, data sets of all images as ZIP, and COCO files that give objects to the images that are open."""

import io
import json
import zipfile

import numpy as np
import pytest

from triton_sam.masks.rle import rle_to_mask

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
from support.running_browser import open_page

LABELS = "tritonSam.scene.objects.map((object) => [object.name, object.label])"
WRITTEN = 300
"""ms; the page writes changes after 100 ms."""


def give_label(page, index, label):
    page.page.locator(".object .label").nth(index).fill(label)
    page.page.keyboard.press("Enter")


def unpacked(page, form):
    page.page.select_option("#export-format", form)
    name, content = page.download("#export")
    assert name == f"objects-{form}.zip"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


@pytest.fixture
def two_images(shapes, images):
    """A labelled object in each of two images; the second image is shown."""
    shapes.click(200, 180)
    shapes.settled()
    give_label(shapes, 0, "blob")
    shapes.open(images / "coffee.jpg")
    shapes.click(300, 200)
    shapes.settled()
    return shapes


@pytest.mark.slow
def test_labelled_images_are_exported_and_come_back(two_images, browser, service, images, tmp_path):
    page = two_images
    assert page.page.evaluate(LABELS) == [["Object 1", ""]]
    page.page.wait_for_timeout(WRITTEN)
    offered = "[...document.getElementById('labels').options].map((option) => option.value)"
    assert page.page.evaluate(offered) == ["blob"]
    page.page.keyboard.press("PageUp")
    page.opened("shapes.jpg")
    assert page.page.evaluate(LABELS) == [["Object 1", "blob"]]
    page.page.click("#undo")
    assert page.page.evaluate(LABELS) == [["Object 1", ""]]
    page.page.click("#redo")
    page.page.click("#image-next")
    page.opened("coffee.jpg")

    hidden = page.at(100, 100)
    page.page.keyboard.press("n")
    page.page.mouse.click(*hidden)
    page.settled()
    page.page.locator('[data-role="eye"]').nth(1).click()
    with zipfile.ZipFile(io.BytesIO(page.download("#save-project")[1])) as project:
        stored = json.loads(project.read("project.json"))["images"]
    service.http.delete(f"/v1/images/{stored[0]['id']}")  # the page sends it again
    path = tmp_path / "coco.json"
    path.write_bytes(unpacked(page, "coco")["coco.json"])
    coco = json.loads(path.read_bytes())
    assert [each["file_name"] for each in coco["images"]] == ["shapes.jpg", "coffee.jpg"]
    assert {each["name"] for each in coco["categories"]} == {"blob", "Object 1"}
    assert [each["name"] for each in coco["annotations"]] == ["Object 1", "Object 1"]
    single = json.loads(page.download("#save-coco")[1])
    np.testing.assert_array_equal(
        rle_to_mask(coco["annotations"][1]["segmentation"]), rle_to_mask(single["annotations"][0]["segmentation"])
    )
    (fault,) = page.faults  # the browser reports the 404 of the forgotten image
    assert "status of 404" in fault
    page.faults.clear()
    assert len(unpacked(page, "labels")) == 2

    with open_page(browser, service.url) as other:
        other.page.set_input_files("#file", [images / "shapes.jpg", images / "street.jpg"])
        other.opened("shapes.jpg")
        other.page.click("#export")
        assert "no image has an object" in other.banner()
        (tmp_path / "none.json").write_text('{"images": 1}')
        other.page.set_input_files("#file", tmp_path / "none.json")
        other.wait("document.getElementById('banner').textContent.includes('not a COCO data set')")
        other.page.set_input_files("#file", path)
        other.wait("document.getElementById('banner').textContent.includes('not open: coffee.jpg')")

    with open_page(browser, service.url) as other:
        other.page.set_input_files("#file", [images / "shapes.jpg", images / "coffee.jpg", path])
        other.opened("shapes.jpg")
        other.page.wait_for_selector(".object")
        assert other.page.evaluate(LABELS) == [["Object 1", "blob"]]
        assert other.facts()[0].startswith("imported · score 0.")
        assert other.page.inner_text("#banner") == ""
        assert json.loads(unpacked(other, "coco")["coco.json"]) == coco
        other.page.click("#undo")
        assert other.facts() == []
