"""Requests for instances are checked once, with a sentence for every mistake; the choice of instances, their masks."""

import json

import numpy as np
import pytest

from triton_sam.concepts.instances import choose, instance_mask, scores_of, sigmoid, to_pixels
from triton_sam.concepts.query import MAX_EXAMPLES, MAX_TEXTS, check_parameters, check_query, query_from
from triton_sam.errors import PromptError
from triton_sam.masks.rle import mask_to_rle
from triton_sam.sessions.messages import read_object

BOX = [10, 20, 50, 60]
SHARES = ("threshold", "mask_threshold", "nms")


def test_texts_and_boxes_as_the_detector_takes_them():
    assert check_query("dog").prompts == check_query(["dog"]).labels() == ("dog",)
    assert check_query(("a cat", "dog")).prompts == ("a cat", "dog")
    query = check_query(boxes=BOX)  # the text of the reference, and no label
    assert (query.prompts, query.labels(), query.box_labels.tolist()) == (("visual",), ("",), [1])
    query = check_query("dog", [BOX, [0, 0, 200, 100]], [1, 0])
    np.testing.assert_allclose(query.normalised((200, 100)), [[0.15, 0.4, 0.2, 0.4], [0.5, 0.5, 1, 1]], atol=1e-7)
    assert query.normalised((200, 100)).dtype == np.float32


def test_the_wire_keeps_all():
    query = check_query(["a", "b"], [BOX], [0], threshold=0.2, mask_threshold=0.6, nms=0.5, limit=3)
    again = query_from(json.loads(query.to_json()))
    assert again.to_json() == query.to_json()
    assert (again.texts, again.threshold, again.mask_threshold) == (("a", "b"), 0.2, 0.6)
    assert (again.nms, again.limit) == (0.5, 3)


ONES = np.ones((3, 3))
WRONG: dict[str, list[dict]] = {
    "give a text or an example box": [{}],
    "text": [{"text": each} for each in ([], 3, ["dog", None], ["dog", "  "], ["dog"] * (MAX_TEXTS + 1))],
    "boxes must be": [{"boxes": each} for each in ([1, 2, 3], "abc", [[0, 0, 10**400, 5]])],
    "box": [{"boxes": each} for each in ([50, 20, 10, 60], [0, 0, float("nan"), 1], [BOX] * (MAX_EXAMPLES + 1))],
    "box_labels": [{"boxes": [BOX], "box_labels": each} for each in ([1, 0], [2])] + [{"text": "a", "box_labels": [1]}],
    "at least one with label 1": [{"boxes": [BOX], "box_labels": [0]}],
    **{name: [{"text": "a", name: each} for each in (1.5, -0.1, "0.5", True, 10**400)] for name in SHARES},
    "limit": [{"text": "a", "limit": each} for each in (0, 2.5)],
    "mask": [{"masks": each} for each in ([], "a", [np.zeros((4, 4))], [ONES, np.ones((4, 5))], [np.ones((4, 4, 3))])],
    "damaged COCO RLE": [{"masks": [{"size": [2, 2], "counts": [9]}]}],
    "mask_labels": [{"masks": [ONES], "mask_labels": each} for each in ([1, 0], [2], [[1], [1, 2]], "abc", [10**400])],
    "mask_labels need masks": [{"text": "a", "mask_labels": [1]}],
}


@pytest.mark.parametrize("words", WRONG)
def test_a_mistake_is_told_by_the_name_of_what_is_wrong(words):
    for arguments in WRONG[words]:
        with pytest.raises(PromptError, match=words):
            check_query(**arguments)
        if words != "box" and "masks" not in arguments:  # JSON has no NaN, and no arrays
            with pytest.raises(PromptError):
                query_from(json.loads(json.dumps(arguments)))


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"{", b'{"txt": "dog"}', b'{"text": "dog", "nsm": 1}'])
def test_what_is_no_request(content):
    with pytest.raises(PromptError):
        query_from(read_object({"find": np.array([content])}, "find", "", PromptError))
    for size in (b"3", b"[1]", b'["a", 2]'):
        with pytest.raises(PromptError, match="mask_size must be the width and height"):
            query_from({"text": "dog", "mask_size": json.loads(size)})


def test_a_box_outside_the_image_and_an_unknown_parameter():
    query = check_query("dog", [[300, 0, 400, 50]])
    query.check_inside((301, 50))
    with pytest.raises(PromptError, match="lies outside the image, which has 300 x 50 pixels"):
        query.check_inside((300, 50))
    with pytest.raises(PromptError, match="there is no parameter 'tresh': the parameters are threshold"):
        check_parameters("dog", None, None, {"tresh": 1})


