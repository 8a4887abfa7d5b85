"""`triton-sam container`: it heals, takes no orders over the network, and reloads from inside."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from support.conditions import PATIENCE, eventually, standstill, wait_until
from support.nginx_proxy import free_ports
from support.processes import all_gone, segments, segments_of
from support.tiny_models import SCALE_CONFIG, WAITING_MODEL, scale_graph, write_model

from triton_sam.cli import main
from triton_sam.local_server.installation import prepare_triton
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

ONES = np.ones((1, 2), np.float32)


class Container:
    """The command of a container, as a process of this machine, with the Triton of the wheel."""

    def __init__(self, repository: Path, folder: Path, **variables: str) -> None:
        triton = prepare_triton(folder, None, None)
        ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
        self.repository = repository
        self.urls = [f"http://127.0.0.1:{ports['http']}", f"grpc://127.0.0.1:{ports['grpc']}"]
        options = [f"--{name}-{what}" for name in ports for what in (f"port={ports[name]}", "address=127.0.0.1")]
        options.append(f"--backend-directory={triton.backend_directory}")
        environment = {**triton.environment, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment["PATH"] = f"{triton.executable.parent}:{environment['PATH']}"
        command = [sys.executable, "-m", "triton_sam", "container", "--model-repository", str(repository)]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--", *options, "--allow-gpu-metrics=false"], env=environment, stdout=log, stderr=log
            )

    @property
    def triton(self) -> psutil.Process:
        """The tritonserver process."""
        return next(child for child in psutil.Process(self.process.pid).children() if child.name() == "tritonserver")

    def wait_for_another(self, old: psutil.Process) -> None:
        """Wait until another tritonserver runs."""
        eventually(lambda: self.triton.pid != old.pid)

    def answer(self) -> float:
        """Return what the model `scale` makes of 1. Wait until it answers."""
        return float(eventually(lambda: self.ask(self.urls[0]))[0, 0])

    @staticmethod
    def ask(url: str, model: str = "scale") -> np.ndarray:
        transport = Transport(parse_url(url), retries=0)
        try:
            return transport.infer(model, {"x": ONES}, ["y"])["y"]
        finally:
            transport.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path):
    """Yield a function that starts a container with a model `scale`, which doubles its input."""
    started = []

    def build(damage: str = "", **variables: str) -> Container:
        folder = tmp_path / f"run{len(started)}"
        folder.mkdir()
        write_model(tmp_path / "models", "scale", scale_graph(2), SCALE_CONFIG)
        if damage:
            (tmp_path / "models" / "scale" / "1" / "model.onnx").write_text(damage)
        container = Container(tmp_path / "models", folder, **variables)
        started.append(container)
        return container

    yield build
    for container in started:
        if container.process.poll() is None:
            container.stop()


def load(url: str) -> int:
    """Ask a server to load a model, and return the HTTP status."""
    return httpx.post(f"{url}/v2/repository/models/scale/load", json={}, timeout=60).status_code


def test_a_container_takes_no_orders_but_reloads_from_inside(start, capsys):
    container = start()
    assert container.answer() == 2
    assert load(container.urls[0]) == 503
    log = container.log.read_text()
    assert "--http-restricted-api=shared-memory,trace,logging:triton-sam=***" in log
    assert not re.search("triton-sam=[0-9a-f]", log)
    for url in container.urls:
        transport = Transport(parse_url(url))
        assert transport.ready_models() == {"scale": "1"}
        transport.close()
    write_model(container.repository, "scale", scale_graph(5), SCALE_CONFIG, "2/model.onnx")
    write_model(container.repository, "other", scale_graph(3), SCALE_CONFIG)
    assert main(["reload", "scale", "other", "--url", container.urls[1], "-q"]) == 0
    assert capsys.readouterr().out == "scale version 2\nother version 1\n"
    assert container.answer() == 5
    # A model that does not pass the check stops nothing.
    pid = container.triton.pid
    (container.repository / "scale" / "SHA256SUMS").write_text(f"{'0' * 64}  2/model.onnx\n")
    assert main(["reload", "scale", "--url", container.urls[0], "-q"]) == 1
    assert "2/model.onnx is not the file that was installed" in capsys.readouterr().err
    assert container.triton.pid == pid


def test_a_container_heals_and_ends_in_time(start):
    container = start()
    assert container.answer() == 2
    first = container.triton
    prefix = segments_of(first.pid)
    first.children()[0].kill()
    container.wait_for_another(first)
    assert container.answer() == 2
    second = container.triton
    second.kill()
    container.wait_for_another(second)
    assert container.answer() == 2
    log = container.log.read_text()
    assert "triton-sam: the process of model scale is gone, perhaps for lack of memory: Triton starts again" in log
    assert "triton-sam: tritonserver ended (exit status 137): Triton starts again after 1 s (restart 2)" in log
    eventually(lambda: psutil.Process(container.process.pid).children() == [container.triton])  # and no zombie
    processes = [container.triton, *container.triton.children(recursive=True)]
    with standstill() as lost:
        began = time.monotonic()
        assert container.stop() == 0
    assert time.monotonic() - began < 30 + lost[0]
    assert all_gone(processes)
    assert not any(name.startswith(prefix) for name in segments())


@pytest.mark.parametrize("protocol", [0, 1], ids=["http", "grpc"])
def test_a_container_answers_running_requests_before_it_ends(start, tmp_path, protocol):
    begun, wanted = tmp_path / "begun", tmp_path / "wanted"
    program = WAITING_MODEL.format(folder=str(tmp_path)).encode()
    write_model(tmp_path / "models", "waiting", program, SCALE_CONFIG.replace("onnxruntime", "python"), "1/model.py")
    container = start()
    assert container.answer() == 2
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(container.ask, container.urls[protocol], "waiting")
        wait_until(begun.exists)
        container.process.send_signal(signal.SIGTERM)
        sign = ("HTTP service connections", "live models and")[protocol]
        wait_until(lambda: sign in container.log.read_text())
        wanted.touch()
        np.testing.assert_array_equal(answer.result(60), ONES)
    assert container.process.wait(PATIENCE) == 0


def test_a_container_that_cannot_start_ends_with_the_status_of_tritonserver(start):
    container = start(TRITON_SAM_VERIFY="0", damage="yes")
    # 134: once, Triton 2.51 aborted while it unloaded its models (see its issue 8882)
    assert container.process.wait(PATIENCE) in (1, 134)
    assert "(restart 1)" not in container.log.read_text()
