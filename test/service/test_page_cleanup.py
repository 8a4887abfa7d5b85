"""The page's clean-up of masks and its threshold, in headless Chromium, over a real service and a real Triton."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from triton_sam import Cleanup, SAM2TritonClient

pytest.importorskip("fastapi")
from support.running_browser import SWITCHED_ON


def test_the_clean_up_can_be_switched_off(shapes, service_triton, images):
    """A click on the ground gives a mask of several parts and with holes."""
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        plain, cleaned = (client.segment([[20, 580]], [1], cleanup=each)[0].mask for each in (None, SWITCHED_ON))
    assert (plain != cleaned).any()
    shapes.click(20, 580)
    shapes.settled()
    point = shapes.page.evaluate("tritonSam.scene.active.points[0]")
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        exact = [[point["x"], point["y"]]]
        plain, cleaned = (client.segment(exact, [1], cleanup=each)[0].mask for each in (None, SWITCHED_ON))
    for wanted, act in ((cleaned, "check"), (plain, "uncheck")):
        getattr(shapes.page, act)("#cleanup")
        shapes.settled()
        content = shapes.download("#save-mask")[1]
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))) == 255, wanted)


def test_the_clean_up_has_a_slider(shapes, service_triton, images):
    shapes.page.fill("#cleanup-area", "0")
    shapes.click(20, 580)
    shapes.settled()
    point = shapes.page.evaluate("tritonSam.scene.active.points[0]")
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        wanted = []
        for area in (0, 256):
            cleanup = Cleanup(max_hole_area=area, max_sprinkle_area=area, keep_clicked=True)
            wanted.append(client.segment([[point["x"], point["y"]]], [1], cleanup=cleanup)[0].mask)
    assert (wanted[0] != wanted[1]).any()
    for area, mask in zip(("0", "256"), wanted, strict=True):
        shapes.page.fill("#cleanup-area", area)
        shapes.settled()
        content = shapes.download("#save-mask")[1]
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))) == 255, mask)
    shapes.page.uncheck("#cleanup")
    assert shapes.page.is_disabled("#cleanup-area")


@pytest.mark.parametrize("is_cleaned", [True, False])
def test_the_threshold_has_a_slider(shapes, service_triton, images, is_cleaned):
    shapes.page.set_checked("#cleanup", is_cleaned)
    shapes.click(20, 580)
    shapes.settled()
    point = shapes.page.evaluate("tritonSam.scene.active.points[0]")
    masks = {}
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / "shapes.jpg")
        for threshold in (0, 3, -2.5):
            shapes.page.fill("#threshold", str(threshold))
            shapes.settled()
            content = shapes.download("#save-mask")[1]
            masks[threshold] = np.asarray(Image.open(io.BytesIO(content))) == 255
            cleanup = replace(SWITCHED_ON if is_cleaned else Cleanup(), mask_threshold=threshold)
            wanted = client.segment([[point["x"], point["y"]]], [1], cleanup=cleanup)[0].mask
            np.testing.assert_array_equal(masks[threshold], wanted)
    assert masks[3].sum() < masks[0].sum() < masks[-2.5].sum()
