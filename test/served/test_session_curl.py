"""The session model by curl, and the model that turns encoded bytes into embeddings."""

import base64
import io
import json
import os
import shutil
import subprocess
import urllib.request

import numpy as np
import pytest
from PIL import Image
from support.session_requests import ask, colored, post, text
from support.session_server import encoded, serve

from triton_sam import SAM2TritonClient, SamError
from triton_sam._common.bundle import bundled
from triton_sam.masks.rle import rle_to_mask
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url


def test_curl_gets_a_png(session_server, client, content):
    client.set_image(content)
    expected = client.segment([[200, 180], [3, 4]], [1, 0], multimask_output=True)
    prompt = {"points": [[200, 180], [3, 4]], "labels": [1, 0], "multimask": True, "rle": True}
    answer = ask(session_server, image_b64=base64.b64encode(content).decode(), prompt_json=json.dumps(prompt))
    assert len(answer["masks"]) == 3
    assert answer["mask"]["score"] == max(mask["score"] for mask in answer["masks"])
    for mask, segment in zip(answer["masks"], expected, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(mask["data"]))))
        assert (mask["width"], mask["height"]) == (800, 600)
        np.testing.assert_array_equal(pixels > 0, segment.mask)
        np.testing.assert_array_equal(rle_to_mask(mask["rle"]), segment.mask)
        assert mask["score"] == pytest.approx(segment.score)
    assert answer["timings"]["decode_ms"] > 0
    again = ask(session_server, prompt_json=json.dumps({**prompt, "image_id": answer["image_id"]}))
    assert again["masks"] == answer["masks"]


def test_curl_may_only_send_the_image(session_server, content):
    data_url = "data:image/jpeg;base64," + base64.encodebytes(content).decode()
    for inputs in ({}, {"prompt_json": '{"points": [], "boxes": []}'}):
        answer = ask(session_server, image_b64=data_url, **inputs)
        assert (answer["mask"], answer["masks"], answer["image_size"]) == (None, [], [800, 600])


@pytest.mark.parametrize(
    ("image", "prompt", "code"),
    [
        ("AA==", '{"points":[],"boxes":[]}', "BAD_IMAGE"),
        ("%%%", "{}", "BAD_IMAGE"),
        (None, '{"image_id": "nope"}', "UNKNOWN_IMAGE_ID"),
        (None, "{}", "BAD_REQUEST"),
        ("good", "{", "BAD_PROMPT"),
        ("good", "[" * 100_000, "BAD_PROMPT"),
        ("good", "[1, 2]", "BAD_PROMPT"),
        ("good", '{"point": [[1, 2]]}', "BAD_PROMPT"),
        ("good", '{"points": {"x": 1}}', "BAD_PROMPT"),
        ("good", '{"points": [[1]]}', "BAD_PROMPT"),
        ("good", '{"points": [["a", "b"]]}', "BAD_PROMPT"),
        ("good", '{"points": [[NaN, 1]]}', "BAD_PROMPT"),
        ("good", '{"points": [[1, 2]], "labels": [7]}', "BAD_PROMPT"),
        ("good", json.dumps({"points": [[1, 2]] * 10_000}), "BAD_PROMPT"),
    ],
)
def test_curl_gets_errors_as_json(session_server, content, image, prompt, code):
    given = {"good": base64.b64encode(content).decode()}.get(image, image)
    inputs = {"prompt_json": prompt} | ({} if given is None else {"image_b64": given})
    answer = ask(session_server, **inputs)
    assert list(answer) == ["error"]
    assert answer["error"]["code"] == code
    assert "\n" not in answer["error"]["message"]
    assert len(answer["error"]["message"]) <= 500


def test_a_body_with_another_number_of_dimensions_is_refused_with_both_shapes(session_server, content):
    """Triton compares the number of dimensions before the session model sees the request."""
    inputs = {"image_b64": base64.b64encode(content).decode(), "prompt_json": '{"points": [[200, 180]]}'}
    error = post(session_server, shape=(1, 1), **inputs)["error"]
    assert "unexpected shape for input" in error
    assert "Expected [1], got [1,1]" in error


def write_old_model(folder):
    """Write a session model with batches, as in the project's first version."""
    (folder / "1").mkdir(parents=True)
    tensors = ", ".join(
        f'{{ name: "{name}", data_type: TYPE_STRING, dims: [1] }}' for name in ("image_b64", "prompt_json")
    )
    (folder / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 16\ninput [{tensors}]\n'
        'output [{ name: "result_json", data_type: TYPE_STRING, dims: [1] }]\ninstance_group [{ kind: KIND_CPU }]\n'
    )
    (folder / "1" / "model.py").write_text(
        "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        result = np.array([[b'{\"mask\": null}']], np.object_)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('result_json', result)]) for _ in requests]\n"
    )


