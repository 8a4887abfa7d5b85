"""The session model by curl, and the model that turns encoded bytes into embeddings."""

import base64
import io
import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from support.conditions import settled, wait_until
from support.session_requests import ask, colored, encoded, inferences, metrics, point_inputs, post, serve, text
from support.toy_server import BATCHED, CACHED, CALLS, CHOSEN, CONFIGURED, OLD

from triton_sam import SAM2TritonClient, SamError
from triton_sam._common.bundle import bundled
from triton_sam.errors import LocalServerError
from triton_sam.masks.rle import rle_to_mask
from triton_sam.repository.hashes import forget_hashes


def test_curl_gets_a_png(server, http_client, content):
    http_client.set_image(content)
    expected = http_client.segment([[200, 180], [3, 4]], [1, 0], multimask_output=True)
    prompt = {"points": [[200, 180], [3, 4]], "labels": [1, 0], "multimask": True, "rle": True}
    answer = ask(server, image_b64=base64.b64encode(content).decode(), prompt_json=json.dumps(prompt))
    assert len(answer["masks"]) == 3
    assert answer["mask"]["score"] == max(mask["score"] for mask in answer["masks"])
    for mask, segment in zip(answer["masks"], expected, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(mask["data"]))))
        assert (mask["width"], mask["height"]) == (800, 600)
        np.testing.assert_array_equal(pixels > 0, segment.mask)
        np.testing.assert_array_equal(rle_to_mask(mask["rle"]), segment.mask)
        assert mask["score"] == pytest.approx(segment.score)
    assert answer["timings"]["decode_ms"] > 0
    again = ask(server, prompt_json=json.dumps({**prompt, "image_id": answer["image_id"]}))
    assert again["masks"] == answer["masks"]


def test_curl_may_only_send_the_image(server, content):
    data_url = "data:image/jpeg;base64," + base64.encodebytes(content).decode()
    for inputs in ({}, {"prompt_json": '{"points": [], "boxes": []}'}):
        answer = ask(server, image_b64=data_url, **inputs)
        assert (answer["mask"], answer["masks"], answer["image_size"]) == (None, [], [800, 600])


def test_curl_gets_errors_as_json(server, content):
    """test/unit/sessions/test_fuzz.py and test_properties.py send what else there may be."""
    good = {"image_b64": base64.b64encode(content).decode()}
    for inputs, code in (
        ({"image_b64": "%%%", "prompt_json": "{}"}, "BAD_IMAGE"),
        ({"prompt_json": '{"image_id": "../evil"}'}, "UNKNOWN_IMAGE_ID"),
        ({"prompt_json": "{}"}, "BAD_REQUEST"),
        ({**good, "prompt_json": "[" * 100_000}, "BAD_PROMPT"),
    ):
        answer = ask(server, **inputs)
        assert list(answer) == ["error"]
        assert answer["error"]["code"] == code
        assert "\n" not in answer["error"]["message"]
        assert len(answer["error"]["message"]) <= 500


def test_a_body_with_another_number_of_dimensions_is_refused_with_both_shapes(server, content):
    """Triton compares the number of dimensions before the session model sees the request."""
    inputs = {"image_b64": base64.b64encode(content).decode(), "prompt_json": '{"points": [[200, 180]]}'}
    error = post(server, shape=(1, 1), **inputs)["error"]
    assert "unexpected shape for input" in error
    assert "Expected [1], got [1,1]" in error


def test_bodies_with_a_batch_dimension_where_the_config_says_so(server, http_client, tmp_path, content):
    prompt = {"points": [[200, 180]]}
    inputs = {"image_b64": base64.b64encode(content).decode(), "prompt_json": json.dumps(prompt)}
    host, _, port = server.http_url.removeprefix("http://").partition(":")
    for model in (BATCHED, OLD):
        done = script("infer_example.sh", host, port, MODEL=model, OUT=str(tmp_path / f"{model}.png"))
        assert done.returncode == 0, done.stderr
    http_client.set_image(content)
    (expected,) = http_client.segment([[200, 180]])
    answer = json.loads(post(server, model=BATCHED, shape=(1, 1), **inputs)["result_json"])
    by_id = {"prompt_json": json.dumps({**prompt, "image_id": answer["image_id"]})}
    again = json.loads(post(server, model=BATCHED, shape=(1, 1), **by_id)["result_json"])
    assert "Expected [1,1], got [1]" in post(server, model=BATCHED, **inputs)["error"]
    assert again["masks"] == answer["masks"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["mask"]["data"]))))
    np.testing.assert_array_equal(pixels > 0, expected.mask)


