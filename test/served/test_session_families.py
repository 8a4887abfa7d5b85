"""The session models of all families but SAM2: the same masks as through encoder and decoder."""

import numpy as np
import pytest
from support.family_exports import SERVED

from triton_sam import ConfigurationError, SAM2TritonClient
from triton_sam.client.session_image import SessionImage

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of all families takes minutes
FAMILIES = [family for family in SERVED if family != "sam2"]
ALL = {"points_per_side": 3, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}
"""Random weights: no threshold fits their scores."""


@pytest.mark.parametrize("family", FAMILIES)
def test_masks_are_those_of_encoder_and_decoder(family, images, families_server):
    with (
        SAM2TritonClient(families_server.http_url, family, embeddings="client") as near,
        SAM2TritonClient(families_server.http_url, family) as far,
    ):
        for client in (near, far):
            client.set_image(images / "shapes.jpg")
        assert isinstance(far.image_embeddings, SessionImage)
        for prompt in (
            {"point_coords": [[[200, 180], [3, 4]], [[520, 145]]], "point_labels": [[1, 0], [1]]},
            {"box": [90, 70, 310, 290], "multimask_output": True},
        ):
            # Several objects are decoded one by one on a processor, and sums then round in another order.
            one = "point_coords" not in prompt
            for expected, got in zip(near.predict(**prompt), far.predict(**prompt), strict=True):
                np.testing.assert_allclose(got, expected, rtol=0, atol=0 if one else 1e-4)
            for expected, got in zip(near.segment(**prompt), far.segment(**prompt), strict=True):
                assert (got.mask != expected.mask).mean() <= (0 if one else 1e-4)


@pytest.mark.parametrize("family", ["sam1", "sam3"])
def test_a_search_finds_the_same_in_one_request_in_parts_and_by_clicks(family, images, families_server):
    def summary(found):
        return [(each.to_rle(), each.score, each.stability_score, each.point) for each in found]

    steps: list = []
    with SAM2TritonClient(families_server.http_url, family) as client:
        found = client.everything(images / "shapes.jpg", **ALL)
        parts = client.everything(images / "shapes.jpg", progress=steps.append, **ALL)
        if not client.family.takes_mask:
            with pytest.raises(ConfigurationError, match=f"{family} takes no mask as a prompt"):
                client.everything(images / "shapes.jpg", use_m2m=True)
    with SAM2TritonClient(families_server.http_url, family) as client:
        client.see_part = lambda part: None  # as with a server that has no searches
        clicks = client.everything(images / "shapes.jpg", progress=lambda step: None, **ALL)
    assert found
    assert found.decodes == 9
    assert (steps[-1].done, steps[-1].total) == (9, 9)
    assert summary(found) == summary(parts)
    assert [each[1:] for each in summary(clicks)] == [each[1:] for each in summary(found)]
    for one, other in zip(clicks, found, strict=True):
        np.testing.assert_array_equal(one.mask, other.mask)
