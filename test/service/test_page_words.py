"""The page searches for words and examples, in headless Chromium, over a real service whose searches need no Triton."""

import asyncio
import json

import numpy as np
import pytest

pytest.importorskip("fastapi")
from support.conditions import wait_until
from support.fake_everything import shapes
from support.fake_words import NOTHING, SCORES, service_with_words
from support.running_browser import open_page

from triton_sam.errors import ModelNotReadyError
from triton_sam.masks import mask_to_box
from triton_sam.masks.rle import rle_to_mask

MASKS = shapes()[: len(SCORES)]
SURE = sum(score >= 0.3 for score in SCORES[: len(MASKS)])
"""Instances that the slider shows at first."""


@pytest.fixture(scope="module")
def running():
    with service_with_words(model="sam3") as running:
        yield running


@pytest.fixture
def client(running):
    running[1].reset()
    yield running[1]
    running[1].reset()


@pytest.fixture
def page(browser, running, client, images):
    with open_page(browser, running[0].url) as page:
        page.uncheck("#hover")  # which asks a Triton
        page.open(images / "shapes.jpg")
        yield page


def inside(number):
    """A point of an instance: the middle of the longest run of its middle row."""
    rows = np.flatnonzero(MASKS[number].any(axis=1))
    row = int(rows[len(rows) // 2])
    edges = np.flatnonzero(np.diff(np.pad(MASKS[number][row].astype(np.int8), 1)))
    start, end = max(zip(edges[::2], edges[1::2], strict=True), key=lambda run: run[1] - run[0])
    return int(start + end) // 2, row


def search(page, words):
    page.page.fill("#words-text", words)
    page.page.press("#words-text", "Enter")
    page.wait("!tritonSam.everything.isSearching")


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


def objects(page):
    return page.page.evaluate("tritonSam.scene.objects.map((object) => object.label)")


def asked(client):
    return [json.loads(query.to_json()) for query, *_ in client.asked]


def test_words_become_objects_with_label_and_score_in_one_step(page, client):
    search(page, "dog, cat")
    assert asked(client)[0]["text"] == ["dog", "cat"]
    assert count(page) == f"{2 * SURE} of {2 * len(MASKS)}"
    page.page.click("#found-keep")
    assert objects(page) == ["dog"] * SURE + ["cat"] * SURE
    assert page.facts()[0].startswith(f"found · score {SCORES[0]:.2f}")
    coco = json.loads(page.download("#save-coco")[1])
    for annotation, mask in zip(coco["annotations"], [*MASKS[:SURE], *MASKS[:SURE]], strict=True):
        np.testing.assert_array_equal(rle_to_mask(annotation["segmentation"]), mask)
    assert {each["name"] for each in coco["categories"]} == {"dog", "cat"}
    page.page.keyboard.press("Control+z")
    page.wait("tritonSam.scene.objects.length === 0", 10)
    for is_deleted, label in ((False, "dog"), (True, "")):  # merged instances keep a label that they share
        search(page, "dog, cat")
        if is_deleted:  # the cat lies under the dog
            page.click(*inside(0))
            page.page.keyboard.press("Delete")
        for number in (0, 1):
            page.click(*inside(number))
        page.page.keyboard.press("j")
        page.page.keyboard.press("k")
        assert objects(page)[-1] == label


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
    assert (shown(page), count(page)) == ([0, 1], f"2 of {len(MASKS)}")
    assert page.page.inner_text("#words-value") == "0.70"
    slide(page, 0.1)
    assert shown(page) == list(range(len(MASKS)))
    assert len(client.asked) == 1
    assert asked(client)[0]["threshold"] == 0.1
    slide(page, 0.95)
    page.page.click("#found-keep")
    assert objects(page) == ["dog"]
    page.page.keyboard.press("Escape")

    slide(page, 0.9)
    search(page, "dog")
    assert page.page.is_hidden("#banner")
    page.click(*inside(0))
    page.page.click("#words-less")  # the only one with a higher score
    page.wait("!tritonSam.everything.isSearching")
    told = f"{len(MASKS) - 1} found, all below the score 0.90: the highest is {SCORES[1]:.2f}. Move Score to see them."
    assert page.page.inner_text("#banner") == told
    assert count(page) == f"0 of {len(MASKS) - 1}"
    slide(page, 0.1)
    assert count(page) == f"{len(MASKS) - 1} of {len(MASKS) - 1}"


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
    assert asked(client)[-1]["boxes"] == [list(mask_to_box(MASKS[0])), list(mask_to_box(MASKS[1]))]
    assert asked(client)[-1]["box_labels"] == [0, 1]
    page.open(images / "coffee.jpg")
    assert page.page.is_hidden("#words-found")
    assert page.page.evaluate("tritonSam.words.examples.length") == 0

    client.gate, ended = asyncio.Event(), client.ended
    page.page.fill("#words-text", "dog")
    page.page.click("#words-find")
    page.wait("tritonSam.everything.isSearching")
    assert page.page.is_disabled("#words-find")
    page.page.press("#words-text", "Escape")
    wait_until(lambda: client.ended == ended + 1)
    assert page.page.is_hidden("#banner")
    client.gate, client.failure = None, ModelNotReadyError("sam3_detector is not ready")
    search(page, "dog")
    assert "sam3_detector is not ready" in page.page.inner_text("#banner")
    page.faults.clear()  # the console names the status 503, which is no fault here
