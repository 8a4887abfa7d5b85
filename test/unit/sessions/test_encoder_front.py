"""The front ends of encoders: what becomes of pixels, and which calls reach the encoder. Triton is a stand-in here."""

from __future__ import annotations

import importlib
import io
import json
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.custom_metrics import Series

from triton_sam.errors import ImageError, InputError
from triton_sam.families import get_family
from triton_sam.inputs.images import encoder_input
from triton_sam.sessions.encoder_front.pixels import from_jpeg, from_raw
from triton_sam.wire.encoder_front import FrontOptions, read_options

SIDE = 64
BYTES = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE), dtype=np.uint8)
GREY = np.float32(0.2) + BYTES * np.float32(0.001)
"""Values inside 0..1, which may be dark RGB or normalised RGB of little contrast."""


def unit(name: str) -> np.ndarray:
    low, high = get_family(name).value_range
    return BYTES * np.float32((high - low) / 255) + np.float32(low)


def normalised(name: str, values: np.ndarray = BYTES) -> np.ndarray:
    family = get_family(name)
    mean, std = (np.float32(each)[:, None, None] for each in (family.pixel_mean, family.pixel_std))
    return (values / np.float32(255) - mean) / std


@pytest.mark.parametrize("name", ["sam1", "sam2"])
@pytest.mark.parametrize("mode", ["auto", "normalised"])
def test_normalised_bytes_are_restored_to_the_bit(name: str, mode: str) -> None:
    found = from_raw(normalised(name), get_family(name), mode)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, unit(name))


@pytest.mark.parametrize(
    ("name", "mode"), [("sam2", "auto"), ("sam2", "unit"), ("sam3", "auto"), ("sam3", "normalised")]
)
def test_what_the_encoder_takes_passes_without_a_copy(name: str, mode: str) -> None:
    tensor = unit(name)
    assert from_raw(tensor, get_family(name), mode) is tensor


def test_sam3_is_normalised_also_where_it_is_bright() -> None:
    family = get_family("sam3")
    assert from_raw(GREY, family, "auto") is GREY
    np.testing.assert_array_equal(from_raw(GREY, family, "unit"), GREY * 2 - 1)


def test_little_contrast_needs_the_setting() -> None:
    family = get_family("sam2")
    assert from_raw(GREY, family, "auto") is GREY
    mean, std = (np.float32(each)[:, None, None] for each in (family.pixel_mean, family.pixel_std))
    np.testing.assert_allclose(from_raw(GREY, family, "normalised"), GREY * std + mean, atol=1e-7)


@pytest.mark.parametrize("excess", [-0.002, 1.002])
def test_one_value_outside_makes_a_tensor_normalised(excess: float) -> None:
    tensor, family = GREY.copy(), get_family("sam1")
    tensor[1, 2, 3, 4] = excess
    np.testing.assert_array_equal(from_raw(tensor, family, "auto"), from_raw(tensor, family, "normalised"))
    tensor[1, 2, 3, 4] = np.clip(excess, -0.0009, 1.0009)
    assert from_raw(tensor, family, "auto") is tensor


