"""Servers without a session model, metrics and statistics."""

import asyncio

import numpy as np
import pytest

from triton_sam import ModelNotReadyError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.benchmark.run import begin, measure
from triton_sam.benchmark.settings import BenchmarkSettings
from triton_sam.benchmark.target import Target
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


def test_everything_is_found_by_clicks_without_a_session_model(plain, images):
    low = {"points_per_side": 3, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.5}
    with SAM2TritonClient(plain.grpc_url) as client:
        assert client.everything(images / "shapes.jpg", **low)


def test_a_client_that_requires_the_session_model_reports_its_absence(plain, images):
    with (
        SAM2TritonClient(plain.http_url, embeddings="server") as client,
        pytest.raises(ModelNotReadyError, match="no model 'sam2' ready"),
    ):
        client.set_image(images / "shapes.jpg")


def test_commands_work_without_metrics(plain, images, capsys):
    url = plain.http_url
    assert main(["models", "--url", url]) == 0
    assert "sam2_decoder" in capsys.readouterr().out
    assert main(["doctor", "--url", url]) == 0
    assert "model sam2_encoder" in capsys.readouterr().out
    assert main(["predict", str(images / "shapes.jpg"), "--point", "200,180", "--url", url]) == 0
    assert "object 0: score " in capsys.readouterr().out


def test_the_benchmark_measures_what_there_is(plain, images):
    target = Target("sam2", None, {"grpc": plain.grpc_url}, images / "coffee.jpg")
    settings = BenchmarkSettings(0.1, ("latency",), least_rounds=1)
    found = begin(target, settings, "")
    measure(target, settings, found, quiet=True)
    target.close()
    assert {row.who for row in found.rows} == {"client", "request"}
    assert any("no session model" in note for note in found.notes)
