"""Whatever comes in, one of our own errors goes out, or a result that keeps its promises."""

# ruff: noqa: PT017 - an error is one of two right outcomes here, pytest.raises() knows only one

import base64
import io
import json
import math
import time

import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import assume, example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402
from PIL import Image  # noqa: E402
from support.strategies import anything  # noqa: E402

from triton_sam.errors import ConfigurationError, ImageError, InputError, PromptError  # noqa: E402
from triton_sam.families import get_family  # noqa: E402
from triton_sam.inputs.images import encoder_input, image_bytes, open_image  # noqa: E402
from triton_sam.inputs.prompts import LABELS, check_prompts  # noqa: E402
from triton_sam.masks.label_map import mask_to_png  # noqa: E402
from triton_sam.masks.rle import mask_to_rle, rle_to_mask  # noqa: E402
from triton_sam.sessions.image.messages import read_request  # noqa: E402
from triton_sam.transport.url import parse_url  # noqa: E402
from triton_sam.wire import contract  # noqa: E402

SIZE = (640, 480)
FAMILIES = ("sam1", "sam2", "sam3", "mobilesam", "edgetam", "samhq")


# Images


@given(
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"]),
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    family=st.sampled_from(FAMILIES),
)
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


@pytest.mark.parametrize(
    ("family", "size"), list(zip(FAMILIES * 2, [(1, 1), (1, 20_000), (20_000, 1), (2, 3)] * 3, strict=True))
)
def test_extreme_shapes(family, size):
    tensor = encoder_input(open_image(Image.new("RGB", size, (255, 0, 0))), get_family(family))
    assert np.isfinite(tensor).all()


@given(st.sampled_from(range(1, 9)))
def test_exif_turns_the_image_and_its_bytes_alike(orientation):
    rng = np.random.default_rng(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(buffer, "PNG", exif=exif)
    upright = open_image(buffer.getvalue())
    assert upright.size == ((30, 20) if orientation < 5 else (20, 30))
    np.testing.assert_array_equal(open_image(image_bytes(upright)), upright)


@given(st.binary(max_size=300))
@example(b"\x89PNG\r\n\x1a\n")
@example(b"GIF89a")
def test_any_bytes_are_an_image_or_an_image_error(content):
    try:
        opened = open_image(content)
    except ImageError as error:
        assert str(error)
    else:
        assert opened.mode == "RGB"


@given(st.data())
def test_damaged_files_are_an_image_or_an_image_error(data):
    form = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"]))
    buffer = io.BytesIO()
    Image.fromarray(np.arange(48 * 3, dtype=np.uint8).reshape(6, 8, 3)).save(buffer, form)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)))]
    try:
        assert open_image(bytes(content)).mode == "RGB"
    except ImageError as error:
        assert "\n" not in str(error)


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert open_image(buffer.getvalue()).getpixel((0, 0)) == (255, 0, 0)


@given(hnp.arrays(st.sampled_from([np.uint8, np.uint16, np.float32, np.int64, np.bool_]), hnp.array_shapes(max_dims=4)))
def test_any_array_is_an_image_or_an_image_error(array):
    try:
        opened = open_image(array)
    except ImageError:
        assert array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3) or array.shape[-1] not in (1, 3, 4)
    else:
        assert opened.size == (array.shape[1], array.shape[0])


# Prompts

inside = st.tuples(st.floats(0, SIZE[0], width=32), st.floats(0, SIZE[1], width=32))


def check(points=None, labels=None, box=None, mask=None):
    return check_prompts(points, labels, box, mask, image_size=SIZE, mask_size=256)


@given(st.lists(st.lists(st.tuples(inside, st.sampled_from(LABELS)), min_size=1, max_size=6), min_size=1, max_size=4))
def test_good_points_come_out_in_the_frame_whatever_their_number(objects):
    assume(all(any(label != -2 for _, label in points) for points in objects))
    prompts = check([[list(xy) for xy, _ in points] for points in objects], [[v for _, v in p] for p in objects])
    assert len(prompts) == len(objects)
    for row, labels, points in zip(prompts.coords, prompts.labels, objects, strict=True):
        np.testing.assert_array_equal(row[: len(points)], np.array([xy for xy, _ in points], np.float32))
        assert (labels[len(points) :] == -2).all()
    for name in FAMILIES:
        family = get_family(name)
        for tensor in prompts.tensors(family).values():
            assert np.isfinite(tensor).all()


