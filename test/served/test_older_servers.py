"""A server without a session model, metrics and statistics."""

import json

import pytest

from triton_sam.cli import main


@pytest.fixture(scope="module")
def plain(toy_repository):
    """Yield a Triton with an encoder and a decoder, but without metrics and statistics."""
    from triton_sam.local_server import LocalServer

    refused = "statistics,trace,logging,shared-memory:nobody=knows"
    options = ["--allow-metrics=false", f"--http-restricted-api={refused}", f"--grpc-restricted-protocol={refused}"]
    with LocalServer(toy_repository, models=["sam2_encoder", "sam2_decoder"], extra_args=options) as running:
        yield running


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
