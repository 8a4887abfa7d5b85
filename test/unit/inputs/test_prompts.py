"""Prompts: the accepted forms, the tensors that they become, and the errors for all others."""

import re

import numpy as np
import pytest

from triton_sam.errors import PromptError
from triton_sam.families import get_family
from triton_sam.inputs.prompts import check_prompts

SIZE = (640, 480)
MASK = np.zeros((256, 256), np.float32)
LOGITS = np.random.default_rng(0).normal(-2, 6, (256, 256)).astype(np.float32)


def check(point_coords=None, point_labels=None, box=None, mask_input=None):
    return check_prompts(point_coords, point_labels, box, mask_input, image_size=SIZE, mask_size=256)


def tensors(*args, **kwargs):
    return check(*args, **kwargs).tensors(get_family("sam2"))


BOX = [64, 48, 128, 96]
CORNERS = [[102.4, 102.4], [204.8, 204.8]]


@pytest.mark.parametrize(
    ("points", "given", "coords", "labels"),
    [
        ([[320, 240], [0, 480]], {"point_labels": [1, 0]}, [[[512, 512], [0, 1024]]], [[1, 0]]),
        ((320, 240), {"point_labels": 0}, [[[512, 512]]], [[0]]),
        (np.array([320.0, 240.0]), {"point_labels": [0]}, [[[512, 512]]], [[0]]),
        ([[320, 240]], {"point_labels": [0], "box": BOX}, [[*CORNERS, [512, 512]]], [[2, 3, 0]]),
        ([], {"box": BOX}, [CORNERS], [[2, 3]]),
        (
            [[[0, 480]], [[0, 480], [320, 240], [0, 0]]],  # lists of different lengths
            {"point_labels": [[1], [1, 0, 1]]},
            [[[0, 1024], [0, 0], [0, 0]], [[0, 1024], [512, 512], [0, 0]]],
            [[1, -2, -2], [1, 0, 1]],
        ),
    ],
)
def test_forms_of_points_and_boxes(points, given, coords, labels):
    inputs = tensors(points, **given)
    np.testing.assert_allclose(inputs["point_coords"], coords, rtol=1e-6)
    np.testing.assert_array_equal(inputs["point_labels"], labels)
    assert inputs["point_coords"].dtype == inputs["point_labels"].dtype == np.float32
    assert "mask_input" not in inputs


@pytest.mark.parametrize("points", [np.zeros((2, 0, 2)), [[], []]])
def test_boxes_may_come_with_one_empty_list_of_points_for_each(points):
    prompts = check(points, box=[[0, 0, 10, 10]] * 2)
    assert prompts.coords.shape == (2, 0, 2)
    assert prompts.labels.shape == (2, 0)
    with pytest.raises(PromptError, match=r"2 object\(s\), but box is for 3"):
        check(points, box=[[0, 0, 10, 10]] * 3)
    with pytest.raises(PromptError, match="at least one point"):
        check(points)


def test_one_of_several_objects_may_have_a_box_and_no_points():
    boxes = [[0, 0, 9, 9], [1, 1, 9, 9]]
    for points, labels in (([[], [[1, 2]]], None), ([np.zeros((0, 2)), [[1, 2]]], [[], [0]])):
        prompts = check(points, labels, box=boxes)
        np.testing.assert_array_equal(prompts.coords, [[[0, 0]], [[1, 2]]])
        np.testing.assert_array_equal(prompts.labels, [[-2], [1 if labels is None else 0]])
        with pytest.raises(PromptError, match="at least one point"):
            check(points, labels)


def test_positions_that_are_padding_for_every_object_are_left_out():
    points, labels = [[[9, 9], [1, 1], [9, 9]], [[9, 9], [2, 2], [3, 3]]], [[-2, 1, -2], [-2, 0, 1]]
    both, first, second = check(points, labels), *check(points, labels).parts(1)
    assert both.has_padding
    assert not check([[1, 1]]).has_padding
    for name in ("sam1", "sam2", "sam3"):
        family = get_family(name)
        key = "input_labels" if name == "sam3" else "point_labels"
        for prompts, kept in ((both, [[1, both.labels[0, 2]], [0, 1]]), (first, [[1]]), (second, [[0, 1]])):
            expected = np.array(kept)
            if name == "sam3":
                expected = np.where(expected == -2, -10, expected)[None]
            np.testing.assert_array_equal(prompts.tensors(family)[key], expected)
    alone, padded = tensors(box=[1, 2, 3, 4]), tensors([[5, 5]], [-2], box=[1, 2, 3, 4])
    for key, array in alone.items():
        np.testing.assert_array_equal(padded[key], array)


@pytest.mark.parametrize("shape", [(256, 256), (1, 256, 256), (1, 1, 256, 256)])
def test_a_mask_may_come_alone_or_with_points(shape):
    alone = tensors(mask_input=np.zeros(shape))
    assert alone["mask_input"].shape == (1, 1, 256, 256)
    assert alone["point_coords"].shape == (1, 0, 2)
    np.testing.assert_array_equal(alone["has_mask_input"], [1])
    assert tensors([[1, 1]], [1], mask_input=np.zeros(shape))["point_coords"].shape == (1, 1, 2)


@pytest.mark.parametrize(
    "drawn",
    [
        LOGITS > 0,
        (LOGITS > 0).astype(np.uint8),
        (LOGITS > 0).astype(np.uint8) * np.uint8(255),
        (LOGITS > 0).astype(np.float32),
        (LOGITS > 0).tolist(),
        np.ones((256, 256), bool),
    ],
    ids=["bool", "uint8", "255", "float32", "list", "everything"],
)
def test_a_mask_becomes_logits(drawn):
    """As numbers near zero, a mask of 0 and 1 would say almost nothing."""
    expected = np.where(np.array(drawn) > 0, 10, -10)
    np.testing.assert_array_equal(tensors(mask_input=drawn)["mask_input"][0, 0], expected)
    several = tensors(box=[[0, 0, 9, 9]] * 2, mask_input=np.stack([drawn, drawn])[:, None])
    np.testing.assert_array_equal(several["mask_input"][1, 0], expected)


