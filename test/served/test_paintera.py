"""Both generations of Paintera's client against the front ends of three families on a real Triton."""

import functools
import io
import queue
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.contents import encoded
from support.custom_metrics import Growth
from support.processes import stopped
from tritonclient import grpc

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of all families takes minutes
pytest.importorskip("torch")

from triton_sam.families import get_family  # noqa: E402
from triton_sam.inputs.images import encoder_input, open_image  # noqa: E402

FRONTS = {"sam1": "sam1_paintera_encoder", "sam2": "sam2.1_large_encoder", "sam3": "sam3_tracker_encoder_fp16"}
SAM2 = FRONTS["sam2"]


@pytest.fixture(scope="module")
def triton(families_server):
    client = grpc.InferenceServerClient(families_server.grpc_url.removeprefix("grpc://"))
    yield client
    client.close()


@pytest.fixture(scope="module")
def square(images):
    """A photograph in the size of SAM1's and SAM2's encoders, as Paintera would send it."""
    return open_image(images / "coffee.jpg").resize((1024, 1024))


def tensor(name: str, array: np.ndarray, kind: str = "FP32") -> Any:
    made = grpc.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def jpeg(content: bytes, shape: tuple[int, ...] = (1, 1)) -> Any:
    return tensor("jpeg_image", np.array([content], np.object_).reshape(shape), "BYTES")


def infer(triton: Any, model: str, *inputs: Any, **options: Any) -> dict[str, np.ndarray]:
    result = triton.infer(model, list(inputs), **options)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def stream(triton: Any, model: str, *inputs: Any) -> dict[str, np.ndarray]:
    """Send a request as sam-link does: ModelStreamInfer, gzip, priority 5, all outputs."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    triton.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm="gzip")
    try:
        triton.async_stream_infer(model, list(inputs), request_id="a", priority=5)
        result, error = answers.get(timeout=120)
    finally:
        triton.stop_stream()
    assert error is None, error
    response = result.get_response()
    assert response.id == "a"
    return {output.name: result.as_numpy(output.name) for output in response.outputs}


def normalised(image: Image.Image, family: Any) -> np.ndarray:
    """Return a tensor as newer clients normalise it: see the guide that wire/encoder_front.py names."""
    values = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / np.float32(255)
    mean, std = (np.float32(each)[:, None, None] for each in (family.pixel_mean, family.pixel_std))
    return (values - mean) / std


@pytest.mark.parametrize("name", ["sam1", "sam2", "sam3"])
def test_every_way_of_sending_an_image_gives_the_embeddings_of_the_encoder(triton, square, name):
    family = get_family(name)
    image = square.resize((family.image_size,) * 2)
    (raw,) = family.encoder.input_names
    buffer = encoded(image, "JPEG", quality=95)
    sent = encoder_input(image, family)
    expected = infer(triton, f"{name}_encoder", tensor(raw, sent))
    from_file = encoder_input(Image.open(io.BytesIO(buffer)), family)
    expected_of_file = infer(triton, f"{name}_encoder", tensor(raw, from_file))
    new = normalised(image, family)
    for found, right in (
        (stream(triton, FRONTS[name], tensor(raw, sent)), expected),
        (infer(triton, FRONTS[name], tensor(raw, new)), expected),
        (infer(triton, FRONTS[name], jpeg(buffer), priority=1), expected_of_file),
    ):
        for theirs, ours in zip(found, family.encoder.output_names, strict=True):
            if name == "sam3" and right is expected:  # its normalised values are those of the encoder, but for rounding
                np.testing.assert_allclose(found[theirs], right[ours], atol=1e-4)
            else:
                np.testing.assert_array_equal(found[theirs], right[ours])
    half = infer(triton, FRONTS[name], jpeg(buffer), parameters={"request_fp16": True})
    for theirs, ours in zip(half, family.encoder.output_names, strict=True):
        np.testing.assert_array_equal(half[theirs], expected_of_file[ours].astype(np.float16))
        assert half[theirs].dtype == np.float16


def test_an_urgent_request_overtakes_usual_ones(triton, families_server, square):
    """Two usual requests have left the queue when the urgent one arrives, or a few more on a busy machine."""
    buffer = encoded(square, "JPEG")
    ended: queue.Queue[tuple[str, Any]] = queue.Queue()
    with stopped(families_server.pid):
        for name, priority in [*((f"usual {number}", 5) for number in range(6)), ("urgent", 1)]:
            answered = functools.partial(lambda name, result, error: ended.put((name, error)), name)
            triton.async_infer(SAM2, [jpeg(buffer)], answered, priority=priority)
    answers = [ended.get(timeout=120) for _ in range(7)]
    assert [error for _, error in answers] == [None] * 7
    assert [name for name, _ in answers].index("urgent") < 4


def test_the_metrics_have_the_times_of_the_clients(triton, families_server):
    """Triton takes a request for done as soon as the front end has handed it to the encoder."""

    def agrees() -> bool:
        grown = Growth(families_server.metrics_url, SAM2, "encode")
        began = time.perf_counter()
        infer(triton, SAM2, tensor("image", np.full((1, 3, 1024, 1024), 0.5, np.float32)))
        took = time.perf_counter() - began
        wait_until(lambda: grown("triton_sam_request_seconds_count") >= 1)
        is_counted = grown("triton_sam_request_seconds_count") == 1  # no earlier request was counted late
        return is_counted and 0.1 * took < grown("triton_sam_request_seconds_sum") < took  # with 29 MB on the way

    wait_until(agrees)  # not while the server or this process pauses
