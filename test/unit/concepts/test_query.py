"""Requests for instances are checked once, and every mistake has a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

from triton_sam.concepts.query import MAX_EXAMPLES, MAX_TEXTS, check_parameters, check_query, read_query
from triton_sam.errors import PromptError
from triton_sam.masks.rle import mask_to_rle

BOX = [10, 20, 50, 60]


def test_one_text_and_several() -> None:
    assert check_query("dog").prompts == check_query(["dog"]).labels() == ("dog",)
    assert check_query(("a cat", "dog")).prompts == ("a cat", "dog")


def test_examples_without_a_text_have_the_text_of_the_reference_and_no_label() -> None:
    query = check_query(boxes=BOX)
    assert (query.prompts, query.labels(), query.box_labels.tolist()) == (("visual",), ("",), [1])


def test_boxes_as_the_detector_takes_them() -> None:
    query = check_query("dog", [BOX, [0, 0, 200, 100]], [1, 0])
    np.testing.assert_allclose(query.normalised((200, 100)), [[0.15, 0.4, 0.2, 0.4], [0.5, 0.5, 1, 1]], atol=1e-7)
    assert query.normalised((200, 100)).dtype == np.float32


def test_the_wire_keeps_all() -> None:
    query = check_query(["a", "b"], [BOX], [0], threshold=0.2, mask_threshold=0.6, nms=0.5, limit=3)
    again = read_query(query.to_json())
    assert again.to_json() == query.to_json()
    assert (again.texts, again.threshold, again.mask_threshold) == (("a", "b"), 0.2, 0.6)
    assert (again.nms, again.limit) == (0.5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "say a text, or show an example box"),
        ({"text": 3}, "text must be a string or a list of strings"),
        ({"text": ["dog", "  "]}, "a text is empty"),
        ({"text": ["dog"] * (MAX_TEXTS + 1)}, "65 texts"),
        ({"boxes": [1, 2, 3]}, r"boxes must be \(4,\) or \(N,4\)"),
        ({"boxes": [50, 20, 10, 60]}, "x1 < x2"),
        ({"boxes": [0, 0, float("nan"), 1]}, "finite"),
        ({"boxes": "abc"}, "boxes must be numbers"),
        ({"boxes": [[0, 0, 10**400, 5]]}, "boxes must be numbers"),
        ({"boxes": [BOX] * (MAX_EXAMPLES + 1)}, "65 boxes"),
        ({"boxes": [BOX], "box_labels": [1, 0]}, "one label for each of the 1 boxes"),
        ({"boxes": [BOX], "box_labels": [2]}, "1 .an instance. or 0 .not this."),
        ({"boxes": [BOX], "box_labels": [0]}, "at least one with label 1"),
        ({"text": "dog", "box_labels": [1]}, "box_labels need boxes"),
        ({"text": "dog", "threshold": 1.5}, "threshold must be a number within 0..1"),
        ({"text": "dog", "threshold": "0.5"}, "threshold must be"),
        ({"text": "dog", "nms": -0.1}, "nms must be"),
        ({"text": "dog", "limit": 0}, "limit must be at least 1"),
        ({"text": "dog", "limit": 2.5}, "limit must be a whole number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_has_a_sentence(arguments: dict, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        check_query(**arguments)
    if not any(value != value for value in np.ravel(arguments.get("boxes", 0)) if isinstance(value, float)):
        with pytest.raises(PromptError):
            read_query(json.dumps(arguments).encode())


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"{", b'{"txt": "dog"}', b'{"text": "dog", "nsm": 1}'])
def test_what_is_no_request(content: bytes) -> None:
    with pytest.raises(PromptError):
        read_query(content)


def test_a_box_outside_the_image() -> None:
    query = check_query("dog", [[300, 0, 400, 50]])
    query.check_inside((301, 50))
    with pytest.raises(PromptError, match="lies outside the image, which has 300 x 50 pixels"):
        query.check_inside((300, 50))


def test_an_unknown_parameter() -> None:
    with pytest.raises(PromptError, match="there is no parameter 'tresh': the parameters are threshold"):
        check_parameters("dog", None, None, {"tresh": 1})


def test_masks_stand_for_their_boxes() -> None:
    mask = np.zeros((50, 80), np.uint8)
    mask[10:20, 30:45] = 255
    query = check_query("dog", [BOX], [0], masks=[mask, mask_to_rle(mask)], mask_labels=[1, 0])
    assert query.boxes.tolist() == [BOX, [30, 10, 45, 20], [30, 10, 45, 20]]
    assert (query.box_labels.tolist(), query.mask_size) == ([0, 1, 0], (80, 50))
    assert check_query(masks=mask).boxes.tolist() == check_query(masks=mask_to_rle(mask)).boxes.tolist()
    sent = read_query(query.to_json())
    assert (sent.to_json(), sent.mask_size) == (query.to_json(), (80, 50))
    sent.check_inside((80, 50))
    with pytest.raises(
        PromptError, match="the example masks have 80 x 50 pixels, and the image that they belong to has"
    ):
        sent.check_inside((81, 50))
    other = read_query(json.dumps({"masks": [mask_to_rle(mask)]}).encode())  # a program in another language sends RLE
    assert (other.boxes.tolist(), other.mask_size) == ([[30, 10, 45, 20]], (80, 50))
    assert b"mask_size" not in check_query("dog").to_json()  # a server from before masks would refuse it


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"masks": []}, "at least one"),
        ({"masks": "a"}, "must be a list of arrays"),
        ({"masks": [np.zeros((4, 4))]}, "an example mask is empty"),
        ({"masks": [np.ones((4, 4)), np.ones((4, 5))]}, "different sizes"),
        ({"masks": [np.ones((4, 4, 3))]}, r"cannot be read: a mask is an \(H,W\) array"),
        ({"masks": [{"size": [2, 2], "counts": [9]}]}, "cannot be read: damaged COCO RLE"),
        ({"masks": [np.ones((4, 4))], "mask_labels": [1, 0]}, "one label for each of the 1 masks, not 2"),
        ({"masks": [np.ones((4, 4))], "mask_labels": [2]}, "^mask_labels must be 1 .an instance. or 0 .not this."),
        ({"masks": [np.ones((3, 3))], "mask_labels": [[1]]}, "^mask_labels must be numbers, one for each mask"),
        ({"text": "dog", "mask_labels": [1]}, "mask_labels need masks"),
    ],
    ids=str,
)
def test_a_mistake_about_masks_has_a_sentence(arguments: dict, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        check_query(**arguments)


@pytest.mark.parametrize("size", [b"3", b"[1]", b'["a", 2]'])
def test_a_size_of_masks_that_is_none(size: bytes) -> None:
    with pytest.raises(PromptError, match="mask_size must be the width and height"):
        read_query(b'{"text": "dog", "mask_size": ' + size + b"}")
