"""Clicked objects on a real Triton: their masks equal those of the client with the same points."""

import numpy as np

from triton_sam import SAM2TritonClient
from triton_sam.integrations.clicking import Clicking


def test_the_masks_of_clicked_objects_equal_those_of_the_client(server, images):
    views = []
    with SAM2TritonClient(server.grpc_url) as client:
        clicking = Clicking(client, images / "shapes.jpg", views.append)
        clicking.hover(200, 180)
        assert clicking.segments() == []
        whole = client.encode(images / "shapes.jpg")
        (expected,) = client.segment([[200, 180]], image=whole)
        np.testing.assert_array_equal(views[-1].preview.mask, expected.mask)
        clicking.click(200, 180)
        clicking.click(20, 20, 0)
        clicking.next_object()
        clicking.click(500, 300)
        found = clicking.segments()
        expected = [
            *client.segment([[200, 180], [20, 20]], [1, 0], image=whole),
            *client.segment([[500, 300]], image=whole),
        ]
    assert len(found) == 2
    for segment, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(segment.mask, other.mask)
        assert segment.score == other.score
