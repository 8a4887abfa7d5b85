"""The page finds everything, words and examples, in headless Chromium, over a service whose networks draw."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from support.conditions import PATIENCE, wait_until
from support.drawn_server import NOTHING, SCORES, inside, objects, shapes
from support.running_browser import CANVAS_FITS, STORED, open_page

from triton_sam.errors import InferenceError
from triton_sam.masks import mask_to_box
from triton_sam.masks.rle import rle_to_mask

SERVICE = {"words": True}
MASKS, NAMED = objects(), shapes()
"""The masks that a search for everything finds, and those that words find."""
COUNT = len(MASKS)
SURE = sum(score >= 0.3 for score in SCORES[:COUNT])
"""Instances that the slider shows at first."""


@pytest.fixture
def page(browser, running, images):
    with open_page(browser, running.service.url) as page:
        page.uncheck("#hover")  # which asks a Triton
        page.open(images / "shapes.jpg")
        yield page


@pytest.fixture
def client(running, page):
    """The client of the model that finds words, which the page uses."""
    page.page.select_option("#model", "sam3")
    page.wait("document.getElementById('busy').hidden")
    return running.server


def find(page, count=COUNT):
    page.page.click("#find")
    page.wait(f"!tritonSam.everything.isSearching && tritonSam.everything.items.length === {count}")
    page.wait(CANVAS_FITS)  # beside the row of what was found


def info(page):
    return page.page.inner_text("#found-info")


def objects(page):
    return page.page.evaluate("tritonSam.scene.objects.length")


def saved(page):
    """Return the mask that the page writes for the active object."""
    return np.asarray(Image.open(io.BytesIO(page.download("#save-mask")[1])))


def test_objects_are_kept_merged_deleted_and_chosen_by_keys(page, images):
    find(page)
    assert info(page) == f"{COUNT} found"
    assert page.page.is_hidden("#found-merge")
    page.click(*inside(0))
    assert info(page) == f"1 of {COUNT} selected"
    page.click(*inside(1))
    page.page.focus("#found-merge")
    page.page.keyboard.press("Enter")
    assert info(page) == f"1 of {COUNT - 1} selected"
    assert page.page.evaluate("document.activeElement.id") == "canvas"  # the button is hidden
    page.page.click("#found-keep")
    assert page.facts()[0].startswith("found · score 0.9")
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
        page.wait(f"tritonSam.everything.items.length === {left}")
    assert objects(page) == 0
    for key, number in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", COUNT - 1)):
        page.page.keyboard.press(key)
        assert page.page.evaluate("tritonSam.everything.selected.map((item) => item.number)") == [number]
    page.page.keyboard.press("Delete")
    page.wait(STORED)
    page.page.reload()
    page.opened("shapes.jpg")
    page.uncheck("#hover")
    find(page)  # others than the deleted one
    page.open(images / "coffee.jpg")
    assert page.page.is_hidden("#found")
    assert page.page.evaluate("tritonSam.everything.items.length") == 0


@pytest.mark.slow
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
    page.wait(f"tritonSam.everything.items.length === {COUNT} && {CANVAS_FITS}")
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


@pytest.mark.slow
def test_objects_appear_as_they_come_and_better_ones_take_their_places(page, drawing):
    drawing.finds = False
    page.page.click("#find")
    assert "pred_iou_thresh" in page.banner()
    assert page.page.is_hidden("#found")
    page.page.click("#banner-close")
    drawing.reset()
    drawing.everything.limit = 2
    cancelled = drawing.cancelled
    page.page.click("#find")
    page.wait("tritonSam.everything.items.length === 2")
    assert drawing.everything.reached.wait(PATIENCE)
    assert page.page.is_visible("#found-progress")
    assert page.page.is_disabled("#find")
    page.page.click("#found-stop")
    wait_until(lambda: drawing.cancelled > cancelled)
    assert page.page.evaluate("tritonSam.everything.items.length") < COUNT
    assert page.page.is_enabled("#find")
    assert page.page.is_hidden("#banner")

    drawing.reset()
    drawing.everything.limit = 1
    page.page.click("#find")
    page.wait("tritonSam.everything.items.length === 1")
    page.click(*inside(0))
    page.page.keyboard.press("k")  # an object that was kept stays when a better one comes
    drawing.improves, drawing.everything.limit = True, None
    page.wait("!tritonSam.everything.isSearching")
    assert info(page) == f"{COUNT - 1} found"
    np.testing.assert_array_equal(saved(page) == 255, MASKS[0])
    page.page.keyboard.press("Escape")
    assert page.page.is_hidden("#found")
    page.page.keyboard.press("Control+z")
    assert info(page) == f"{COUNT - 1} found"
    page.page.keyboard.press("Escape")
    find(page)


# --- words and examples ----------------------------------------------------------------------------------------------


def search(page, words):
    page.page.fill("#words-text", words)
    page.page.press("#words-text", "Enter")
    page.wait("!tritonSam.everything.isSearching")
    page.wait(CANVAS_FITS)


def slide(page, value):
    page.page.evaluate(
        "(value) => { const e = document.getElementById('words-threshold'); e.value = value;"
        " e.dispatchEvent(new Event('input')); }",
        value,
    )


def shown(page):
    return page.page.evaluate("tritonSam.everything.items.map((item) => item.number)")


def count(page):
    return page.page.inner_text("#words-count")


def labels(page):
    return page.page.evaluate("tritonSam.scene.objects.map((object) => object.label)")


def asked(client):
    return [json.loads(query.to_json()) for query in client.queries()]


def test_words_become_objects_with_label_and_score_in_one_step(page, client):
    search(page, "dog, cat")
    assert asked(client)[0]["text"] == ["dog", "cat"]
    assert count(page) == f"{2 * SURE} of {2 * COUNT}"
    page.page.click("#found-keep")
    assert labels(page) == ["dog"] * SURE + ["cat"] * SURE
    assert page.facts()[0].startswith(f"found · score {SCORES[0]:.2f}")
    coco = json.loads(page.download("#save-coco")[1])
    for annotation, mask in zip(coco["annotations"], [*NAMED[:SURE], *NAMED[:SURE]], strict=True):
        np.testing.assert_array_equal(rle_to_mask(annotation["segmentation"]), mask)
    assert {each["name"] for each in coco["categories"]} == {"dog", "cat"}
    page.page.keyboard.press("Control+z")
    page.wait("tritonSam.scene.objects.length === 0")
    for is_deleted, label in ((False, "dog"), (True, "")):  # merged instances keep a label that they share
        search(page, "dog, cat")
        if is_deleted:  # the cat lies under the dog
            page.click(*inside(0))
            page.page.keyboard.press("Delete")
        for number in (0, 1):
            page.click(*inside(number))
        page.page.keyboard.press("j")
        page.page.keyboard.press("k")
        assert labels(page)[-1] == label


@pytest.mark.slow
def test_the_slider_hides_and_shows_instances_without_a_request(page, client):
    search(page, NOTHING)
    assert page.page.inner_text("#banner") == f"Nothing was found for “{NOTHING}”."
    assert page.page.is_hidden("#found")
    client.reset()
    search(page, "dog")
    assert page.page.is_hidden("#banner")
    assert shown(page) == list(range(SURE))
    slide(page, 0.7)
    assert (shown(page), count(page)) == ([0, 1], f"2 of {COUNT}")
    assert page.page.inner_text("#words-value") == "0.70"
    slide(page, 0.1)
    assert shown(page) == list(range(COUNT))
    assert len(client.queries()) == 1
    assert asked(client)[0]["threshold"] == 0.1
    slide(page, 0.9)
    page.page.click("#found-keep")
    assert labels(page) == ["dog"]
    page.page.keyboard.press("Escape")

    search(page, "dog")
    assert page.page.is_hidden("#banner")
    page.click(*inside(0))
    page.page.click("#words-less")  # the only one with a higher score
    page.wait("!tritonSam.everything.isSearching")
    left = COUNT - 2  # the middle of the third one lies in the box of the first, too
    told = f"{left} found, all below the score 0.90: the highest is {SCORES[1]:.2f}. Move Score to see them."
    assert page.page.inner_text("#banner") == told
    assert count(page) == f"0 of {left}"
    slide(page, 0.1)
    assert count(page) == f"{left} of {left}"


@pytest.mark.slow
def test_the_field_is_there_for_models_that_find_words_takes_examples_and_forgets_other_images(page, client, images):
    assert page.page.is_visible("#words")
    page.page.keyboard.press("/")
    assert page.page.evaluate("document.activeElement.id") == "words-text"
    page.page.select_option("#model", "sam2")
    page.page.wait_for_selector("#words", state="hidden")
    page.page.select_option("#model", "sam3")
    page.page.wait_for_selector("#words", state="visible")
    page.wait("document.getElementById('busy').hidden")
    search(page, "dog")
    assert page.page.is_disabled("#words-more")
    for number, button in ((0, "#words-less"), (1, "#words-more")):
        page.click(*inside(number))
        page.page.click(button)
        page.wait("!tritonSam.everything.isSearching")
    assert asked(client)[-1]["boxes"] == [list(mask_to_box(NAMED[0])), list(mask_to_box(NAMED[1]))]
    assert asked(client)[-1]["box_labels"] == [0, 1]
    assert page.page.is_visible("#words-info")
    page.open(images / "coffee.jpg")
    assert page.page.is_hidden("#words-found")
    assert page.page.is_hidden("#words-info")

    client.words.limit = 0
    cancelled = client.cancelled
    page.page.fill("#words-text", "dog")
    page.page.click("#words-find")
    assert client.words.reached.wait(PATIENCE)  # only a request that has arrived there is cancelled there
    assert page.page.is_disabled("#words-find")
    page.page.press("#words-text", "Escape")
    wait_until(lambda: client.cancelled == cancelled + 1)
    assert page.page.is_hidden("#banner")
    client.words.limit = None
    client.words.failure = InferenceError("sam3_detector failed")
    search(page, "dog")
    assert "sam3_detector failed" in page.page.inner_text("#banner")
    page.refused(502)
