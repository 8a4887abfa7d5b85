"""One object of an image: cut out, cropped, in a notebook, for pycocotools and supervision."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from triton_sam.errors import InputError, MissingDependencyError
from triton_sam.masks import Segment, to_supervision


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture
def segment():
    mask = np.zeros((40, 60), bool)
    mask[10:20, 30:50] = True
    mask[10, 30] = False
    return Segment(mask, 0.75, None, object_index=2, candidate=1)


def test_a_cutout_is_transparent_around_the_object(image, segment):
    cut = np.asarray(segment.cutout(image))
    assert cut.shape == (10, 20, 4)
    assert cut[0, 0].tolist() == [0, 0, 0, 0]
    inside = cut[..., 3] == 255
    assert inside.sum() == segment.area
    np.testing.assert_array_equal(cut[inside][:, :3], image[10:20, 30:50][inside])


def test_a_crop_keeps_a_margin_as_far_as_the_image_reaches(image, segment):
    np.testing.assert_array_equal(np.asarray(segment.crop(image)), image[10:20, 30:50])
    np.testing.assert_array_equal(np.asarray(segment.crop(image, 15)), image[:35, 15:])
    with pytest.raises(InputError, match="at least 0"):
        segment.crop(image, -1)


def test_what_cannot_be_cut_out(image, segment):
    for act in (segment.cutout, segment.crop):
        with pytest.raises(InputError, match="shape"):
            act(image[:30])
    with pytest.raises(InputError, match="empty"):
        Segment(np.zeros((40, 60), bool), 0.0, None).cutout(image)


def test_a_notebook_shows_the_mask(segment):
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(segment._repr_png_()))) > 0, segment.mask)


def test_pycocotools_reads_the_rle(segment):
    mask = pytest.importorskip("pycocotools.mask")
    np.testing.assert_array_equal(mask.decode(segment.to_pycocotools()), segment.mask)
    assert mask.area(segment.to_pycocotools()) == segment.area


@pytest.mark.filterwarnings("ignore:OpenCV:UserWarning")
def test_detections_of_supervision(segment):
    pytest.importorskip("supervision")
    empty = Segment(np.zeros((40, 60), bool), 0.1, None)
    found = to_supervision([segment, empty])
    assert found.xyxy.tolist() == [[30, 10, 50, 20]]
    assert (found.confidence.tolist(), found.class_id.tolist()) == ([0.75], [0])
    assert (found.data["object_index"].tolist(), found.data["candidate"].tolist()) == ([2], [1])
    assert found["class_name"].tolist() == ["object"]
    np.testing.assert_array_equal(found.mask[0], segment.mask)
    named = [replace(segment, label=label) for label in ("bus", "cat", "bus", "")]
    several = to_supervision(named)
    assert several["class_name"].tolist() == ["bus", "cat", "bus", "object"]
    assert several.class_id.tolist() == [0, 1, 0, 2]
    assert len(to_supervision([empty])) == 0
    assert len(segment.to_supervision()) == 1


def test_without_supervision_the_error_names_the_extra(segment, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match=r"\[supervision\]"):
        segment.to_supervision()
