"""The metrics that dashboards, alerts and scaling query are metrics that a live server reports."""

import contextlib
import importlib.util
import json
import re
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from support import helm
from support.conditions import PATIENCE, eventually, wait_until
from support.nginx_proxy import free_ports
from support.programs import answers, running_program
from support.session_requests import point_inputs, text

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled, checkout
from triton_sam.errors import InferenceError
from triton_sam.local_server import LocalServer
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

PROGRAM = shutil.which("prometheus")


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus, and the target that it scrapes."""

    url: str
    target: str

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the data of a response of the API."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def query(self, expression: str, at: float | None = None) -> dict[tuple[str, ...], float]:
        """Return the values of an expression, now or at a Unix time, by their labels `model` and `kind`."""
        data = self.get("query", query=expression, **({} if at is None else {"time": at}))
        return {
            tuple(one["metric"][name] for name in ("model", "kind") if name in one["metric"]): float(one["value"][1])
            for one in data["result"]
        }

    def alerts(self) -> set[tuple[str, str]]:
        """Return the names and models of alerts whose expression is true, including pending alerts."""
        found = self.get("alerts")["alerts"]
        return {(alert["labels"]["alertname"], alert["labels"].get("model", "")) for alert in found}


@contextlib.contextmanager
def running_prometheus(metrics_url: str, folder: Path, labels: dict[str, str]) -> Iterator[Prometheus]:
    """Run Prometheus.

    Args:
        metrics_url: the metrics of the server. Only the discovery differs from the repository's configuration, because
            DNS names of containers exist only in the compose network.
        folder: for configuration, data and log.
        labels: labels that discovery in Kubernetes would add, such as namespace.
    """
    monitoring = ROOT / "deploy/monitoring"
    described = yaml.safe_load((monitoring / "prometheus.yml").read_text())
    (job,) = described["scrape_configs"]
    del job["dns_sd_configs"]
    target = metrics_url.removeprefix("http://").removesuffix("/metrics")
    job["static_configs"] = [{"targets": [target], "labels": labels}]
    described["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(described))
    shutil.copy(monitoring / "rules.yml", folder)
    (port,) = free_ports(1)
    command = [
        str(PROGRAM),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    url = f"http://127.0.0.1:{port}"
    with running_program(command, folder / "log", lambda: answers(f"{url}/-/ready")):
        yield Prometheus(url, target)


ROOT = checkout()

METRIC = re.compile(r"\b((?:nv|triton_sam)_[a-z0-9_]+|triton_sam:[a-z0-9_:]+)")


# A server reports these metrics only with a GPU, so their names are looked up in its program.
NOT_ON_THIS_SERVER = {
    *("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"),
}


@pytest.fixture(scope="module")
def monitored(service_triton):
    """Return a local Triton, which has the metrics options of a container, after one click."""
    with SAM2TritonClient(service_triton.http_url, timeout=120) as client:
        client.set_image(bundled("test/images/shapes.jpg"))
        client.predict([[200, 180]], [1])
    return service_triton


def metrics(server) -> set[str]:
    lines = httpx.get(server.metrics_url, timeout=60).text.splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line and not line.startswith("#")}


def scaler() -> dict[str, str]:
    """Return query and thresholds of the chart's ScaledObject."""
    (scaled,) = helm.by_kind("full", "ScaledObject")
    found: dict[str, str] = scaled["spec"]["triggers"][0]["metadata"]
    return found


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
    found["autoscaler"] = scaler()["query"]
    return found


@pytest.mark.slow
def test_every_query_names_metrics_that_the_server_reports(monitored):
    known = metrics(monitored) | NOT_ON_THIS_SERVER
    rules = yaml.safe_load((ROOT / "deploy/monitoring/rules.yml").read_text())["groups"]
    known |= {rule["record"] for group in rules for rule in group["rules"] if "record" in rule}
    queried = {place: set(METRIC.findall(query)) for place, query in queries().items()}
    assert {place for place, names in queried.items() if not names} <= {"rule TritonDown", "rule TritonMissing"}
    assert {place: names - known for place, names in queried.items() if names - known} == {}
    assert len(queried) > 30


def test_an_image_that_the_server_lost_is_no_failure(monitored):
    """The alert TritonFails counts failures of session models, so their own answers must not be failures."""
    before = failures(monitored)
    with (
        contextlib.closing(Transport(parse_url(monitored.http_url))) as transport,
        pytest.raises(InferenceError, match="UNKNOWN_IMAGE_ID"),
    ):
        transport.infer("sam2", {"image_id": text(b"0" * 64), **point_inputs()}, ["masks"])
    assert failures(monitored) == before


