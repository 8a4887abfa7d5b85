"""The session model on a real Triton: images stay on the server, by tensors, by client and by curl."""

import asyncio
import base64
import io
import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import urllib3
from PIL import Image
from support.session_requests import IMAGE_BYTES, bomb, colored, metrics, point_inputs, text, upload
from support.session_server import IMAGES_IN_CACHE, encoded, serve

from triton_sam import ImageEmbeddings, ImageError, SAM2TritonClient, SamError, SpeculativeSAM2Client
from triton_sam.client.session_image import SessionImage
from triton_sam.errors import ConfigurationError, ServerBusyError, UnknownImageError
from triton_sam.masks.rle import rle_to_mask
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire.contract import MAX_OBJECTS, read_error

POINT = [[200, 180]]


# The client


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_masks_are_those_of_encoder_and_decoder(session_server, content, protocol):
    address = session_server.http_url if protocol == "http" else session_server.grpc_url
    with SAM2TritonClient(address, embeddings="client") as near, SAM2TritonClient(address) as far:
        near.set_image(content)
        far.set_image(content)
        assert isinstance(far.image_embeddings, SessionImage)
        assert not isinstance(near.image_embeddings, SessionImage)
        first, _ = near.predict(POINT)
        for prompt in (
            {"point_coords": POINT},
            {"point_coords": [[[200, 180], [3, 4]], [[520, 145]]], "point_labels": [[1, 0], [1]]},
            {"box": [90, 70, 310, 290], "multimask_output": True},
            {"box": [[90, 70, 310, 290]] * 2, "point_coords": [[[200, 180]]] * 2, "multimask_output": True},
            {"point_coords": POINT, "mask_input": first[0]},
            {"mask_input": first[0]},
        ):
            # Several objects are decoded one by one on a processor, and sums then round in another order.
            one = len(near.predict(**prompt)[0]) == 1
            for expected, got in zip(near.predict(**prompt), far.predict(**prompt), strict=True):
                np.testing.assert_allclose(got, expected, rtol=0, atol=0 if one else 1e-4)
            for logits in (True, False):
                for expected, got in zip(near.segment(**prompt), far.segment(**prompt, logits=logits), strict=True):
                    assert (got.mask != expected.mask).mean() <= (0 if one else 1e-4)
                    assert got.score == pytest.approx(expected.score, abs=0 if one else 1e-4)
                    assert (got.object_index, got.candidate) == (expected.object_index, expected.candidate)
                    assert (got.logits is None) is not logits


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_more_objects_than_a_request_may_have_go_in_parts(session_server, content, protocol):
    """Of the boxes, two have points besides, in lists of different lengths."""
    boxes = [[index, 1, 50 + index, 50] for index in range(MAX_OBJECTS + 6)]
    address = session_server.http_url if protocol == "http" else session_server.grpc_url
    with SAM2TritonClient(address) as client:
        client.set_image(content)
        masks, scores = client.predict(box=boxes)
        assert len(masks) == len(scores) == len(boxes)
        for index in (0, MAX_OBJECTS - 1, MAX_OBJECTS, MAX_OBJECTS + 5):
            np.testing.assert_array_equal(masks[index], client.predict(box=boxes[index])[0][0])
        segments = client.segment(box=boxes, logits=False)
        assert [segment.object_index for segment in segments] == list(range(len(boxes)))


def test_encode_here_returns_embeddings_that_can_be_saved(client, session_server, content, tmp_path):
    client.set_image(content)
    here = client.encode_here(content)
    here.save(tmp_path / "image.npz")
    with SAM2TritonClient(session_server.http_url) as other:
        other.image_embeddings = ImageEmbeddings.load(tmp_path / "image.npz")
        np.testing.assert_array_equal(other.predict(POINT)[0], client.predict(POINT)[0])
    assert here.nbytes == IMAGE_BYTES
    assert set(here) == {"image_embeddings", "high_res_feats_0", "high_res_feats_1"}


