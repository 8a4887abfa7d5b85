"""The choice of instances, their boxes and masks."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.concepts.instances import Instance, choose, instance_mask, scores_of, sigmoid, to_pixels
from triton_sam.concepts.query import check_query

BOXES = np.float32([[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.45], [0.5, 0.5, 1, 1], [0, 0, 0.1, 0.1]])
SCORES = np.float32([0.6, 0.9, 0.5, 0.2])


def test_overlaps_and_a_limit() -> None:
    assert choose(SCORES, BOXES, check_query("dog", nms=0.89)).tolist() == [1, 2]  # the IoU of 0 and 1 is 0.9
    assert choose(SCORES, BOXES, check_query("dog", nms=0.91)).tolist() == [1, 0, 2]
    assert choose(SCORES, BOXES, check_query("dog", limit=1)).tolist() == [1]
    assert choose(SCORES, BOXES, check_query("dog", nms=0, threshold=0, limit=3)).tolist() == [1, 2]


def test_large_logits_do_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise"):
        assert sigmoid(np.float32([-500, 500])).tolist() == [pytest.approx(0, abs=1e-30), 1.0]


def test_probabilities_are_resized_and_not_logits() -> None:
    logits = np.float32([[-100, 1]])  # the middle: probability 0.37, logit -49.5
    assert instance_mask(logits, (3, 1), 0.3).tolist() == [[False, True, True]]
    assert instance_mask(logits, (3, 1), 0.5).tolist() == [[False, False, True]]


def test_an_instance_tells_its_label() -> None:
    instance = Instance(np.ones((2, 3), bool), 0.5, None, 0, 1, (0, 0, 3, 2), label="dog")
    assert repr(instance) == "Instance('dog', 3x2, 6 px, box=(0, 0, 3, 2), score=0.50)"
    assert (instance.label, instance.found_box, instance.candidate) == ("dog", (0, 0, 3, 2), 1)


@pytest.mark.export
def test_all_of_it_equals_the_reference() -> None:
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
