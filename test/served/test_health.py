"""`triton-sam health` finds a killed process that Triton itself reports as ready."""

from __future__ import annotations

import urllib.request

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.cli import main

psutil = pytest.importorskip("psutil")
local_server = pytest.importorskip("triton_sam.local_server")
pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_health_asks_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    with local_server.LocalServer(bundled("model_repository"), models=["sam2"], heal=False) as server:
        command = ["health", "--url", server.http_url, "--timeout", "60"]
        assert main(command) == 0
        assert capsys.readouterr().err == "model pair sam2: works\nsession model sam2: works\n"
        assert main([*command, "-q"]) == 0
        assert capsys.readouterr() == ("", "")
        stubs = {stub.cmdline()[1].split("/")[-3]: stub for stub in psutil.Process(server.pid).children()}
        stubs["sam2_encoder"].kill()
        with urllib.request.urlopen(f"{server.http_url}/v2/health/ready", timeout=60) as answer:
            assert answer.status == 200
        assert main(command) == 1
        said = capsys.readouterr()
        assert said.out.startswith("model pair sam2: sam2_encoder cannot answer: its process on ")
        assert said.out.count("\n") == 1
        assert said.err == "session model sam2: works\n"  # it has the image in its cache
        stubs["sam2"].kill()
        assert main(command) == 1
        assert "session model sam2: sam2 cannot answer" in capsys.readouterr().out
    assert main(command) == 1
    assert "is not ready, or nothing answers there" in capsys.readouterr().err
