"""Requests of wrong sizes to a real server: each is an error, and the server goes on."""

import contextlib

import numpy as np
import psutil
import pytest
import urllib3
from support import graph_attacks, wire_attacks
from support.commands import copy_committed
from support.conditions import PATIENCE, wait_until
from support.processes import all_gone
from support.tiny_models import SCALE_CONFIG, scale_graph, write_model
from tritonclient import grpc

from triton_sam.errors import InferenceError
from triton_sam.families import get_family
from triton_sam.local_server import LocalServer
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

ATTACK = b'{"inputs":[{"name":"image","shape":[0,3,1024,1024],"datatype":"FP32","data":[]}]}'


def test_no_image_at_all(server):
    """This request ended the process of the model, with ONNX Runtime 1.19 to 1.28."""
    with grpc.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        nothing = [{"name": "image", "dtype": "float32", "shape": [0, 3, 1024, 1024]}]
        assert wire_attacks.send(grpc, client, "sam2_encoder", nothing) == "StatusCode.INTERNAL"
    answer = urllib3.request("POST", f"{server.http_url}/v2/models/sam2_encoder/infer", body=ATTACK)
    assert answer.status == 500
    assert "guard/image" in answer.json()["error"]  # the model's process answers, and not Triton in its place
    assert {model.name for model in server.served_models()} >= {"sam2_encoder", "sam2_decoder"}


def test_a_size_that_ends_a_model_is_healed(tmp_path):
    """Triton's Python backend (2.51) ends at a size of -2^63 over gRPC, before any code of the model runs."""
    write_model(tmp_path, "scale", scale_graph(2), SCALE_CONFIG)
    attack = [{"name": "x", "dtype": "float32", "shape": [-(1 << 63), 2]}]
    ones = np.ones((1, 2), np.float32)
    with LocalServer(tmp_path) as server, grpc.InferenceServerClient(server.grpc_url[len("grpc://") :]) as client:
        transport = Transport(parse_url(server.grpc_url), timeout=PATIENCE, retries=60)
        expected = transport.infer("scale", {"x": ones}, ["y"])["y"]
        (stub,) = psutil.Process(server.pid).children()
        assert wire_attacks.send(grpc, client, "scale", attack) is not None
        assert all_gone([stub]), "this Triton refuses the request: change docs/contribute/pitfalls.md"
        wait_until(lambda: server.restarts == 1)  # a busy machine needs more than the pauses of one call
        np.testing.assert_array_equal(transport.infer("scale", {"x": ones}, ["y"])["y"], expected)
        transport.close()
        assert server.restarts == 1
        assert "the process of model scale is gone" in server.log


def feed(prompts: int) -> dict[str, np.ndarray]:
    """Return a request to SAM2's decoder for so many masks of one image."""
    sizes = {"images": 1, "prompts": prompts, "points": 1}
    request = graph_attacks.request(get_family("sam2").decoder, sizes)
    return {part["name"]: np.zeros(part["shape"], np.float32) for part in request}


def test_the_client_says_that_the_sizes_are_wrong(url):
    unequal = feed(2)
    unequal["point_labels"] = unequal["point_labels"][:1]
    with contextlib.closing(Transport(parse_url(url), timeout=60)) as transport:
        for wrong, words in (
            (unequal, "the sizes of the inputs do not fit"),
            (feed(65), "a request may have at most 64"),
        ):
            with pytest.raises(InferenceError, match=f"sam2_decoder refused the request: {words}"):
                transport.infer("sam2_decoder", wrong, ["masks"])


def test_a_request_that_needs_too_much_memory_is_an_error(tmp_path):
    """A request of some kilobytes asks for 64 masks. The limit of this test is small, so that the test is quick."""
    copy_committed(tmp_path, "sam2_decoder")
    with (tmp_path / "sam2_decoder" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "cpu_mem_limit" value { string_value: "300000000" } }\n')
    with (
        LocalServer(tmp_path, heal=False) as server,
        contextlib.closing(Transport(parse_url(server.http_url))) as transport,
    ):
        expected = transport.infer("sam2_decoder", feed(1), ["masks"])["masks"]
        with pytest.raises(InferenceError, match=r"Available memory of \d+ is smaller than requested"):
            transport.infer("sam2_decoder", feed(64), ["masks"])
        np.testing.assert_array_equal(transport.infer("sam2_decoder", feed(1), ["masks"])["masks"], expected)
