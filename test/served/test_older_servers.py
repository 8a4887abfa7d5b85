"""Servers without a session model, metrics and statistics."""

import asyncio
import json

import numpy as np
import pytest

from triton_sam import ModelNotReadyError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.cli import main

POINT = [[200, 180]]


@pytest.fixture(scope="module")
def plain(toy_repository):
    """Yield a Triton with an encoder and a decoder, but without metrics and statistics."""
    from triton_sam.local_server import LocalServer

    refused = "statistics,trace,logging,shared-memory:nobody=knows"
    options = ["--allow-metrics=false", f"--http-restricted-api={refused}", f"--grpc-restricted-protocol={refused}"]
    with LocalServer(toy_repository, models=["sam2_encoder", "sam2_decoder"], extra_args=options) as running:
        yield running


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_both_clients_work_without_a_session_model(plain, images, protocol):
    url = plain.http_url if protocol == "http" else plain.grpc_url
    with SAM2TritonClient(url) as client:
        client.set_image(images / "shapes.jpg")
        expected, _ = client.predict(POINT)

    async def click() -> np.ndarray:
        async with SpeculativeSAM2Client(url) as fast:
            await fast.set_image_async(images / "shapes.jpg")
            _, task = await fast.predict_async(POINT)
            return (await task)[0]

    np.testing.assert_array_equal(asyncio.run(click()), expected)


def test_the_sync_client_without_a_session_model(plain, images):
    with SAM2TritonClient(plain.grpc_url) as client:
        assert client.everything(
            images / "shapes.jpg", points_per_side=3, pred_iou_thresh=0.2, stability_score_thresh=0.5
        )
    with (
        SAM2TritonClient(plain.http_url, embeddings="server") as client,
        pytest.raises(ModelNotReadyError, match="no model 'sam2' ready"),
    ):
        client.set_image(images / "shapes.jpg")


def test_commands_work_without_metrics(plain, images, tmp_path, capsys):
    for command, words in (
        (["models"], "sam2_decoder"),
        (["doctor"], "model sam2_encoder"),
        (["predict", str(images / "shapes.jpg"), "--point", "200,180"], "object 0: score "),
        (["benchmark", "--only", "latency", "--duration", "0.1", "--out", str(tmp_path)], "no session model"),
    ):
        assert main([*command, "--url", plain.http_url]) == 0
        assert words in capsys.readouterr().out, command
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert {row["who"] for row in rows} == {"client", "request"}