def test_an_evicted_image_is_sent_again_without_a_word(client, session_server, transport, content):
    client.set_image(content)
    expected, _ = client.predict(POINT)
    for number in range(IMAGES_IN_CACHE):
        upload(transport, colored(number))
    before = encoded(transport)
    np.testing.assert_array_equal(client.predict(POINT)[0], expected)
    np.testing.assert_array_equal(client.predict(POINT)[0], expected)
    assert encoded(transport) == before + 1
    mask = client.segment(POINT)[0].mask
    for number in range(IMAGES_IN_CACHE):
        upload(transport, colored(number))
    np.testing.assert_array_equal(client.segment(POINT, logits=False)[0].mask, mask)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_async_client_does_the_same(session_server, transport, client, content, protocol):
    client.set_image(content)
    expected, _ = client.predict(POINT)

    async def click():
        address = session_server.http_url if protocol == "http" else session_server.grpc_url
        async with SpeculativeSAM2Client(address) as fast:
            await fast.set_image_async(content)
            assert isinstance(fast.image_embeddings, SessionImage)
            for number in range(IMAGES_IN_CACHE):
                await asyncio.to_thread(upload, transport, colored(50 + number))
            _, task = await fast.predict_async(POINT)
            with pytest.raises(ImageError, match="not an image"):
                await fast.set_image_async(b"no")
            return (await task)[0]

    np.testing.assert_array_equal(asyncio.run(click()), expected)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_errors_of_the_server_are_those_of_the_package(session_server, protocol):
    address = session_server.http_url if protocol == "http" else session_server.grpc_url
    with SAM2TritonClient(address) as client:
        with pytest.raises(ImageError, match="not an image"):
            client.set_image(b"not an image")
        with pytest.raises(ConfigurationError, match="embeddings must be one of"):
            SAM2TritonClient(address, embeddings="cloud")
    with (
        SAM2TritonClient(address, model_name="absent", embeddings="server") as client,
        pytest.raises(SamError, match="absent"),
    ):
        client.set_image(colored(1))


def test_a_server_that_is_killed_between_two_clicks(toy_repository, content):
    with serve(toy_repository) as first:
        client = SAM2TritonClient(first.http_url)
        client.set_image(content)
        expected, _ = client.predict(POINT)
        os.kill(first.pid, signal.SIGKILL)
    with serve(toy_repository, http_port=int(first.http_url.rpartition(":")[2])):
        np.testing.assert_array_equal(client.predict(POINT)[0], expected)
    client.close()


# Tensors


def test_one_call_prefetch_and_id(transport, content):
    alone = upload(transport, content)
    assert alone["image_size"].tolist() == [800, 600]
    by_id = {"image_id": alone["image_id"], **point_inputs()}
    outputs = ["image_id", "masks", "iou_predictions"]
    one_call = transport.infer("sam2", {"image": text(content), **point_inputs()}, outputs)
    later = transport.infer("sam2", by_id, outputs)
    for name in outputs:
        np.testing.assert_array_equal(one_call[name], later[name])


@pytest.mark.parametrize("multimask", [False, True])
def test_full_size_masks_equal_those_made_by_the_client(client, transport, content, multimask):
    client.set_image(content)
    expected = client.segment(POINT, multimask_output=multimask)
    common = {"image": text(content), **point_inputs(), "multimask_output": np.array([multimask])}
    for output_format in ("png", "rle", "png_base64"):
        inputs = {**common, "output_format": text(output_format.encode())}
        answers = transport.infer("sam2", inputs, ["encoded_masks"])["encoded_masks"]
        assert answers.shape == (1, len(expected))
        for answer, segment in zip(answers[0], expected, strict=True):
            if output_format == "rle":
                mask = rle_to_mask(json.loads(answer))
            else:
                file = answer if output_format == "png" else base64.b64decode(answer, validate=True)
                mask = np.asarray(Image.open(io.BytesIO(file))) > 0
            np.testing.assert_array_equal(mask, segment.mask)


def test_a_mask_survives_plain_json_and_json_with_binary_tensors(session_server, transport, content):
    """Triton writes the bytes of a tensor into its JSON as they are, unless a request asks for them behind the JSON."""
    known = upload(transport, content)["image_id"][0].decode()

    def ask(form, **parameters):
        given = [
            ("image_id", [1], "BYTES", [known]),
            ("point_coords", [1, 1, 2], "FP32", POINT),
            ("output_format", [1], "BYTES", [form]),
        ]
        inputs = [dict(zip(("name", "shape", "datatype", "data"), each, strict=True)) for each in given]
        body = {"inputs": inputs, "outputs": [{"name": "encoded_masks", "parameters": parameters}]}
        return urllib3.request("POST", f"{session_server.http_url}/v2/models/sam2/infer", json=body)

    (plain,) = ask("png_base64").json()["outputs"][0]["data"]
    answer = ask("png", binary_data=True)
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert base64.b64decode(plain, validate=True) == answer.data[length + 4 :]  # before each element stands its length


