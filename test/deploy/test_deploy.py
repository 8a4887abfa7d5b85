"""The files of a deployment pass their checkers, and each checker finds a fault."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from triton_sam._common.bundle import checkout
from triton_sam.cli import build_parser
from triton_sam.download import catalogue as checkpoints

yaml = pytest.importorskip("yaml")
pytest.importorskip("jsonschema")
from support import helm, manifests  # noqa: E402

ROOT = checkout()
AUTOSCALED = ROOT / "deploy/kubernetes/overlays/autoscaled"
DEPLOY_PAGE = ROOT / "docs/how-to/deploy.md"
KSERVE = ROOT / "deploy/kubernetes/kserve"


def lint_deploy() -> ModuleType:
    """Return scripts/lint_deploy.py as a module."""
    spec = importlib.util.spec_from_file_location("lint_deploy", ROOT / "scripts" / "lint_deploy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    return lint_deploy()


@pytest.mark.parametrize("check", [check.__name__ for check in lint_deploy().CHECKS])
def test_every_file_passes_its_checker(lint: ModuleType, check: str) -> None:
    try:
        assert list(getattr(lint, check)()) == []
    except lint.SkippedError as reason:
        pytest.skip(str(reason))


# --- each checker finds a fault


FAULTS = [
    ("restart: unless-stopped", "restarts: unless-stopped", "restarts"),
    ("name: triton-sam", 'version: "3"\nname: triton-sam', "obsolete"),
    ("${BIND_ADDRESS:-127.0.0.1}:${HTTP_PORT", "${HTTP_PORT", "open to everybody"),
    ("${GRAFANA_PORT:-3000}:3000", "${PROMETHEUS_PORT:-9090}:3000", "profile monitoring: two services use"),
    ("target: service", "target: nowhere", "no stage nowhere"),
    ("monitoring/rules.yml", "monitoring/rulez.yml", "does not exist"),
    ("SHM_SIZE:-1gb", "SHM_SIZE:-2gb", "SHM_SIZE"),
    ("${NGINX_IMAGE:-nginx:1.30-alpine}", "nginx", "no tag"),
    ("PROMETHEUS_IMAGE:-prom/prometheus:", "PROMETHEUS_IMAGE:-prom/prometheus:0", "PROMETHEUS_IMAGE is"),
    ("${UID:-1000}", "${UID:-0}", "UID is '0' by default"),
]
"""Words of the compose file, what takes their place, and words of the fault."""


def test_faults_in_the_compose_file_are_found(
    lint: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker-compose.yml", ".env.example", "Dockerfile"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("deploy", "model_repository"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(lint, "compose_program", lambda profiles: [])
    assert list(lint.compose(tmp_path)) == []
    text = (tmp_path / "docker-compose.yml").read_text()
    for old, new, _ in FAULTS:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "docker-compose.yml").write_text(text)
    found = list(lint.compose(tmp_path))
    assert [words for _, _, words in FAULTS if not any(words in fault for fault in found)] == []


def test_every_promised_profile_is_there() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text().replace("${GPU_REPLICAS:-1}", "1"))["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    assert profiles == {"cpu", "second", "monitoring", "service", "tls", "export"}
    assert "profiles" not in services["triton"]  # `docker compose up` on a GPU host
    assert services["triton"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert "deploy" not in services["triton-cpu"]
    assert services["service"]["command"].split()[0] == "service"
    assert "TRITON_SAM_TOKEN" in services["service"]["environment"]
    assert {"TRITON_SAM_MIRROR", "HF_ENDPOINT", "HF_TOKEN"} <= set(services["export"]["environment"])


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


def test_other_faults_between_files_are_found(lint: ModuleType, tmp_path: Path) -> None:
    for name in ("docker-compose.yml", ".env.example", "Dockerfile", ".dockerignore", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("deploy", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert list(lint.releases(tmp_path)) == list(lint.prometheus_rule(tmp_path)) == []
    compose, rules = tmp_path / "docker-compose.yml", tmp_path / "deploy/monitoring/rules.yml"
    compose.write_text(compose.read_text().replace("26.08-py3", "25.01-py3", 1))
    rules.write_text(rules.read_text().replace("for: 5m", "for: 6m", 1))
    assert [fault.split()[0] for fault in lint.releases(tmp_path)] == ["docker-compose.yml"]
    assert ["--write" in fault for fault in lint.prometheus_rule(tmp_path)] == [True]


def test_the_rendered_manifests_have_the_documented_parts() -> None:
    single = {
        one["kind"] + "/" + one["metadata"]["name"]: one
        for one in manifests.render(ROOT / "deploy/kubernetes/overlays/single-gpu")
    }
    pod = single["Deployment/triton-sam"]["spec"]["template"]["spec"]
    (triton,), (setup, config) = pod["containers"], pod["initContainers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(triton)
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert triton["image"] == "registry.example.org/triton-sam:26.08-py3"
    assert setup["args"] == ["sam2", "base_plus"]
    # The models of the export get their settings, by arguments that the command takes.
    assert config["command"] == ["triton-sam", "config"]
    build_parser().parse_args(["config", *config["args"]])
    claims = {volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    assert claims["engines"] == "triton-sam-engines"
    assert {f"PersistentVolumeClaim/{name}" for name in claims.values() if name} <= set(single)
    assert [one["key"] for one in pod["tolerations"]] == ["nvidia.com/gpu"]
    assert single["Service/triton-sam-pods"]["spec"]["clusterIP"] == "None"
    assert {"PodDisruptionBudget/triton-sam", "NetworkPolicy/triton-sam"} <= set(single)
    autoscaled = {one["kind"]: one for one in manifests.render(ROOT / "deploy/kubernetes/overlays/autoscaled")}
    assert "replicas" not in autoscaled["Deployment"]["spec"]
    volumes = [one for one in manifests.render(AUTOSCALED) if one["kind"] == "PersistentVolumeClaim"]
    assert [one["spec"]["accessModes"] for one in volumes] == [["ReadWriteMany"]] * 2
    assert {"ScaledObject", "ServiceMonitor", "PrometheusRule"} <= set(autoscaled)
    assert {autoscaled[kind]["metadata"]["labels"]["release"] for kind in ("ServiceMonitor", "PrometheusRule")} == {
        "kube-prometheus-stack"
    }


def policies() -> list[dict]:
    own = [one for one in manifests.render(AUTOSCALED) if one["kind"] == "NetworkPolicy"]
    return [*own, *manifests.load(KSERVE / "network-policy.yaml")]


def test_a_client_needs_a_label_that_an_administrator_sets() -> None:
    """A pod can label itself, but not its namespace."""
    assert len(policies()) == 2
    for policy in policies():
        clients, _ = policy["spec"]["ingress"]
        (source,) = clients["from"]
        assert source["namespaceSelector"]["matchLabels"] == {"triton-sam/clients": "true"}
        assert source["podSelector"]["matchLabels"] == {"triton-sam/client": "true"}


def test_kserve_publishes_nothing_outside_of_the_cluster() -> None:
    (service,) = manifests.load(KSERVE / "inference-service.yaml")
    assert service["metadata"]["labels"]["networking.kserve.io/visibility"] == "cluster-local"
    selected = policies()[1]["spec"]["podSelector"]["matchLabels"]
    assert selected == {"serving.kserve.io/inferenceservice": service["metadata"]["name"]}
    (container,) = service["spec"]["predictor"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [8001, 8000, 8002]
    # KEDA alone decides on the number of pods, by the same query as without KServe.
    assert service["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "external"
    assert not {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget"} & set(service["spec"]["predictor"])
    (scaled,) = manifests.load(KSERVE / "scaled-object.yaml")
    (own,) = manifests.load(AUTOSCALED / "scaled-object.yaml")
    assert scaled["spec"].pop("scaleTargetRef") == {"name": f"{service['metadata']['name']}-predictor"}
    own["spec"].pop("scaleTargetRef")
    assert scaled["spec"] == own["spec"]
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in service["spec"]["predictor"]["volumes"][:2]}
    assert claims == {"triton-sam-models", "triton-sam-engines"}


def test_the_patch_of_the_documents_fits_the_deployment(lint: ModuleType, tmp_path: Path) -> None:
    (patch,) = re.findall(r"```yaml\n(patches:.*?)```", DEPLOY_PAGE.read_text(), re.DOTALL)
    overlay = tmp_path / "overlays" / "own"
    shutil.copytree(ROOT / "deploy/kubernetes", tmp_path, dirs_exist_ok=True)
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(f"resources: [../single-gpu]\n{patch}")
    (deployment,) = [one for one in manifests.render(overlay) if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert (pod["runtimeClassName"], list(pod["nodeSelector"])) == ("nvidia", ["nvidia.com/gpu.product"])
    try:
        assert list(lint.manifest_errors(deployment)) == []
    except lint.SkippedError as reason:
        pytest.skip(str(reason))


def test_our_rendering_equals_that_of_kustomize() -> None:
    try:
        kubectl = helm.program("kubectl")
    except helm.MissingProgramError as reason:
        pytest.skip(str(reason))

    def key(manifest: dict) -> tuple[str, str]:
        return manifest["kind"], manifest["metadata"]["name"]

    for folder in sorted((ROOT / "deploy/kubernetes/overlays").iterdir()):
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=120, check=True)
        theirs = sorted((one for one in yaml.safe_load_all(done.stdout) if one), key=key)
        assert sorted(manifests.render(folder), key=key) == theirs, folder.name


def test_the_export_image_downloads_into_its_volume() -> None:
    stage = (ROOT / "Dockerfile").read_text().partition(" AS export")[2].partition("\nFROM ")[0]
    workdir = Path(re.findall(r"(?m)^WORKDIR (.*)$", stage)[-1])
    volumes = json.loads(re.findall(r"(?m)^VOLUME (.*)$", stage)[-1])
    assert str(workdir / checkpoints.DIRECTORY) in volumes


# --- scripts of the images


def test_the_export_image_fills_a_volume_once(tmp_path: Path) -> None:
    """A stand-in replaces `triton-sam`, whose setup has its own tests."""
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
    shutil.rmtree(exported.parent)  # as docs/how-to/official-weights.md goes back to the demo model
    assert [calls(), calls()] == [3, 3]
    assert exported.is_file()
    assert (models / "sam2_encoder" / "1" / "model.onnx").is_file()
    assert (models / "sam3" / "config.pbtxt").is_file()
    (models / "sam2" / "config.pbtxt").write_text("changed by hand")
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert (models / "sam2" / "config.pbtxt").read_text() == "changed by hand"
    assert subprocess.run([*command[:2], "sam2"], capture_output=True, timeout=60, check=False).returncode == 2


def test_a_setup_that_was_replaced_is_done_again(tmp_path: Path) -> None:
    """Two sizes have the same places. After base_plus and large, the volume holds large, so base_plus is not there."""
    program, models = tmp_path / "bin" / "triton-sam", tmp_path / "models"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nfolder={models}/${{2}}_encoder/2\nmkdir -p $folder && echo "$3" > $folder/model.onnx\n'
    )
    program.chmod(0o755)
    models.mkdir()
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "TRITON_SAM_REPOSITORY": str(models)}

    def set_up(*arguments: str) -> str:
        command = ["bash", str(ROOT / "scripts" / "container_setup.sh"), *arguments]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60, text=True)
        said = "already" if "already" in done.stdout else "new"
        return f"{said} {(models / f'{arguments[0]}_encoder' / '2' / 'model.onnx').read_text().strip()}"

    assert set_up("sam2", "base_plus") == "new base_plus"
    assert set_up("sam1", "vit_b") == "new vit_b"
    assert set_up("sam2", "large") == "new large"
    assert set_up("sam2", "large") == "already large"
    assert set_up("sam2", "base_plus") == "new base_plus"
    assert set_up("sam2", "base_plus") == "already base_plus"
    assert set_up("sam1", "vit_b") == "already vit_b"
    assert len((models / ".triton-sam-setup").read_text().splitlines()) == 2


def test_an_interrupted_copy_of_the_seed_is_made_again(tmp_path: Path) -> None:
    """The copy of `b` fails in its middle, as when a pod is stopped. `c` has weights of the user alone."""
    seed, models, programs = tmp_path / "seed", tmp_path / "models", tmp_path / "bin"
    for name in "abc":
        (seed / name / "1").mkdir(parents=True)
        (seed / name / "config.pbtxt").write_text(name)
        (seed / name / "1" / "model.onnx").write_text("weights")
    (models / "c" / "2").mkdir(parents=True)
    (models / "c" / "2" / "model.onnx").write_text("of the user")
    programs.mkdir()
    (programs / "triton-sam").write_text("#!/bin/sh\n")
    (programs / "cp").write_text(
        f'#!/bin/sh\ncase "$*" in */b*) mkdir {models}/.seed-b; echo b > {models}/.seed-b/config.pbtxt; exit 1;; esac\n'
        'exec /bin/cp "$@"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "TRITON_SAM_REPOSITORY": str(models),
        "TRITON_SAM_SEED": str(seed),
    }
    command = ["bash", str(ROOT / "scripts" / "container_setup.sh"), "sam2", "large"]

    def set_up() -> int:
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode

    assert set_up() == 1
    assert not (models / "b").exists()
    (programs / "cp").unlink()
    assert set_up() == 0
    for name in "abc":
        assert (models / name / "config.pbtxt").read_text() == name
        assert (models / name / "1" / "model.onnx").read_text() == "weights"
    assert (models / "c" / "2" / "model.onnx").read_text() == "of the user"
    assert not list(models.glob(".seed-*"))
