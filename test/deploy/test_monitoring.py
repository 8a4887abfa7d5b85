"""The metrics that dashboards, alerts and scaling query are metrics that a live server reports."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.nginx_proxy import free_ports

from triton_sam._common.bundle import bundled, checkout

yaml = pytest.importorskip("yaml")
ROOT = checkout()

METRIC = re.compile(r"\b((?:nv|triton_sam)_[a-z0-9_]+|triton_sam:[a-z0-9_:]+)")


# A server reports these metrics only with a GPU, so their names are looked up in its program.
NOT_ON_THIS_SERVER = {
    *("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"),
}


@pytest.fixture(scope="module")
def monitored() -> Iterator:
    """Yield a local Triton, which has the metrics options of a container, after one click and one failure."""
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    from triton_sam import SAM2TritonClient

    with local_server.LocalServer(
        bundled("model_repository"), models=["sam2"], http_port=0, grpc_port=0, metrics_port=0
    ) as server:
        with SAM2TritonClient(server.http_url, timeout=120) as client:
            client.set_image(bundled("test/images/shapes.jpg"))
            client.predict([[200, 180]], [1])
        yield server


def metrics(server) -> set[str]:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line and not line.startswith("#")}


def queries() -> dict[str, str]:
    """Return every query of the dashboards, rules and the autoscaler, by its place."""
    dashboard = json.loads((ROOT / "deploy/monitoring/grafana/dashboards/triton-sam.json").read_text())
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    for variable in dashboard["templating"]["list"]:
        found[f"variable {variable['name']}"] = variable["definition"]
    for group in yaml.safe_load((ROOT / "deploy/monitoring/rules.yml").read_text())["groups"]:
        found.update({f"rule {rule.get('record') or rule['alert']}": rule["expr"] for rule in group["rules"]})
    scaled = (ROOT / "deploy/kubernetes/overlays/autoscaled/scaled-object.yaml").read_text()
    for trigger in yaml.safe_load(scaled)["spec"]["triggers"]:
        found["autoscaler"] = trigger["metadata"]["query"]
    return found


def test_every_query_names_metrics_that_the_server_reports(monitored) -> None:
    known = metrics(monitored) | NOT_ON_THIS_SERVER
    rules = yaml.safe_load((ROOT / "deploy/monitoring/rules.yml").read_text())["groups"]
    known |= {rule["record"] for group in rules for rule in group["rules"] if "record" in rule}
    queried = {place: set(METRIC.findall(query)) for place, query in queries().items()}
    assert {place for place, names in queried.items() if not names} <= {"rule TritonDown"}
    assert {place: names - known for place, names in queried.items() if names - known} == {}
    assert len(queried) > 30


def test_an_image_that_the_server_lost_is_no_failure(monitored) -> None:
    """The alert TritonFails counts failures of session models, so their own answers must not be failures."""
    from tritonclient.http import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    client = InferenceServerClient(monitored.http_url.removeprefix("http://"))
    image_id, coords, labels = (
        InferInput("image_id", [1], "BYTES"),
        *(InferInput(name, shape, "FP32") for name, shape in (("point_coords", [1, 1, 2]), ("point_labels", [1, 1]))),
    )
    image_id.set_data_from_numpy(np.array([b"0" * 64], dtype=object))
    coords.set_data_from_numpy(np.zeros((1, 1, 2), np.float32))
    labels.set_data_from_numpy(np.ones((1, 1), np.float32))
    with pytest.raises(InferenceServerException, match="UNKNOWN_IMAGE_ID"):
        client.infer("sam2", [image_id, coords, labels])
    client.close()
    with urllib.request.urlopen(monitored.metrics_url, timeout=60) as answer:
        failures = re.findall(
            r'nv_inference_request_failure\{model="sam2",reason="(\w+)".*\} (\d+)', answer.read().decode()
        )
    assert set(dict(failures).values()) <= {"0"}


def test_a_server_whose_models_work_is_healthy(monitored) -> None:
    port = monitored.http_url.rpartition(":")[2]
    for options in ([], ["--live"]):
        command = [sys.executable, ROOT / "scripts" / "model_health.py", "127.0.0.1", port, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_metrics_of_gpus_are_those_of_triton() -> None:
    """A server without a GPU does not report them, but its program contains their names."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None:
        pytest.skip("no nvidia-pytriton")
    (library,) = (Path(spec.origin).parent.parent / "nvidia_pytriton.libs").glob("libtritonserver*")
    content = library.read_bytes()
    # The compiler cuts texts of more than 16 bytes into pieces.
    assert [name for name in NOT_ON_THIS_SERVER if name[:16].encode() not in content] == []


PROMETHEUS = shutil.which("prometheus")


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus program (Debian: apt install prometheus)")
def test_prometheus_scrapes_the_server_with_our_configuration(monitored, tmp_path: Path) -> None:
    """Only the discovery differs, because DNS names of containers exist in the compose network alone."""
    described = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yml").read_text())
    (job,) = described["scrape_configs"]
    del job["dns_sd_configs"]
    target = monitored.metrics_url.removeprefix("http://").removesuffix("/metrics")
    job["static_configs"] = [{"targets": [target]}]
    described["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(described))
    shutil.copy(ROOT / "deploy/monitoring/rules.yml", tmp_path)
    (port,) = free_ports(1)
    command = [
        PROMETHEUS,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def ask(query: str) -> list:
            url = f"http://127.0.0.1:{port}/api/v1/{query}"
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.load(answer)["data"]
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                return []

        def wait_for(query: str, arrived) -> object:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                found = ask(query)
                if found and arrived(found):
                    return found
                time.sleep(0.5)
            raise AssertionError(f"{query}: {ask(query)}")

        up = wait_for("query?query=up%7Bjob%3D%22triton%22%7D", lambda data: data["result"])
        wait_for("query?query=nv_inference_request_success", lambda data: len(data["result"]) >= 3)
        wait_for(
            "query?query=triton_sam_encodes_total",
            lambda data: data["result"][0]["value"][1] == "1" if data["result"] else False,
        )
        assert up["result"][0]["metric"]["instance"] == target
        rules = wait_for(
            "rules", lambda data: all(rule["health"] == "ok" for group in data["groups"] for rule in group["rules"])
        )
        assert sum(len(group["rules"]) for group in rules["groups"]) == 12
    finally:
        process.terminate()
        process.wait(30)