def test_masks_stand_for_their_boxes():
    mask = np.zeros((50, 80), np.uint8)
    mask[10:20, 30:45] = 255
    query = check_query("dog", [BOX], [0], masks=[mask, mask_to_rle(mask)], mask_labels=[1, 0])
    assert query.boxes.tolist() == [BOX, [30, 10, 45, 20], [30, 10, 45, 20]]
    assert (query.box_labels.tolist(), query.mask_size) == ([0, 1, 0], (80, 50))
    assert check_query(masks=mask).boxes.tolist() == check_query(masks=mask_to_rle(mask)).boxes.tolist()
    sent = query_from(json.loads(query.to_json()))
    assert (sent.to_json(), sent.mask_size) == (query.to_json(), (80, 50))
    sent.check_inside((80, 50))
    with pytest.raises(PromptError, match="masks have 80 x 50 pixels, and the image that they belong to has 81 x 50"):
        sent.check_inside((81, 50))
    other = query_from({"masks": [mask_to_rle(mask)]})  # a program in another language sends RLE
    assert (other.boxes.tolist(), other.mask_size) == ([[30, 10, 45, 20]], (80, 50))
    assert b"mask_size" not in check_query("dog").to_json()  # a server from before masks would refuse it


# The choice of instances

BOXES = np.float32([[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.45], [0.5, 0.5, 1, 1], [0, 0, 0.1, 0.1]])
SCORES = np.float32([0.6, 0.9, 0.5, 0.2])


def test_overlaps_and_a_limit():
    assert choose(SCORES, BOXES, check_query("dog", nms=0.89)).tolist() == [1, 2]  # the IoU of 0 and 1 is 0.9
    assert choose(SCORES, BOXES, check_query("dog", nms=0.91)).tolist() == [1, 0, 2]
    assert choose(SCORES, BOXES, check_query("dog", limit=1)).tolist() == [1]
    assert choose(SCORES, BOXES, check_query("dog", nms=0, threshold=0, limit=3)).tolist() == [1, 2]


def test_large_logits_do_not_overflow_and_probabilities_are_resized():
    with np.errstate(over="raise", invalid="raise"):
        assert sigmoid(np.float32([-500, 500])).tolist() == [pytest.approx(0, abs=1e-30), 1.0]
    logits = np.float32([[-100, 1]])  # the middle: probability 0.37, logit -49.5
    assert instance_mask(logits, (3, 1), 0.3).tolist() == [[False, True, True]]
    assert instance_mask(logits, (3, 1), 0.5).tolist() == [[False, False, True]]


@pytest.mark.export
def test_all_of_it_equals_the_reference():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.sam3.image_processing_sam3 import Sam3ImageProcessor
    from transformers.models.sam3.modeling_sam3 import Sam3ImageSegmentationOutput

    rng = np.random.default_rng(0)
    outputs = {
        "pred_logits": rng.normal(0, 2, (1, 50)).astype(np.float32),
        "presence_logits": np.float32([[1.5]]),
        "pred_boxes": np.sort(rng.uniform(0, 1, (1, 50, 2, 2)), axis=2).reshape(1, 50, 4).astype(np.float32),
        "pred_masks": rng.normal(0, 3, (1, 50, 18, 18)).astype(np.float32),
    }
    official = Sam3ImageSegmentationOutput(**{name: torch.from_numpy(array) for name, array in outputs.items()})
    (expected,) = Sam3ImageProcessor().post_process_instance_segmentation(official, 0.4, 0.6, [(70, 90)])
    scores = scores_of(outputs)[0]
    chosen = choose(scores, outputs["pred_boxes"][0], check_query("dog", threshold=0.4))
    order = np.argsort(-expected["scores"].numpy(), kind="stable")
    assert len(chosen) == len(order) > 10
    np.testing.assert_allclose(scores[chosen], expected["scores"].numpy()[order], atol=1e-6)
    for index, place in zip(chosen.tolist(), order.tolist(), strict=True):
        np.testing.assert_allclose(to_pixels(outputs["pred_boxes"][0, index], (90, 70)), expected["boxes"][place])
        mask = instance_mask(outputs["pred_masks"][0, index], (90, 70), 0.6)
        assert (mask != expected["masks"][place].numpy().astype(bool)).sum() <= 1
