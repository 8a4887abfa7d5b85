"""The session models of SAM1, SAM3 and MobileSAM: the same masks as through encoder and decoder."""

import numpy as np
import pytest
from support.family_exports import SERVED

from triton_sam import SAM2TritonClient
from triton_sam.client.session_image import SessionImage

pytestmark = pytest.mark.export


@pytest.mark.parametrize("family", [family for family in SERVED if family != "sam2"])
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
