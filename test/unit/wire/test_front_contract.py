"""The contract of the front end for Paintera, which config.pbtxt and its readers get."""

from __future__ import annotations

import pytest

from triton_sam.families import get_family
from triton_sam.wire.encoder_front import PIXEL_MODES, front_inputs, front_parameters


@pytest.mark.parametrize(
    ("name", "sizes"), [("sam1", [("valid_size", "INT32", (2,))]), ("sam2", [])], ids=["sam1", "sam2"]
)
def test_inputs(name: str, sizes: list[tuple[str, str, tuple[int, ...]]]) -> None:
    family = get_family(name)
    raw, jpeg, *others = front_inputs(family, (-1, 3, 512, 768))
    (spec,) = family.encoder.inputs
    assert (raw.name, raw.dtype, raw.shape, raw.optional) == (spec.name, spec.dtype, (-1, 3, 512, 768), True)
    assert raw.heading == "Exactly one of these two."
    assert (jpeg.name, jpeg.dtype, jpeg.shape, jpeg.optional) == ("jpeg_image", "BYTES", (1, 1), True)
    assert "768 x 768" in str(jpeg)
    assert [(each.name, each.dtype, each.shape) for each in others] == sizes
    assert all(each.optional and "width, height" in str(each) for each in others)


def test_parameters() -> None:
    family, encoder, pixels = front_parameters(get_family("sam2"), "encoder", "mine_encoder", "unit")
    assert (family.name, family.value) == ("family", "SAM2")
    assert (encoder.name, encoder.value) == ("encoder", "mine_encoder")
    assert (pixels.name, pixels.value) == ("pixels", "unit")
    assert f"{', '.join(PIXEL_MODES[:-1])} or {PIXEL_MODES[-1]}." in pixels.meaning