def test_the_cache_stays_within_its_bound_and_keeps_what_was_used_last(session_server, transport):
    first = upload(transport, colored(10))
    second = upload(transport, colored(11))
    for number in range(12, 12 + IMAGES_IN_CACHE):
        upload(transport, colored(10))  # used again and again: it stays
        upload(transport, colored(number))
    full = IMAGES_IN_CACHE * IMAGE_BYTES
    figures = metrics(session_server, lambda figures: figures["cache_bytes"] == full)
    assert figures["cache_bytes"] == full <= figures["cache_limit_bytes"]
    assert figures["cache_images"] == IMAGES_IN_CACHE
    before = encoded(transport)
    transport.infer("sam2", {"image_id": first["image_id"], **point_inputs(3, 3)}, ["masks"])
    assert encoded(transport) == before
    with pytest.raises(SamError, match="UNKNOWN_IMAGE_ID") as caught:
        transport.infer("sam2", {"image_id": second["image_id"], **point_inputs(3, 3)}, ["masks"])
    assert isinstance(read_error(caught.value), UnknownImageError)


@pytest.fixture
def slow(service_triton):
    """A transport to a server with the demo model, whose encoder takes long enough for other requests to come."""
    transport = Transport(parse_url(service_triton.http_url))
    yield transport
    transport.close()


def test_two_requests_for_a_new_image_encode_it_once(slow):
    content, before = colored(99), encoded(slow)
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(upload, slow, content) for _ in range(6)]
        ids = {bytes(job.result()["image_id"][0]) for job in jobs}
    assert len(ids) == 1
    assert encoded(slow) == before + 1


@pytest.mark.slow
def test_sixteen_threads_on_more_images_than_the_cache_holds(session_server, images):
    contents = [(images / name).read_bytes() for name in ("shapes.jpg", "coffee.jpg")] + [colored(5), colored(6)]
    with SAM2TritonClient(session_server.http_url) as client:
        handles = [client.encode(content) for content in contents]
        expected = [client.predict([[20, 20]], image=handle)[0] for handle in handles]
        with ThreadPoolExecutor(16) as pool:
            jobs = [(n % 4, pool.submit(client.predict, [[20, 20]], image=handles[n % 4])) for n in range(32)]
            for number, job in jobs:
                np.testing.assert_array_equal(job.result()[0], expected[number])
    figures = metrics(session_server)
    assert figures["cache_bytes"] <= figures["cache_limit_bytes"]


def test_clicks_do_not_wait_for_the_encoder(slow, content):
    image_id = upload(slow, content)["image_id"]
    done = threading.Event()

    def encode_others():
        for number in range(40, 42):
            upload(slow, colored(number))
        done.set()

    thread = threading.Thread(target=encode_others)
    thread.start()
    clicks = 0
    while not done.is_set():
        slow.infer("sam2", {"image_id": image_id, **point_inputs()}, ["masks"])
        clicks += not done.is_set()
    thread.join()
    assert clicks >= 2


def test_too_many_at_once_are_refused_at_once(toy_repository, tmp_path, content):
    repository = shutil.copytree(toy_repository, tmp_path / "models")
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace('"24"', '"3"'))
    with serve(repository) as server, SAM2TritonClient(server.http_url) as client:
        client.set_image(content)
        expected, _ = client.predict(POINT)

        def click(_):
            try:
                return client.predict(POINT)[0]
            except ServerBusyError as error:
                return error

        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(click, range(72)))
        refused = [answer for answer in answers if isinstance(answer, ServerBusyError)]
        assert 1 <= len(refused) <= 71
        assert "too many requests wait" in str(refused[0])
        for answer in answers:
            if not isinstance(answer, ServerBusyError):
                np.testing.assert_array_equal(answer, expected)
        np.testing.assert_array_equal(client.predict(POINT)[0], expected)
        counted = metrics(server, lambda figures: figures.get("refusals_total") == len(refused))
        assert counted["refusals_total"] == len(refused)


