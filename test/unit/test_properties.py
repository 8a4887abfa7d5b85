"""Whatever comes in, one of our own errors goes out, or a result that keeps its promises."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from support import strategies as _profiles  # noqa: F401 - loads the profiles of hypothesis
from support.contents import encoded

from triton_sam.errors import ConfigurationError, ImageError, PromptError
from triton_sam.families import get_family
from triton_sam.inputs.images import encoder_input, image_bytes, open_image
from triton_sam.inputs.prompts import check_prompts
from triton_sam.transport.url import parse_url

FAMILIES = ("sam1", "sam2", "sam3", "mobilesam", "edgetam", "samhq")


# Images


@given(
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"]),
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    family=st.sampled_from(FAMILIES),
)
@example(mode="RGB", width=1, height=20_000, family="sam1")
@example(mode="RGB", width=20_000, height=1, family="samhq")
@example(mode="RGB", width=1, height=20_000, family="sam3")
@example(mode="RGB", width=20_000, height=1, family="sam2")
@settings(max_examples=60)
def test_every_mode_and_size_becomes_the_encoders_input(mode, width, height, family):
    spec = get_family(family)
    opened = open_image(Image.new(mode, (width, height)))
    assert (opened.mode, opened.size) == ("RGB", (width, height))
    tensor = encoder_input(opened, spec)
    low, high = spec.value_range
    assert tensor.shape == (1, 3, spec.image_size, spec.image_size)
    assert tensor.dtype == np.float32
    assert low - 1e-6 <= tensor.min() <= tensor.max() <= high + 1e-6


@given(st.integers(1, 8), st.sampled_from(["PNG", "WEBP", "JPEG", "TIFF"]))
def test_an_image_that_exif_turned_stays_upright_when_it_is_opened_again(orientation, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(orientation).integers(0, 256, (20, 30, 3), np.uint8)
    upright = open_image(encoded(Image.fromarray(pixels), form, exif=exif))
    assert upright.size == ((30, 20) if orientation < 5 else (20, 30))
    assert open_image(upright) == upright
    np.testing.assert_array_equal(open_image(image_bytes(upright)), upright)


@given(hnp.arrays(st.sampled_from([np.uint8, np.uint16, np.float32, np.int64, np.bool_]), hnp.array_shapes(max_dims=4)))
def test_any_array_is_an_image_or_an_image_error(array):
    try:
        opened = open_image(array)
    except ImageError:
        assert array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3) or array.shape[-1] not in (1, 3, 4)
    else:
        assert opened.size == (array.shape[1], array.shape[0])


# Prompts


@given(
    st.sampled_from(["point_coords", "box", "mask_input"]),
    hnp.arrays(
        st.sampled_from([np.float64, np.int64, np.uint8, np.complex64, np.bool_, "U3", "datetime64[s]"]),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
)
def test_any_array_is_usable_or_a_prompt_error(argument, array):
    prompt = {"point_coords": None, "point_labels": None, "box": None, "mask_input": None, argument: array}
    try:
        prompts = check_prompts(**prompt, image_size=(640, 480), mask_size=4)
    except PromptError:
        return
    assert len(prompts) >= 1


# URLs


@given(st.text(max_size=40) | st.from_regex(r"(http|https|grpc|grpcs)://[a-z0-9.:\[\]@/?#%-]{0,30}", fullmatch=True))
def test_any_text_is_a_url_or_a_configuration_error(text):
    try:
        url = parse_url(text)
    except ConfigurationError:
        return
    assert parse_url(str(url)) == url
