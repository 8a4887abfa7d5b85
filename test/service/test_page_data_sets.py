"""Labels, data sets of all images as ZIP, and COCO files that give objects to the images that are open."""

import io
import json
import zipfile

import numpy as np
import pytest

from triton_sam.masks.rle import mask_to_rle, rle_to_mask

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
    pytest.importorskip("contourpy")
    for form, count in (("yolo", 3), ("voc", 7), ("labelme", 2), ("geojson", 2), ("labels", 2)):
        assert len(unpacked(page, form)) == count

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


def test_a_coco_file_is_drawn_and_a_file_that_is_none_is_refused(page, images, tmp_path):
    """The forms of masks and the faults of files are in test_page_modules_files.py."""
    page.open(images / "shapes.jpg")
    page.page.click("#export")
    assert "no image has an object" in page.banner()
    (tmp_path / "none.json").write_text('{"images": 1}')
    page.page.set_input_files("#coco", tmp_path / "none.json")
    page.wait("document.getElementById('banner').textContent.includes('no COCO data set')")
    assert page.facts() == []
    drawn = np.zeros((600, 800), bool)
    drawn[100:200, 300:450] = True
    polygon = [300, 100, 450, 100, 450, 200, 300, 200]
    shapes = [mask_to_rle(drawn, compressed=False), [polygon]]
    annotations = [{"image_id": 7, "category_id": 1, "segmentation": each} for each in shapes]
    coco = {
        "images": [
            {"id": 7, "file_name": "folder/shapes.jpg", "width": 800, "height": 600},
            {"id": 8, "file_name": "elsewhere.jpg", "width": 10, "height": 10},
        ],
        "categories": [{"id": 1, "name": "box"}],
        "annotations": annotations,
    }
    path = tmp_path / "coco.json"
    path.write_text(json.dumps(coco))
    page.page.uncheck("#hover")
    bare = page.pixel(380, 150), page.pixel(280, 150)
    page.page.set_input_files("#coco", path)
    page.wait("document.getElementById('banner').textContent.includes('not open: elsewhere.jpg')")
    assert len(page.facts()) == 2
    for each in json.loads(unpacked(page, "coco")["coco.json"])["annotations"]:
        np.testing.assert_array_equal(rle_to_mask(each["segmentation"]), drawn)
    page.page.wait_for_timeout(WRITTEN)  # a frame
    inside, outside = (
        np.abs(np.subtract(page.pixel(x, 150), old)).max() for x, old in zip((380, 280), bare, strict=True)
    )
    assert (inside > 30, outside <= 3) == (True, True)  # a scaled image differs by 1 when it is drawn again