def test_logits_stay_as_they_are():
    weak = np.full((256, 256), 0.25)
    weak[0, 0] = -0.25
    for logits in (LOGITS, np.zeros((256, 256)), np.rint(LOGITS).astype(np.int64), weak, np.full((256, 256), 7.5)):
        np.testing.assert_array_equal(tensors(mask_input=logits)["mask_input"][0, 0], np.float32(logits))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((256, 256), bool), "an empty mask"),
        (np.zeros((256, 256), np.uint8), "an empty mask"),
        (np.arange(65_536, dtype=np.uint16).reshape(256, 256) % 90, "holds 0 to 89, which are not logits"),
        (np.linspace(0, 1, 65_536).reshape(256, 256), "holds 0 to 1, which are not logits"),  # probabilities
        (np.full((256, 256), 200.0), "holds 200 to 200"),
        (np.full((256, 256), -1e6), "holds -1e+06 to -1e+06"),
    ],
    ids=["nothing", "nothing in bytes", "grey", "probabilities", "a number", "far away"],
)
def test_what_cannot_be_logits_is_refused(values, words):
    with pytest.raises(PromptError, match=re.escape(words)):
        check(mask_input=values)


def test_one_mask_serves_all_objects_and_several_masks_must_match_their_number():
    assert tensors(box=[[0, 0, 9, 9]] * 3, mask_input=MASK)["mask_input"].shape[0] == 1
    assert tensors(box=[[0, 0, 9, 9]] * 3, mask_input=np.zeros((3, 1, 256, 256)))["mask_input"].shape[0] == 3
    with pytest.raises(PromptError, match="2 masks for 3 object"):
        check(box=[[0, 0, 9, 9]] * 3, mask_input=np.zeros((2, 1, 256, 256)))


class Tensor:
    """A tensor of PyTorch that requires gradients."""

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({}, "the prompt is empty"),
        ({"point_coords": []}, "at least one point"),
        ({"point_coords": [[1, 1]], "point_labels": [-2]}, "at least one point"),
        ({"point_coords": [[641, 10]]}, "point (641, 10) lies outside the image of 640x480"),
        ({"point_coords": [[1, 10], [-1, 10]]}, "point (-1, 10) lies outside"),
        ({"point_coords": [[np.inf, 10]]}, "NaN or infinity"),
        ({"point_coords": [[1, 2, 3]]}, "not (1, 3)"),
        ({"point_coords": np.zeros((1, 1, 1, 2))}, "point_coords must be"),
        ({"point_coords": [[1, 1]], "point_labels": [7]}, "label 7"),
        ({"point_coords": [[1, 1]], "point_labels": [0.5]}, "label 0.5"),
        ({"point_coords": [[1, 1]], "point_labels": [np.nan]}, "NaN"),
        ({"point_coords": [[1, 1]], "point_labels": [1, 0]}, "one label for each point"),
        ({"point_labels": [1]}, "were given without point_coords"),
        ({"box": [100, 10, 50, 90]}, "swapped corners"),
        ({"box": [10, 10, 10, 90]}, "swapped corners"),
        ({"box": [10, 90, 50, 90]}, "swapped corners"),
        ({"box": np.zeros((0, 4))}, "box must be"),
        ({"box": [0, 0, np.nan, 90]}, "NaN"),
        ({"mask_input": np.zeros((128, 128))}, "mask_input must be"),
        ({"mask_input": np.full((256, 256), np.nan)}, "NaN"),
        ({"point_coords": [[1, 1]], "box": [0, 0, 5, 481]}, "box corner (5, 481) lies outside"),
        ({"point_coords": [[[1, 1, 1]], [[2, 2, 2], [3, 3, 3]]]}, "the points of each object must be (N,2)"),
        ({"point_coords": [[[1, 1]], [[2, 2], [3, 3]]], "point_labels": [[1], [1]]}, "one label for each point"),
        ({"box": [[0, 0, 9, 9], [5, 9, 9, 5]]}, "box 5,9,9,5 has swapped corners"),
        ({"mask_input": np.zeros((2, 2, 256, 256))}, "mask_input must be (256,256), (1,256,256) or (P,1,256,256)"),
        ({"box": [[0, 0, 9, 9]] * 2, "mask_input": np.zeros((3, 1, 256, 256))}, "3 masks for 2 object(s)"),
        ({"point_coords": [[[1, 1]], [[2, 2], [3, 3]]], "point_labels": [1]}, "one list for each of the 2 objects"),
        ({"point_coords": [[1, 1]], "point_labels": ["a"]}, "point_labels must be an array of numbers"),
        ({"point_coords": Tensor()}, "point_coords cannot be read: Can't call numpy() on Tensor that requires grad."),
    ],
)
def test_the_error_names_the_refused_value(prompt, words):
    with pytest.raises(PromptError, match=re.escape(words)):
        check(**prompt)


def test_each_part_has_the_masks_of_its_objects():
    masks = np.arange(3.0)[:, None, None, None] * np.ones((3, 1, 256, 256))
    parts = check(box=[[0, 0, 9, 9]] * 3, mask_input=masks).parts(1)
    assert [float(part.mask[0, 0, 0, 0]) for part in parts] == [0.0, 1.0, 2.0]


def test_a_padding_point_may_lie_anywhere():
    check([[1, 1], [9999, -5]], [1, -2])
