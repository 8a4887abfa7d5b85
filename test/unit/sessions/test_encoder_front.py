"""The front ends of encoders: what becomes of pixels, and which calls reach the encoder. Triton is a stand-in here."""

import io
import json
import threading

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.contents import encoded
from support.pb_utils import Request, Triton, TritonError, arguments

from triton_sam.errors import ImageError, InputError
from triton_sam.families import get_family
from triton_sam.inputs.images import encoder_input
from triton_sam.sessions.encoder_front.pixels import from_jpeg, from_raw
from triton_sam.wire.encoder_front import FrontOptions, read_options

SIDE = 64
BYTES = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE), dtype=np.uint8)
GREY = np.float32(0.2) + BYTES * np.float32(0.001)
"""Values inside 0..1, which may be dark RGB or normalised RGB of little contrast."""


def unit(name):
    low, high = get_family(name).value_range
    return BYTES * np.float32((high - low) / 255) + np.float32(low)


def normalised(name, values=BYTES):
    family = get_family(name)
    mean, std = (np.float32(each)[:, None, None] for each in (family.pixel_mean, family.pixel_std))
    return (values / np.float32(255) - mean) / std


@pytest.mark.parametrize("name", ["sam1", "sam2"])
@pytest.mark.parametrize("mode", ["auto", "normalised"])
def test_normalised_bytes_are_restored_to_the_bit(name, mode):
    found = from_raw(normalised(name), get_family(name), mode)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, unit(name))


@pytest.mark.parametrize(
    ("name", "mode"), [("sam2", "auto"), ("sam2", "unit"), ("sam3", "auto"), ("sam3", "normalised")]
)
def test_what_the_encoder_takes_passes_without_a_copy(name, mode):
    tensor = unit(name)
    assert from_raw(tensor, get_family(name), mode) is tensor


def test_sam3_is_normalised_also_where_it_is_bright():
    family = get_family("sam3")
    assert from_raw(GREY, family, "auto") is GREY
    np.testing.assert_array_equal(from_raw(GREY, family, "unit"), GREY * 2 - 1)


@pytest.mark.parametrize("excess", [-0.002, 1.002])
def test_one_value_outside_makes_a_tensor_normalised(excess):
    tensor, family = GREY.copy(), get_family("sam1")
    tensor[1, 2, 3, 4] = excess
    np.testing.assert_array_equal(from_raw(tensor, family, "auto"), from_raw(tensor, family, "normalised"))
    tensor[1, 2, 3, 4] = np.clip(excess, -0.0009, 1.0009)
    assert from_raw(tensor, family, "auto") is tensor


def test_valid_size_and_zeros_after_normalisation_are_the_official_padding():
    family = get_family("sam1")
    image = Image.fromarray(BYTES[0].transpose(1, 2, 0)).crop((0, 0, SIDE, 40))
    expected = encoder_input(image, family.at(SIDE))
    padded = normalised("sam1", BYTES[:1])
    padded[:, :, 40:] = 0
    np.testing.assert_array_equal(from_raw(padded, family, "auto"), expected)
    np.testing.assert_array_equal(from_raw(unit("sam1")[:1], family, "unit", (SIDE, 40)), expected)


@pytest.mark.parametrize(
    ("tensor", "size", "words"),
    [
        (BYTES.astype(np.float32), None, "between 0 and 255: send RGB / 255"),
        (np.full((1, 3, SIDE, SIDE), np.nan, np.float32), None, "between nan and nan"),
        (np.where(GREY > 0.3, np.inf, GREY).astype(np.float32), None, "and inf"),
        (np.zeros((0, 3, SIDE, SIDE), np.float32), None, "no image"),
        (GREY, (0, 5), "from 1 to 64, not 0 and 5"),
        (GREY, (5, 65), "from 1 to 64, not 5 and 65"),
    ],
)
def test_raw_tensors_that_make_no_sense_are_refused(tensor, size, words):
    with pytest.raises(InputError, match=words):
        from_raw(tensor, get_family("sam1"), "auto", size)


def file(width, height, form="JPEG"):
    image = Image.fromarray(BYTES[0].transpose(1, 2, 0)).resize((width, height))
    return encoded(image, form)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_file_is_what_the_clients_of_this_package_make_of_it(form):
    content, family = file(SIDE, SIDE, form), get_family("sam2").at(SIDE)
    expected = encoder_input(Image.open(io.BytesIO(content)), family)
    np.testing.assert_array_equal(from_jpeg(content, family), expected)


