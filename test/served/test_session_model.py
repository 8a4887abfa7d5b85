"""The session model on a real Triton: images stay on the server, by tensors, by client and by curl."""

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import urllib3
from PIL import Image
from support.conditions import wait_until
from support.faulty_proxy import FaultyProxy
from support.processes import stopped
from support.session_requests import (
    IMAGE_BYTES,
    IMAGES_IN_CACHE,
    colored,
    encoded,
    metrics,
    point_inputs,
    serve,
    text,
    upload,
)
from support.toy_server import NARROW

from triton_sam import AsyncSAM2TritonClient, ImageError, SAM2TritonClient, SamError
from triton_sam._common.bundle import bundled
from triton_sam.client.session_image import SessionImage
from triton_sam.errors import ServerBusyError
from triton_sam.masks.rle import rle_to_mask
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import contract

POINT = [[200, 180]]


# The client


def test_masks_are_those_of_encoder_and_decoder(url, content):
    with SAM2TritonClient(url, embeddings="client") as near, SAM2TritonClient(url) as far:
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


def test_an_evicted_image_is_sent_again_without_a_word(http_client, server, transport, content):
    http_client.set_image(content)
    expected, _ = http_client.predict(POINT)
    for number in range(IMAGES_IN_CACHE):
        upload(transport, colored(number))
    before = encoded(transport)
    np.testing.assert_array_equal(http_client.predict(POINT)[0], expected)
    np.testing.assert_array_equal(http_client.predict(POINT)[0], expected)
    wait_until(lambda: encoded(transport) == before + 1)
    mask = http_client.segment(POINT)[0].mask
    for number in range(IMAGES_IN_CACHE):
        upload(transport, colored(number))
    np.testing.assert_array_equal(http_client.segment(POINT, logits=False)[0].mask, mask)


def test_tasks_of_the_async_client_get_their_own_masks(url, transport, http_client, content):
    """The server loses the image while they run, and refuses another one."""
    points = [[[60 + 25 * number, 180]] for number in range(16)]
    http_client.set_image(content)
    expected = [http_client.predict(point) for point in points]

    async def click():
        async with AsyncSAM2TritonClient(url, busy="wait") as fast:
            assert await fast.is_ready()
            await fast.set_image(content)
            assert isinstance(fast.image_embeddings, SessionImage)
            for number in range(IMAGES_IN_CACHE):
                await asyncio.to_thread(upload, transport, colored(50 + number))
            with pytest.raises(ImageError, match="not an image"):
                await fast.set_image(b"no")
            return await asyncio.gather(*(fast.predict(point) for point in points))

    for found, wanted in zip(asyncio.run(click()), expected, strict=True):
        np.testing.assert_array_equal(found[0], wanted[0])


def test_more_than_may_wait_are_refused_unless_their_clients_wait(server, content):
    with SAM2TritonClient(server.grpc_url, model_name=NARROW, embeddings="server") as client:
        client.set_image(content)
        expected, _ = client.predict(POINT)

        def click(_):
            try:
                return client.predict(POINT)[0]
            except ServerBusyError as error:
                return error

        with ThreadPoolExecutor(24) as pool, stopped(server.pid):  # until requests of all threads are on the wire
            jobs = [pool.submit(click, number) for number in range(72)]
            wait_until(lambda: sum(job.running() for job in jobs) >= 24)
        answers = [job.result() for job in jobs]
    refused = [answer for answer in answers if isinstance(answer, ServerBusyError)]
    assert 1 <= len(refused) <= 71
    assert "too many requests wait" in str(refused[0])
    for answer in answers:
        if not isinstance(answer, ServerBusyError):
            np.testing.assert_array_equal(answer, expected)
    counted = metrics(server, lambda figures: figures.get("refusals_total") == len(refused), NARROW)
    assert counted["refusals_total"] == len(refused)
    waits = {"model_name": NARROW, "embeddings": "server", "busy": "wait"}
    with SAM2TritonClient(server.http_url, **waits) as patient, ThreadPoolExecutor(24) as pool:
        patient.set_image(content)
        for masks, _ in pool.map(lambda _: patient.predict(POINT), range(24)):
            np.testing.assert_array_equal(masks, expected)


# Tensors


def test_full_size_masks_equal_those_made_by_the_client(http_client, transport, content):
    http_client.set_image(content)
    expected = http_client.segment(POINT, multimask_output=True)
    common = {"image": text(content), **point_inputs(), "multimask_output": np.array([True])}
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


def test_a_mask_survives_plain_json_and_json_with_binary_tensors(server, transport, content):
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
        return urllib3.request("POST", f"{server.http_url}/v2/models/sam2/infer", json=body)

    (plain,) = ask("png_base64").json()["outputs"][0]["data"]
    answer = ask("png", binary_data=True)
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert base64.b64decode(plain, validate=True) == answer.data[length + 4 :]  # before each element stands its length


def test_a_job_finds_all_objects(http_client, transport, content):
    """Parameters, filters and answers are in test/unit/everything, test/unit/client and test/unit/sessions."""
    search = {"points_per_side": 4, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}
    inputs = {"image": text(content), "everything": text(json.dumps(search).encode())}
    objects = json.loads(transport.infer("sam2", inputs, ["result_json"])["result_json"][0])["objects"]
    expected = http_client.everything(content, **search)
    assert [each["segmentation"]["counts"] for each in objects] == [each.to_rle()["counts"] for each in expected] != []