def script(name, *arguments, **variables):
    command = ["bash", str(bundled("scripts") / name), *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_scripts_for_curl(server, images, tmp_path):
    host, _, port = server.http_url.removeprefix("http://").partition(":")
    health = script("health_check.sh", host, port)
    assert health.returncode == 0
    assert "sam2_decoder" in health.stdout
    assert script("health_check.sh", host, "9").returncode == 1
    prompt = '{"points": [[200, 180]],\n "labels": [1]}'
    large = base64.b64encode((images / "coffee.jpg").read_bytes()).decode()
    for number, given in enumerate([(), (str(images / "shapes.jpg"), prompt), (large, prompt)]):
        file = tmp_path / "new" / f"{number}.png"
        done = script("infer_example.sh", host, port, *given, OUT=str(file))
        assert done.returncode == 0, done.stderr
        mask = json.loads(done.stdout)["mask"]
        assert file.read_bytes() == base64.b64decode(mask["data"])
        with Image.open(file) as image:
            assert image.size == (mask["width"], mask["height"])
        assert done.stderr == f"infer_example.sh: mask with score {mask['score']:.2f} written to {file}\n"


def test_the_script_for_curl_says_what_is_wrong_and_writes_no_mask(server, images, tmp_path):
    host, _, port = server.http_url.removeprefix("http://").partition(":")
    refused = script("infer_example.sh", host, port, "AA==", '{"points":[],"boxes":[]}', OUT=str(tmp_path / "x.png"))
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "BAD_IMAGE"
    assert refused.stderr.startswith("infer_example.sh: BAD_IMAGE: ")
    assert "neither a file nor base64" in script("infer_example.sh", host, port, "%%%", "{}").stderr
    uploaded = script("infer_example.sh", host, port, str(images / "shapes.jpg"), "{}", OUT=str(tmp_path / "x.png"))
    assert (uploaded.returncode, uploaded.stderr) == (0, "")
    assert json.loads(uploaded.stdout)["mask"] is None
    assert list(tmp_path.iterdir()) == []
    point = '{"points": [[200, 180]]}'
    done = script("infer_example.sh", host, port, str(images / "shapes.jpg"), point, OUT="/proc/none/x.png")
    assert done.returncode == 1
    assert "cannot write /proc/none/x.png" in done.stderr


def test_embeddings_from_encoded_bytes_equal_the_clients(server, transport, content):
    with SAM2TritonClient(server.http_url, embeddings="client") as client:
        expected = client.encode(content)
    got = transport.infer("sam2_encoder_jpeg", {"encoded_image": text(content)}, [*expected, "image_size"])
    assert got["image_size"].tolist() == [800, 600]
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
    with pytest.raises(SamError, match="BAD_IMAGE"):
        transport.infer("sam2_encoder_jpeg", {"encoded_image": text(b"no")}, list(expected))


def test_the_same_bytes_are_encoded_once_with_the_response_cache_of_the_document(transport, content):
    before = encoded(transport)
    outputs = ["high_res_feats_1", "image_size"]
    first, again = (transport.infer(CACHED, {"encoded_image": text(content)}, outputs) for _ in range(2))
    wait_until(lambda: encoded(transport) - before == 1)
    transport.infer(CACHED, {"encoded_image": text(colored(7))}, ["image_size", "image_embeddings"])
    wait_until(lambda: encoded(transport) - before == 2)
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array)


def test_who_asks_for_one_output_leaves_the_others_to_the_next(transport, content):
    """Triton's response cache knows no outputs: a model with it answers the second request without embeddings."""
    image = {"encoded_image": text(content)}
    transport.infer("sam2_encoder_jpeg", image, ["image_size"])
    whole = transport.infer("sam2_encoder_jpeg", image, ["image_size", "image_embeddings"])
    assert whole["image_embeddings"].shape == (1, 256, 64, 64)


# --- session models that run their decoders themselves, beside one that calls the decoder: see support.toy_server


BOX = np.float32([[90, 70, 310, 290]])


def test_masks_and_scores_are_equal_to_the_bit(transport, content):
    for prompt in (
        point_inputs(),
        {**point_inputs(), "multimask_output": np.array([True])},
        {
            "point_coords": np.float32([[[200, 180], [3, 4]], [[520, 145], [0, 0]]]),
            "point_labels": np.float32([[1, 0], [1, -2]]),
        },
        {"boxes": np.tile(BOX, (5, 1)), "multimask_output": np.array([True])},
        {"boxes": BOX, **point_inputs()},
        {"mask_input": np.random.default_rng(0).normal(0, 9, (1, 1, 256, 256)).astype(np.float32)},
        {"mask_input": np.full((1, 1, 256, 256), -7, np.float32), **point_inputs(300, 200)},
    ):
        answers = [
            transport.infer(model, {"image": text(content), **prompt}, ["masks", "iou_predictions"])
            for model in (CALLS, CONFIGURED, CHOSEN)
        ]
        for answer in answers[1:]:
            for output in ("masks", "iou_predictions"):
                assert answer[output].tobytes() == answers[0][output].tobytes()
        assert answers[0]["masks"].any()


def test_only_the_counters_of_the_session_model_grow(server, transport, content):
    (image_id,) = transport.infer(CHOSEN, {"image": text(content)}, ["image_id"])["image_id"]
    calls = inferences(transport, "sam2_decoder")
    counted = settled(lambda: metrics(server, model=CHOSEN)["decodes_total"])
    for _ in range(3):
        transport.infer(CHOSEN, {"image_id": text(image_id), **point_inputs()}, ["masks"])
    wait_until(lambda: metrics(server, model=CHOSEN)["decodes_total"] == counted + 3)
    assert inferences(transport, "sam2_decoder") == calls
    transport.infer(CALLS, {"image": text(content), **point_inputs()}, ["masks"])
    wait_until(lambda: inferences(transport, "sam2_decoder") == calls + 1)


def test_a_damaged_decoder_is_one_clear_error(toy_repository, tmp_path):
    """Triton loads the broken decoder itself with an error, too: the session model says its own."""
    repository = shutil.copytree(toy_repository, tmp_path / "models")
    file = repository / "sam2_decoder" / "1" / "model.onnx"
    file.write_bytes(b"no model")
    forget_hashes([file])
    server = serve(repository, decoder_in_session=True)
    with pytest.raises(LocalServerError, match="model 'sam2' failed to load: ") as caught:
        server.start()
    (said,) = (part for part in str(caught.value).split("; ") if part.startswith("model 'sam2' "))
    assert str(file) in said
    assert "\n" not in str(caught.value)