def test_bodies_with_a_batch_dimension_where_the_config_says_so(toy_repository, tmp_path, content):
    """The two lines of config.pbtxt are those that docs/reference/session-models.md gives."""
    shutil.copytree(toy_repository, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "sam2" / "config.pbtxt"
    written = config.read_text()
    for name in ("image_b64", "prompt_json"):
        line = f'{{ name: "{name}", data_type: TYPE_STRING, dims: [1], optional: true }}'
        assert line in written
        written = written.replace(line, line.replace("[1]", "[1, 1]"))
    config.write_text(written)
    prompt = {"points": [[200, 180]]}
    inputs = {"image_b64": base64.b64encode(content).decode(), "prompt_json": json.dumps(prompt)}
    write_old_model(tmp_path / "old")
    with serve(tmp_path, more=["old"]) as server, SAM2TritonClient(server.http_url) as client:
        host, _, port = server.http_url.removeprefix("http://").partition(":")
        for model in ("sam2", "old"):
            done = script("infer_example.sh", host, port, MODEL=model, OUT=str(tmp_path / f"{model}.png"))
            assert done.returncode == 0, done.stderr
        client.set_image(content)
        (expected,) = client.segment([[200, 180]])
        answer = json.loads(post(server, shape=(1, 1), **inputs)["result_json"])
        by_id = {"prompt_json": json.dumps({**prompt, "image_id": answer["image_id"]})}
        again = json.loads(post(server, shape=(1, 1), **by_id)["result_json"])
        assert "Expected [1,1], got [1]" in post(server, **inputs)["error"]
    assert again["masks"] == answer["masks"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["mask"]["data"]))))
    np.testing.assert_array_equal(pixels > 0, expected.mask)


def test_the_generate_extension_needs_no_shape(session_server, content):
    prompt = {"points": [[200, 180]]}
    inputs = {"image_b64": base64.b64encode(content).decode(), "prompt_json": json.dumps(prompt)}
    request = urllib.request.Request(f"{session_server.http_url}/v2/models/sam2/generate", json.dumps(inputs).encode())
    answer = json.loads(json.loads(urllib.request.urlopen(request).read())["result_json"])
    assert answer["mask"] == ask(session_server, **inputs)["mask"]


def script(name, *arguments, **variables):
    command = ["bash", str(bundled("scripts") / name), *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_scripts_for_curl(session_server, images, tmp_path):
    host, _, port = session_server.http_url.removeprefix("http://").partition(":")
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


def test_the_script_for_curl_says_what_is_wrong_and_writes_no_mask(session_server, images, tmp_path):
    host, _, port = session_server.http_url.removeprefix("http://").partition(":")
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


def test_embeddings_from_encoded_bytes_equal_the_clients(session_server, transport, content):
    with SAM2TritonClient(session_server.http_url, embeddings="client") as client:
        expected = client.encode(content)
    got = transport.infer("sam2_encoder_jpeg", {"encoded_image": text(content)}, [*expected, "image_size"])
    assert got["image_size"].tolist() == [800, 600]
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
    with pytest.raises(SamError, match="BAD_IMAGE"):
        transport.infer("sam2_encoder_jpeg", {"encoded_image": text(b"no")}, list(expected))


RESPONSE_CACHE = ["--cache-config=local,size=268435456"]


@pytest.mark.slow
def test_the_same_bytes_are_encoded_once_with_the_response_cache_of_the_document(toy_repository, content, tmp_path):
    shutil.copytree(toy_repository, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "sam2_encoder_jpeg" / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }\n")
    with serve(tmp_path, extra_args=RESPONSE_CACHE) as server:
        transport = Transport(parse_url(server.http_url))
        before = encoded(transport)  # the warm-up's
        first, again = (
            transport.infer("sam2_encoder_jpeg", {"encoded_image": text(content)}, ["high_res_feats_1", "image_size"])
            for _ in range(2)
        )
        assert encoded(transport) - before == 1
        transport.infer("sam2_encoder_jpeg", {"encoded_image": text(colored(7))}, ["image_size", "image_embeddings"])
        assert encoded(transport) - before == 2
        transport.close()
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array)


def test_who_asks_for_one_output_leaves_the_others_to_the_next(toy_repository, content):
    """Triton's response cache knows no outputs: a model with it answers the second request without embeddings."""
    with serve(toy_repository, extra_args=RESPONSE_CACHE) as server:
        transport, content = Transport(parse_url(server.http_url)), text(content)
        transport.infer("sam2_encoder_jpeg", {"encoded_image": content}, ["image_size"])
        whole = transport.infer("sam2_encoder_jpeg", {"encoded_image": content}, ["image_size", "image_embeddings"])
        transport.close()
    assert whole["image_embeddings"].shape == (1, 256, 64, 64)