@given(points=anything, labels=anything, box=anything)
def test_any_prompt_is_usable_or_a_prompt_error(points, labels, box):
    try:
        prompts = check(points, labels, box)
    except PromptError as error:
        assert str(error)
    else:
        assert np.isfinite(prompts.coords).all()
        assert set(prompts.labels.ravel()) <= set(LABELS)


@given(
    st.sampled_from(["points", "box", "mask"]),
    hnp.arrays(
        st.sampled_from([np.float64, np.int64, np.uint8, np.complex64, np.bool_, "U3", "datetime64[s]"]),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
)
def test_any_array_is_usable_or_a_prompt_error(argument, array):
    try:
        prompts = check(**{argument: array})
    except PromptError:
        return
    assert len(prompts) >= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 1e30, 1e300])
def test_numbers_that_are_no_place(bad):
    with pytest.raises(PromptError):
        check([[bad, 3.0]])
    with pytest.raises(PromptError):
        check(box=[1.0, 1.0, bad, 9.0])


def test_a_hundred_thousand_points_are_checked_in_no_time():
    began = time.thread_time()  # the machine may be busy with others
    assert check(np.full((100_000, 2), 7.0)).coords.shape == (1, 100_000, 2)
    assert time.thread_time() - began < 0.5


# What the session model reads


def request(**inputs):
    return read_request({name: np.array([value], np.object_) for name, value in inputs.items()})


@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value, default=str).encode()))
@example(b"[" * 100_000)
@example(b'{"points": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'{"points": [[1e999, 0]]}')
def test_any_json_is_a_prompt_or_an_input_error(content):
    try:
        asked = request(image_id=b"x") if not content else request(prompt_json=content, image_b64=b"eA==")
        asked.prompts(SIZE, 256)
    except InputError as error:
        assert contract.code_of(error) in {*contract.CODES, contract.BAD_REQUEST}


@given(
    st.dictionaries(
        st.sampled_from(["points", "labels", "boxes", "multimask", "image_id", "rle", "other"]), anything, max_size=4
    )
)
def test_any_object_is_a_prompt_or_an_input_error(prompt):
    try:
        request(prompt_json=json.dumps(prompt).encode(), image_b64=b"eA==").prompts(SIZE, 256)
    except InputError as error:
        assert contract.code_of(error) in {*contract.CODES, contract.BAD_REQUEST}


@given(st.binary(max_size=40))
def test_base64_comes_back_or_is_refused(content):
    wrapped = base64.encodebytes(content)
    if content:
        assert request(image_b64=wrapped).image == content
    try:
        request(image_b64=content)
    except InputError as error:
        assert contract.code_of(error) == "BAD_IMAGE"


# Masks, ids, URLs


@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=30)))
def test_rle_and_png_give_the_mask_back(mask):
    for compressed in (True, False):
        np.testing.assert_array_equal(rle_to_mask(mask_to_rle(mask, compressed)), mask)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask_to_png(mask)))) > 0, mask)


@given(
    st.fixed_dictionaries(
        {"size": anything | st.tuples(st.integers(1, 30), st.integers(1, 30)).map(list), "counts": anything}
    )
    | anything
)
def test_any_rle_is_a_mask_or_an_input_error(rle):
    try:
        mask = rle_to_mask(rle)
    except InputError:
        return
    assert mask.dtype == np.bool_


@given(st.text(max_size=40) | st.from_regex(r"(http|https|grpc|grpcs)://[a-z0-9.:\[\]@/?#%-]{0,30}", fullmatch=True))
def test_any_text_is_a_url_or_a_configuration_error(text):
    try:
        url = parse_url(text)
    except ConfigurationError:
        return
    assert parse_url(str(url)) == url