def failures(server) -> dict[str, str]:
    """Return how many requests to the session model failed, by reason."""
    metrics = httpx.get(server.metrics_url, timeout=60).text
    return dict(re.findall(r'nv_inference_request_failure\{model="sam2",reason="(\w+)".*\} (\d+)', metrics))


def test_metrics_of_gpus_are_those_of_triton():
    """A server without a GPU does not report them, but its program contains their names."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None:
        pytest.skip("no nvidia-pytriton")
    (library,) = (Path(spec.origin).parent.parent / "nvidia_pytriton.libs").glob("libtritonserver*")
    content = library.read_bytes()
    # The compiler cuts texts of more than 16 bytes into pieces.
    assert [name for name in NOT_ON_THIS_SERVER if name[:16].encode() not in content] == []


SCRAPED = 'timestamp(up{job="triton"}) and up{job="triton"} == 1'
needs_prometheus = pytest.mark.skipif(PROGRAM is None, reason="no prometheus program (Debian: apt install prometheus)")


def healthy_rules(prometheus: Prometheus) -> int:
    return sum(rule["health"] == "ok" for group in prometheus.get("rules")["groups"] for rule in group["rules"])


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Yield a local Triton with a session model that calls the decoder, and one that runs it."""
    from support.session_requests import CALLS, DECODES, two_session_models

    repository = two_session_models(tmp_path_factory.mktemp("crowded") / "models")
    with LocalServer(repository, models=[CALLS, DECODES]) as server:
        yield server


@pytest.mark.slow
@needs_prometheus
@pytest.mark.timeout(900)
def test_panels_alert_and_scaler_see_twenty_waiting_clients(crowded, tmp_path):
    """The measure is the clock of the clients. Each click has three boxes, so that it waits for more than a second.

    The session model that runs the decoder goes first, because Triton's own queues stay empty under its load.
    """
    from support.session_requests import CALLS, DECODES, click_together, upload_and_click

    scaling = scaler()
    labels = {"namespace": "vision", "service": "sam-triton-sam"}
    with running_prometheus(crowded.metrics_url, tmp_path / "prometheus", labels) as prometheus:
        wait_until(lambda: prometheus.query('up{job="triton"} == 1'))
        assert prometheus.get("targets")["activeTargets"][0]["labels"]["instance"] == prometheus.target
        wait_until(lambda: healthy_rules(prometheus) == 13)
        for model in (DECODES, CALLS):
            image_id = upload_and_click(crowded.grpc_url, model)
            wait_until(lambda model=model: (model, "image") in prometheus.query("triton_sam_request_seconds_count > 0"))
            assert ("TritonQueueIsLong", model) not in prometheus.alerts()
            if model == DECODES:
                wait_until(lambda: prometheus.query(scaling["query"]))
                assert prometheus.query(scaling["query"])[()] < 1
            began, took, seconds = time.monotonic(), [], 0.0
            while seconds < 25:  # twenty waiting clients in 25 of 60 seconds are twice the threshold, on every machine
                took += click_together(crowded.grpc_url, model, image_id, 3, 3)
                seconds = time.monotonic() - began
            # Of this moment, however late they are computed: they forget after a minute. A scrape may fail: it has 1 s.
            ended = time.time() + 2
            end = eventually(lambda ended=ended: (at := prometheus.query(SCRAPED).get((), 0.0)) > ended and at)
            assert prometheus.query(scaling["query"], end)[()] > float(scaling["threshold"])
            wait_until(lambda model=model: ("TritonQueueIsLong", model) in prometheus.alerts())
            if model == DECODES:
                assert prometheus.query("sum(rate(nv_inference_queue_duration_us[1m])) / 1e6", end)[()] < 1

            def panel(place: str, *key: str, at: float | None = end) -> float:
                expression = queries()[f"panel {place}"].replace("$instance", ".*").replace("$model", ".*")
                return prometheus.query(expression, at).get(key, float("nan"))

            # Over the last minute; a busy machine needs more than one for all clicks.
            assert panel("Requests A", model) == pytest.approx(len(took) / max(60, seconds), rel=0.35)
            assert panel("Request, mean A", model) == pytest.approx(statistics.mean(took), rel=0.35, abs=0.5)
            for letter, share in (("B", 0.5), ("A", 0.95)):
                found = panel(f"Request, median and p95 {letter}", model, "click")
                assert found == pytest.approx(float(np.quantile(took, share)), rel=0.67)
            assert 1 < panel("Queue, mean A", model) < panel("Request, mean A", model)
            wait_until(lambda model=model, panel=panel: panel("Waiting A", model, at=None) == 0)
        wait_until(lambda: {name for name, model in prometheus.alerts()} == {"TritonQueueIsLong"})
        for place, query in queries().items():
            if place.startswith("panel"):
                prometheus.query(query.replace("$instance", ".*").replace("$model", ".*"))
