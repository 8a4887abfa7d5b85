"""The first things that a user does, against the server at --url, a running one, or a local one."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from triton_sam import SAM2TritonClient, SamError
from triton_sam.masks import overlay

OUTPUT = Path(__file__).parents[1] / "output"
"""The folder in which people look at the masks of this test."""


@pytest.fixture(scope="module")
def demo_client(request, images):
    url = request.config.getoption("--url") or os.environ.get("TRITON_URL")
    if url is None:
        with SAM2TritonClient(timeout=5, retries=0) as probe, contextlib.suppress(SamError):
            url = probe.url if probe.is_ready() else None
    url = url or request.getfixturevalue("server").http_url
    with SAM2TritonClient(url) as demo_client:
        demo_client.set_image(images / "shapes.jpg")
        yield demo_client


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_click_gives_a_mask_or_three_candidates(demo_client, candidates):
    masks, iou = demo_client.predict(point_coords=[[200, 180]], point_labels=[1], multimask_output=candidates == 3)
    assert masks.shape == (1, candidates, 256, 256)
    assert iou.shape == (1, candidates)


def test_a_box_gives_a_full_size_mask_to_look_at(demo_client, images):
    box = [90, 70, 310, 290]
    (segment,) = demo_client.segment(box=box)
    assert segment.mask.shape == (600, 800)
    segment.to_png(OUTPUT / "test_basic_mask.png")
    overlay(images / "shapes.jpg", [segment.mask], boxes=[box]).save(OUTPUT / "test_basic_overlay.png")
    assert (OUTPUT / "test_basic_mask.png").read_bytes() == segment.to_png()


def test_the_same_click_twice_gives_the_same_mask(demo_client):
    first, _ = demo_client.predict(point_coords=[[620, 420]], point_labels=[1])
    second, _ = demo_client.predict(point_coords=[[620, 420]], point_labels=[1])
    np.testing.assert_array_equal(first, second)
