"""The comparison of an encoder on OpenVINO with fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from triton_sam._common.bundle import bundled
from triton_sam._common.extras import find_package
from triton_sam.verify.accelerated import IMAGES, compare_precision, crops

FILES: dict[str, Path] = {
    role: bundled("model_repository") / f"sam2_{role}" / "1" / "model.onnx" for role in ("encoder", "decoder")
}
PHOTOS = [bundled("test/images") / name for name in ("coffee.jpg", "shapes.jpg")]


def test_crops_are_equal_each_time_and_different_from_each_other() -> None:
    first, second = crops(PHOTOS), crops(PHOTOS)
    assert len(first) == IMAGES
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert len({part.tobytes() for part in first}) == IMAGES
    assert all(part.dtype == np.uint8 and part.shape[2] == 3 and min(part.shape[:2]) > 100 for part in first)


@pytest.mark.slow
@pytest.mark.skipif(find_package("openvino") is None, reason="openvino is not installed: pip install openvino")
def test_masks_in_fp32_are_those_of_onnx_runtime() -> None:
    found = compare_precision(FILES, "sam2", "fp32", crops(PHOTOS, 1))
    assert (found.images, found.masks) == (1, 5)
    assert found.passed
    assert found.worst_iou <= found.mean_iou <= 1
