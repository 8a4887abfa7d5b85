"""scripts/model_health.py, the health check of the containers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.backends import answering
from support.nginx_proxy import free_ports

from triton_sam._common.bundle import checkout

SCRIPT = checkout() / "scripts" / "model_health.py"
MODELS = [
    {"name": "sam2", "version": "1", "state": "READY"},
    {"name": "sam3", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    {"name": "sam1_encoder"},
]


def check(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    # A proxy would answer for every host.
    environment = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, str(SCRIPT), "127.0.0.1", str(port), "--timeout", "10", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("statuses", "ready", "live"),
    [
        ({}, "", ""),
        ({"/v2/models/sam2/ready": 400}, "sam2 was loaded, but does not work", "sam2 was loaded, but does not work"),
        ({"/v2/models/sam3/ready": 400}, "", ""),
        ({"/v2/health/ready": 400}, "/v2/health/ready says no", ""),
        ({"/v2/health/live": 400}, "", "/v2/health/live says no"),
        ({"/v2/repository/index": 403, "/v2/models/sam2/ready": 400}, "", ""),
    ],
)
def test_reasons(statuses: dict[str, int], ready: str, live: str) -> None:
    with answering(("127.0.0.1", 0), statuses, json.dumps(MODELS).encode()) as (port, seen):
        for options, words in ((), ready), (("--live",), live):
            done = check(port, *options)
            assert (done.returncode, done.stdout) == (int(bool(words)), "")
            assert words in done.stderr
            assert done.stderr.count("\n") == int(bool(words))
        assert "/v2/models/sam3/ready" not in seen


def test_a_server_that_does_not_answer_or_is_not_triton() -> None:
    done = check(free_ports(1)[0])
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    with answering(("127.0.0.1", 0), {}, b"<html>") as (port, _):
        done = check(port)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