def test_figures_are_in_the_metrics(server, transport, content):
    before = metrics(server)
    upload(transport, colored(77))
    transport.infer("sam2", {"image": text(colored(77)), **point_inputs(3, 3)}, ["masks"])
    counted = {"cache_hits", "cache_misses", "encodes", "decodes", "encode_seconds", "decode_seconds"}

    def grown(figures):
        return {name for name in counted if figures.get(f"{name}_total", 0) > before.get(f"{name}_total", 0)}

    after = metrics(server, lambda figures: grown(figures) == counted)
    assert grown(after) == counted
    assert after["cache_bytes"] == after["cache_images"] * IMAGE_BYTES <= after["cache_limit_bytes"]
    assert 1 <= after["cache_images"] <= IMAGES_IN_CACHE
    assert {"cache_evictions_total", "failures_total"} <= set(after)


BAD = {
    "truncated": ({"image": "truncated"}, "BAD_IMAGE: the image cannot be read"),
    "both": ({"image": text(b"x"), "image_id": text(b"x")}, "BAD_REQUEST: give either"),
    "format": (
        {"image": "good", "output_format": text(b"gif")},
        "BAD_REQUEST: output_format must be one of logits, rle, png, png_base64, not 'gif'",
    ),
    "too many objects": (
        {"image": "good", "boxes": np.tile(np.float32([[1, 1, 9, 9]]), (200, 1))},
        "BAD_PROMPT: 200 objects: a request may have at most 64",
    ),
    "base64 in place of bytes": ({"image": "base64"}, "BAD_IMAGE: image has base64: .* in image_b64"),
    "face of both kinds": ({"image": "good", "prompt_json": text(b"{}")}, None),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(transport, content, name):
    inputs, message = BAD[name]
    encoded = base64.b64encode(content)
    contents = {"good": content, "truncated": content[: len(content) // 2]}
    contents["base64"] = encoded
    inputs = {k: text(contents[v]) if isinstance(v, str) else v for k, v in inputs.items()}
    if message is None:
        answer = transport.infer("sam2", inputs, ["result_json"])["result_json"][0]
        assert json.loads(answer)["error"]["code"] == "BAD_REQUEST"
    else:
        with pytest.raises(SamError, match=message):
            transport.infer("sam2", inputs, ["image_id"])
    assert "sam2" in transport.ready_models()


def test_traces_hold_requests_to_session_models_without_their_steps(toy_repository, tmp_path, images):
    """A trace file has no steps of session models: Triton frees the trace of a request when execute() returns.

    Triton 2.51 crashed at the first click when the session model passed such a trace on.
    """
    settings = [f"triton,file={tmp_path / 'trace.json'}", "triton,log-frequency=1", "rate=1", "level=TIMESTAMPS"]
    options = [f"--trace-config={setting}" for setting in settings]
    with (
        serve(toy_repository, extra_args=options) as server,
        SAM2TritonClient(server.http_url) as client,
    ):
        client.set_image(images / "shapes.jpg")
        masks = [client.predict(POINT)[0] for _ in range(3)]
        assert server.is_alive()
    np.testing.assert_array_equal(masks[0], masks[2])
    entries = [entry for path in tmp_path.glob("trace.json.*") for entry in json.loads(path.read_text())]
    assert {entry["model_name"] for entry in entries if "model_name" in entry} == {"sam2"}
    assert {stamp["name"] for entry in entries for stamp in entry.get("timestamps", ())} >= {
        "REQUEST_START",
        "INFER_RESPONSE_COMPLETE",
    }


# --- the bytes of clicks over HTTP, with headers, for the objects of the demo images and in each output format


REQUEST_LIMIT = 1_000
ANSWER_LIMITS = {"logits": 300_000, "rle": 10_000, "png": 10_000, "png_base64": 13_500}


def clicks() -> Iterator[tuple[bytes, dict[str, np.ndarray[Any, Any]]]]:
    """Yield the image file and the prompt tensors of each object in the demo."""
    folder = bundled("test/images")
    for entry in json.loads((folder / "demo.json").read_text(encoding="utf-8")):
        for thing in entry["objects"]:
            content = (folder / entry["image"]).read_bytes()
            if "box" in thing:
                yield content, {contract.BOXES: np.array([thing["box"]], np.float32)}
            else:
                yield content, {contract.POINT_COORDS: np.array([[thing["point"]]], np.float32)}


@pytest.mark.slow
def test_bytes_of_a_click_stay_below_their_thresholds(service_triton):
    host, _, port = service_triton.http_url.removeprefix("http://").partition(":")
    with FaultyProxy((host, int(port))) as proxy:
        transport = Transport(parse_url(f"http://127.0.0.1:{proxy.port}"))
        for content, prompt in clicks():
            uploaded = transport.infer("sam2", {contract.IMAGE: np.array([content], np.object_)}, [contract.IMAGE_ID])
            for name, limit in ANSWER_LIMITS.items():
                masks = contract.MASKS if name == "logits" else contract.ENCODED_MASKS
                wanted = np.array([name.encode()], np.object_)
                inputs = {contract.IMAGE_ID: uploaded[contract.IMAGE_ID], contract.OUTPUT_FORMAT: wanted, **prompt}
                before = proxy.asked, proxy.answered
                transport.infer("sam2", inputs, [masks, contract.IOU_PREDICTIONS, contract.IMAGE_ID])
                assert 0 < proxy.asked - before[0] < REQUEST_LIMIT, name
                assert 0 < proxy.answered - before[1] < limit, name
        transport.close()