def test_valid_size_and_zeros_after_normalisation_are_the_official_padding() -> None:
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
def test_raw_tensors_that_make_no_sense_are_refused(tensor: np.ndarray, size: tuple[int, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_raw(tensor, get_family("sam1"), "auto", size)


def file(width: int, height: int, form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(BYTES[0].transpose(1, 2, 0)).resize((width, height))
    image.save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_file_is_what_the_clients_of_this_package_make_of_it(form: str) -> None:
    content, family = file(SIDE, SIDE, form), get_family("sam2").at(SIDE)
    expected = encoder_input(Image.open(io.BytesIO(content)), family)
    np.testing.assert_array_equal(from_jpeg(content, family), expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (file(SIDE, SIDE + 1), "64 x 65 pixels, but the encoder takes 64 x 64"),
        (file(SIDE, SIDE)[:300], "cannot be read|damaged"),
        (b"", "empty"),
        (b"junk", "not an image"),
    ],
)
def test_files_that_are_no_usable_image_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        from_jpeg(content, get_family("sam2").at(SIDE))


def test_parameters_of_requests() -> None:
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


class Tensor:
    """pb_utils.Tensor."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    from_dlpack = staticmethod(lambda name, tensor: Tensor(name, tensor.as_numpy()))

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class Request:
    """A request from Triton, which is its own response sender."""

    def __init__(self, parameters: str = "", **tensors: np.ndarray) -> None:
        self.parameters = lambda: parameters
        self.inputs = lambda: [Tensor(name, array) for name, array in tensors.items()]
        self.requested_output_names = lambda: ["image_embed"]
        self.get_response_sender = lambda: self
        self.is_cancelled = lambda: self.cancelled
        self.cancelled = False
        self.sent: list[SimpleNamespace] = []

    def send(self, response: SimpleNamespace, flags: int) -> None:
        self.sent.append(response)

    def answer(self) -> SimpleNamespace:
        wait_until(lambda: self.sent)
        (response,) = self.sent
        return response


class Encoder:
    """pb_utils.InferenceRequest: it waits at the gate and counts its calls."""

    gate = threading.Event()
    calls: list[dict]

    def __init__(self, **call: object) -> None:
        self.call = call

    def exec(self) -> SimpleNamespace:
        self.calls.append(self.call)
        assert self.gate.wait(60)
        image = self.call["inputs"][0].as_numpy()
        if image[0, 0, 0, 0] == 1:
            return SimpleNamespace(has_error=lambda: True, error=lambda: SimpleNamespace(message=lambda: "it broke"))
        tensors = [Tensor(name, image[:, :, :4, :4]) for name in self.call["requested_output_names"]]
        return SimpleNamespace(has_error=lambda: False, output_tensors=lambda: tensors)


@pytest.fixture
def series() -> Series:
    return Series()


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, series: Series):
    """A front end of SAM2 at 64 pixels, on the device that the test names; a CPU by default."""
    utils = ModuleType("triton_python_backend_utils")
    codes = {name: name for name in ("INVALID_ARG", "CANCELLED", "INTERNAL", "UNAVAILABLE", "NOT_FOUND")}
    utils.TritonError = type("TritonError", (Exception,), codes)
    utils.TritonModelException = type("TritonModelException", (Exception,), {})
    utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, utils.TRITONSERVER_MEMORY_CPU, utils.TRITONSERVER_MEMORY_GPU = (
        1,
        "cpu",
        "gpu",
    )
    utils.Tensor, utils.InferenceRequest, utils.MetricFamily = Tensor, Encoder, series.family()
    utils.PreferredMemory = lambda kind, device: (kind, device)
    utils.InferenceResponse = lambda tensors, error=None: SimpleNamespace(
        tensors={tensor.name(): tensor.as_numpy() for tensor in tensors}, error=error
    )
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    names = ("triton_sam.sessions.bls", "triton_sam.sessions.encoder_front.triton_model")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    model = [importlib.import_module(name) for name in names][-1].TritonPythonModel()
    parameters = {"family": "SAM2", "alias_of": "sam2_encoder", "pixels": "auto"}
    config = {
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        "input": [{"name": "image", "dims": [-1, 3, SIDE, SIDE]}],
        "output": [{"name": name} for name in ("image_embed", "high_res_feats_0", "high_res_feats_1")],
    }
    kind = getattr(request, "param", "CPU")
    device = {"model_instance_kind": kind, "model_instance_device_id": "3"}
    model.initialize({"model_name": "sam2_paintera", "model_config": json.dumps(config), **device})
    Encoder.calls = []
    Encoder.gate.set()
    yield model
    Encoder.gate.set()
    model.finalize()
    for name in names:
        sys.modules.pop(name, None)


def image(value: float = 0.5) -> np.ndarray:
    return np.full((1, 3, SIDE, SIDE), value, np.float32)


def test_a_call_that_is_cancelled_before_the_encoder_is_free_never_reaches_it(front) -> None:
    Encoder.gate.clear()
    first, second, third = (Request(image=image(value)) for value in (0.1, 0.2, 0.3))
    front.execute([first])
    wait_until(lambda: len(Encoder.calls) == 1)
    waiting = threading.Thread(target=front.execute, args=([second, third],))
    waiting.start()  # Triton's thread, which waits in execute() until the encoder is free
    waiting.join(0.2)
    assert waiting.is_alive()
    second.cancelled = True
    Encoder.gate.set()
    waiting.join(60)
    assert second.answer().error.args[1] == "CANCELLED"
    assert [request.answer().error for request in (first, third)] == [None, None]
    assert [call["inputs"][0].as_numpy()[0, 0, 0, 0] for call in Encoder.calls] == [np.float32(0.1), np.float32(0.3)]


def test_a_failure_of_the_encoder_is_an_error_and_the_next_call_is_served(front, series: Series) -> None:
    bad, good = Request(image=image(1)), Request(image=image())
    front.execute([bad, good])
    assert bad.answer().error.args == ("INTERNAL: sam2_encoder failed: it broke", "INTERNAL")
    assert good.answer().tensors["image_embed"].shape == (1, 3, 4, 4)
    wait_until(lambda: len(series.seconds["request_seconds", "encode"]) == 2)
    wait_until(lambda: series.counts["failures_total", None] == series.counts["faults_total", None] == 1)
    wait_until(lambda: series.gauges["waiting_requests", "encode"][-1:] in ([], [0]))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [({}, "exactly one of image and jpeg_image"), ({"image": image(), "jpeg_image": np.array([[b""]])}, "exactly one")],
)
def test_both_inputs_or_none_are_refused(front, tensors: dict, words: str) -> None:
    front.execute([request := Request(**tensors)])
    assert words in request.answer().error.args[0]
    assert Encoder.calls == []


@pytest.mark.parametrize(
    ("front", "parameters", "memory", "dtype"),
    [
        ("GPU", "", ("gpu", 3), np.float32),
        ("GPU", '{"request_fp16": true}', ("cpu", 0), np.float16),
        ("CPU", "", ("cpu", 0), np.float32),
    ],
    indirect=["front"],
)
def test_embeddings_stay_on_the_gpu_unless_they_are_converted(
    front, parameters: str, memory: tuple, dtype: type
) -> None:
    front.execute([request := Request(parameters, image=image())])
    assert request.answer().tensors["image_embed"].dtype == dtype
    assert [call["preferred_memory"] for call in Encoder.calls] == [memory]
    assert Encoder.calls[0]["requested_output_names"] == ["image_embeddings"]