def test_no_click_is_refused_because_of_uploads(toy_repository, tmp_path, content):
    repository = shutil.copytree(toy_repository, tmp_path / "models")
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace('"24"', '"2"'))
    with serve(repository) as server, SAM2TritonClient(server.http_url) as client:
        client.set_image(content)
        expected, _ = client.predict(POINT)
        enough, refusals = threading.Event(), []

        def upload_others(number):
            with SAM2TritonClient(server.http_url) as other:
                while not enough.is_set():
                    try:
                        other.set_image(colored(number))
                    except ServerBusyError as error:
                        refusals.append(error)
                        enough.wait(0.05)

        with ThreadPoolExecutor(8) as pool:
            uploads = [pool.submit(upload_others, number) for number in range(8)]
            try:
                while len(refusals) < 8:
                    np.testing.assert_array_equal(client.predict(POINT)[0], expected)
                for _ in range(8):
                    np.testing.assert_array_equal(client.predict(POINT)[0], expected)
            finally:
                enough.set()
            for done in uploads:
                done.result()


def test_figures_are_in_the_metrics(session_server, transport, content):
    before = metrics(session_server)
    upload(transport, colored(77))
    transport.infer("sam2", {"image": text(colored(77)), **point_inputs(3, 3)}, ["masks"])
    counted = ("cache_hits", "cache_misses", "encodes", "decodes")

    def grown(figures):
        return {name for name in counted if figures.get(f"{name}_total", 0) >= before.get(f"{name}_total", 0) + 1}

    after = metrics(session_server, lambda figures: grown(figures) == set(counted))
    assert grown(after) == set(counted)
    for name in ("encode_seconds", "decode_seconds"):
        assert after[f"{name}_total"] > before.get(f"{name}_total", 0)
    assert {"cache_evictions_total", "failures_total"} <= set(after)


BAD = {
    "not an image": ({"image": text(b"hello")}, "BAD_IMAGE: the image is not an image"),
    "empty": ({"image": text(b"")}, "BAD_IMAGE: the image is empty"),
    "truncated": ({"image": "truncated"}, "BAD_IMAGE: the image cannot be read"),
    "bomb": ({"image": text(bomb())}, "BAD_IMAGE: the image is too large"),
    "unknown id": ({"image_id": text(b"0123")}, "UNKNOWN_IMAGE_ID"),
    "id of no text": ({"image_id": text(b"\xff\xfe")}, "BAD_REQUEST: image_id is no UTF-8"),
    "both": ({"image": text(b"x"), "image_id": text(b"x")}, "BAD_REQUEST: give either"),
    "nothing": ({"multimask_output": np.array([True])}, "BAD_REQUEST: give either"),
    "format": (
        {"image": "good", "output_format": text(b"gif")},
        "BAD_REQUEST: output_format must be one of logits, rle, png, png_base64, not 'gif'",
    ),
    "NaN": ({"image": "good", **point_inputs(float("nan"))}, "BAD_PROMPT: point_coords holds NaN"),
    "outside": ({"image": "good", **point_inputs(5000)}, "BAD_PROMPT: point .* lies outside"),
    "labels alone": ({"image": "good", "point_labels": np.ones((1, 1), np.float32)}, "BAD_PROMPT: point_labels"),
    "10,000 points": (
        {"image": "good", "point_coords": np.ones((1, 10_000, 2), np.float32)},
        "BAD_PROMPT: 10000 points: a request may have at most 1024",
    ),
    "too many objects": (
        {"image": "good", "boxes": np.tile(np.float32([[1, 1, 9, 9]]), (200, 1))},
        "BAD_PROMPT: 200 objects: a request may have at most 64",
    ),
    "base64 in place of bytes": ({"image": "base64"}, "BAD_IMAGE: image has base64: .* in image_b64"),
    "a data URL": ({"image": "data URL"}, "BAD_IMAGE: image has base64"),
    "face of both kinds": ({"image": "good", "prompt_json": text(b"{}")}, None),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(transport, content, name):
    inputs, message = BAD[name]
    encoded = base64.b64encode(content)
    contents = {"good": content, "truncated": content[: len(content) // 2]}
    contents |= {"base64": encoded, "data URL": b"data:image/jpeg;base64," + encoded}
    inputs = {k: text(contents[v]) if isinstance(v, str) else v for k, v in inputs.items()}
    if message is None:
        answer = transport.infer("sam2", inputs, ["result_json"])["result_json"][0]
        assert json.loads(answer)["error"]["code"] == "BAD_REQUEST"
    else:
        with pytest.raises(SamError, match=message):
            transport.infer("sam2", inputs, ["image_id"])
    assert "sam2" in transport.ready_models()


# curl


# JPEG to embeddings