def test_parameters_of_requests():
    assert read_options("", "unit") == FrontOptions(False, "unit")
    assert read_options('{"request_fp16": "true", "pixels": "auto", "other": 1}', "unit") == FrontOptions(True, "auto")
    for text, words in (
        ('{"request_fp16": "perhaps"}', "request_fp16 must be true or false, not 'perhaps'"),
        ('{"request_fp16": 2}', "not 2"),
        ('{"pixels": "bytes"}', "pixels must be one of auto, unit, normalised, not 'bytes'"),
        ('{"pixels": true}', "not True"),
    ):
        with pytest.raises(InputError, match=words):
            read_options(text, "auto")


def compute(model, inputs, wanted):
    """The encoder: it breaks on white."""
    (pixels,) = inputs.values()
    if pixels[0, 0, 0, 0] == 1:
        raise TritonError("it broke")
    return dict.fromkeys(wanted, pixels[:, :, :4, :4])


@pytest.fixture
def triton():
    return Triton(compute)


@pytest.fixture
def front(triton, request):
    """A front end of SAM2 at 64 pixels, on the device that the test names; a CPU by default."""
    given = arguments("sam2_paintera", kind=getattr(request, "param", "CPU"))
    given["model_instance_device_id"] = "3"
    parameters = {"family": "SAM2", "alias_of": "sam2_encoder", "pixels": "auto"}
    config = {
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        "input": [{"name": "image", "dims": [-1, 3, SIDE, SIDE]}],
        "output": [{"name": name} for name in ("image_embed", "high_res_feats_0", "high_res_feats_1")],
    }
    with triton.serving("encoder_front.triton_model", {**given, "model_config": json.dumps(config)}) as front:
        yield front


def asked(front, parameters="", **tensors):
    request = Request(["image_embed"], tensors, parameters=parameters)
    front.execute([request])
    return request


def image(value=0.5):
    return np.full((1, 3, SIDE, SIDE), value, np.float32)


def test_a_call_that_is_cancelled_before_the_encoder_is_free_never_reaches_it(front, triton):
    triton.gate.clear()
    first = asked(front, image=image(0.1))
    second, third = (Request(["image_embed"], {"image": image(value)}) for value in (0.2, 0.3))
    waiting = threading.Thread(target=front.execute, args=([second, third],))
    waiting.start()  # Triton's thread, which waits in execute() until the encoder is free
    waiting.join(0.2)
    assert waiting.is_alive()
    second.cancelled = True
    triton.gate.set()
    waiting.join(60)
    assert [request.answer().code for request in (first, second, third)] == ["", "CANCELLED", ""]
    sent = [call.inputs["image"][0, 0, 0, 0] for call in triton.calls]
    assert sent == [np.float32(0.1), np.float32(0.3)]


def test_a_failure_of_the_encoder_is_an_error_and_the_next_call_is_served(front, triton):
    bad, good, series = asked(front, image=image(1)).answer(), asked(front, image=image()).answer(), triton.series
    assert (bad.code, bad.message) == ("INTERNAL", "INTERNAL: sam2_encoder failed: it broke")
    assert good.tensors["image_embed"].shape == (1, 3, 4, 4)
    wait_until(lambda: len(series.seconds["request_seconds", "encode"]) == 2)
    wait_until(lambda: series.counts["failures_total", None] == series.counts["faults_total", None] == 1)
    wait_until(lambda: series.gauges["waiting_requests", "encode"][-1:] in ([], [0]))


def test_both_inputs_or_none_are_refused(front, triton):
    for tensors in ({}, {"image": image(), "jpeg_image": np.array([[b""]], np.object_)}):
        assert "exactly one of image and jpeg_image" in asked(front, **tensors).answer().message
    assert triton.calls == []


def test_a_traced_call_is_answered_before_execute_returns(front, triton):
    request = Request(["image_embed"], {"image": image()}, trace="00-abc")
    front.execute([request])
    assert request.is_answered
    assert triton.calls[0].trace is request.trace()


@pytest.mark.parametrize(
    ("front", "parameters", "memory", "dtype"),
    [
        ("GPU", "", ("gpu", 3), np.float32),
        ("GPU", '{"request_fp16": true}', ("cpu", 0), np.float16),
        ("CPU", "", ("cpu", 0), np.float32),
    ],
    indirect=["front"],
)
def test_embeddings_stay_on_the_gpu_unless_they_are_converted(front, triton, parameters, memory, dtype):
    assert asked(front, parameters, image=image()).answer().tensors["image_embed"].dtype == dtype
    assert [(call.memory, call.wanted) for call in triton.calls] == [(memory, ("image_embeddings",))]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (file(SIDE, SIDE + 1), "64 x 65 pixels, but the encoder takes 64 x 64"),
        (file(SIDE, SIDE)[:300], "cannot be read|damaged"),
        (b"", "empty"),
        (b"junk", "not an image"),
    ],
)
def test_files_that_are_no_usable_image_are_refused(content, words):
    with pytest.raises(ImageError, match=words):
        from_jpeg(content, get_family("sam2").at(SIDE))
