"""No container runs as root, writes to its root file system, or may gain privileges.

The tests read the Dockerfile, the compose file and the manifests.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_sam._common.bundle import checkout
from triton_sam.cli import main
from triton_sam.local_server.defaults import CUDA_POOL, METRICS

yaml = pytest.importorskip("yaml")
from support import manifests  # noqa: E402

ROOT = checkout()
HEALTH = "/opt/triton-sam/scripts/model_health.py"
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def test_every_image_runs_as_a_user_other_than_root() -> None:
    stages = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))[1:]
    assert [stage.split()[2] for stage in stages] == ["export", "service", "cpu", "triton"]
    for stage in stages:
        assert re.findall(r"(?m)^USER (\S+)", stage)[-1] == "1000:1000"


@pytest.mark.parametrize("name", SERVICES)
def test_services_of_the_compose_file(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    assert not {"network_mode", "pid", "ipc"} & set(service)
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))
    if "build" not in service and name not in ("prometheus", "grafana"):  # these two images name a user themselves
        assert not str(service["user"]).startswith(("0", "root"))


def test_every_service_has_volumes_for_the_files_that_it_writes() -> None:
    """The root file system is read-only, so exported models, TensorRT's engines and databases need volumes."""
    for name, service in SERVICES.items():
        # The local server starts programs that it puts there.
        assert service["tmpfs"] == (["/tmp:exec"] if name == "triton-cpu" else ["/tmp"])
    written = {
        "export": ["/models", "/checkpoints"],
        "service": ["/uploads"],
        "prometheus": ["/prometheus"],
        "grafana": ["/var/lib/grafana"],
    }
    for name, places in {**written, "triton": ["/var/cache/triton-sam"]}.items():
        mounts = SERVICES[name]["volumes"]
        assert all(any(mount.endswith(f":{place}") for mount in mounts) for place in places), name
    assert SERVICES["service"]["environment"]["TMPDIR"] == "/uploads"
    # Triton itself only reads models.
    assert any(mount.endswith(":/models:ro") for mount in SERVICES["triton"]["volumes"])


def pods() -> Iterator[tuple[str, dict]]:
    """Yield every pod that the manifests describe, with the name of its overlay."""
    for overlay in ("single-gpu", "autoscaled", "openshift"):
        for manifest in manifests.render(ROOT / "deploy/kubernetes/overlays" / overlay):
            if manifest["kind"] == "Deployment":
                yield overlay, manifest["spec"]["template"]["spec"]
    (kserve,) = manifests.load(ROOT / "deploy/kubernetes/kserve/inference-service.yaml")
    yield "kserve", kserve["spec"]["predictor"]


PODS = list(pods())


@pytest.mark.parametrize(("place", "pod"), PODS, ids=[place for place, _ in PODS])
def test_pods(place: str, pod: dict) -> None:
    shared = pod.get("securityContext", {})
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = {**shared, **container["securityContext"]}
        assert own["runAsNonRoot"] is True
        # OpenShift chooses the user, and refuses a pod that names one.
        assert own.get("runAsUser") == (None if place == "openshift" else 1000)
        assert not (place == "openshift" and {"runAsGroup", "fsGroup"} & set(own))
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["seccompProfile"] == {"type": "RuntimeDefault"}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert "/tmp" in mounts
        assert {mount["name"] for mount in mounts.values()} <= volumes
        if "limits" in container["resources"] and "nvidia.com/gpu" in container["resources"]["limits"]:
            assert mounts["/models"]["readOnly"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


@pytest.mark.parametrize(("place", "pod"), PODS, ids=[place for place, _ in PODS])
def test_pods_are_alive_while_every_model_works(place: str, pod: dict) -> None:
    (triton,) = pod["containers"]
    # A command would replace NVIDIA's entry point.
    assert "command" not in triton
    assert triton["args"] == ["triton-sam", "container"]
    assert triton["livenessProbe"]["exec"]["command"] == ["python3", HEALTH, "--live"]
    assert {triton[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe")} == {"/v2/health/ready"}
    # Shorter than this, and Kubernetes would end a server that starts again by itself.
    assert triton["livenessProbe"]["periodSeconds"] * triton["livenessProbe"]["failureThreshold"] >= 120


def test_options_of_triton_have_one_source() -> None:
    """`triton-sam container` sets the options that every deployment needs, so no deployment repeats them."""
    assert SERVICES["triton"]["command"] == ["triton-sam", "container"]
    assert SERVICES["triton-second"]["command"] == ["triton-sam", "container"]
    files = [ROOT / "docker-compose.yml", ROOT / "scripts" / "run_triton.sh", *(ROOT / "deploy").rglob("*.yaml")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not [option for option in (METRICS, CUDA_POOL) if option in text], path


@pytest.mark.parametrize("pod", [pod for _, pod in PODS], ids=[place for place, _ in PODS])
def test_settings_for_gpus_are_written_before_the_server_starts(
    pod: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = next(one for one in pod["initContainers"] if one["name"] == "config")
    (models,) = (mount for mount in config["volumeMounts"] if mount["mountPath"] == "/models")
    assert not models.get("readOnly")
    environment = {variable["name"]: variable["value"] for variable in config["env"]}
    assert environment["TRITON_SAM_REPOSITORY"] == "/models"
    for model in ("sam2", "sam2_encoder", "sam2_decoder"):
        shutil.copytree(ROOT / "model_repository" / model, tmp_path / model, ignore=shutil.ignore_patterns("[2-9]*"))
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", str(tmp_path))
    program, *command = [*config["command"], *config["args"]]
    assert program == "triton-sam"
    assert main(command) == 0
    assert "cudnn_conv_algo_search" in (tmp_path / "sam2_encoder" / "config.pbtxt").read_text(encoding="utf-8")
    assert "gpus: [0]" in (tmp_path / "sam2" / "config.pbtxt").read_text(encoding="utf-8")


def test_no_port_is_open_to_the_world_by_default() -> None:
    """Only nginx is open to the world, because it requires a token. Triton's address opens neither page nor Grafana."""
    variables = {
        "nginx": "${TLS_ADDRESS:-0.0.0.0}",
        "prometheus": "127.0.0.1",
        "grafana": "${GRAFANA_ADDRESS:-127.0.0.1}",
        "service": "${SERVICE_ADDRESS:-127.0.0.1}",
    }
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert port.startswith(f"{variables.get(name, '${BIND_ADDRESS:-127.0.0.1}')}:"), name


def test_nobody_logs_in_to_grafana() -> None:
    """Its image creates the user admin with the password admin."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert (environment["GF_AUTH_DISABLE_LOGIN_FORM"], environment["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")
    assert not [key for key in environment if "PASSWORD" in key]
