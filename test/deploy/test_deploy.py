"""The files of a deployment pass their checkers, and each checker finds a fault."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from support import helm

from triton_sam._common.bundle import bundled, checkout
from triton_sam.annotate.folder import Part
from triton_sam.cli import build_parser
from triton_sam.download import catalogue as checkpoints

ROOT = checkout()


def lint_deploy() -> ModuleType:
    """Return tools/maintain/lint_deploy.py as a module."""
    spec = importlib.util.spec_from_file_location("lint_deploy", ROOT / "tools" / "maintain" / "lint_deploy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lint():
    return lint_deploy()


@pytest.mark.parametrize("check", [check.__name__ for check in lint_deploy().CHECKS])
def test_every_file_passes_its_checker(lint, check):
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


def test_faults_in_the_compose_file_are_found(lint, tmp_path, monkeypatch):
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


def test_every_promised_profile_is_there():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text().replace("${GPU_REPLICAS:-1}", "1"))["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    assert profiles == {"cpu", "second", "monitoring", "service", "tls", "export"}
    assert "profiles" not in services["triton"]  # `docker compose up` on a GPU host
    assert services["triton"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert "deploy" not in services["triton-cpu"]
    assert services["service"]["command"].split()[0] == "service"
    assert "TRITON_SAM_TOKEN" in services["service"]["environment"]
    assert {"TRITON_SAM_MIRROR", "HF_ENDPOINT", "HF_TOKEN"} <= set(services["export"]["environment"])


def test_faults_in_manifests_are_found(lint):
    folder = ROOT / "deploy/kubernetes/annotate"
    (job,) = helm.load(folder / "indexed-job.yaml")
    job["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert any("readinesProbe" in fault for fault in lint.manifest_errors(job))
    (cluster,) = helm.load(folder / "ray-job.yaml")
    cluster["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resource"] = {}
    assert any("resource" in fault for fault in lint.manifest_errors(cluster))
    scaled = {"kind": "ScaledObject", "metadata": {"name": "x"}, "spec": {"scaleTargetRef": {"name": "x"}}}
    assert any("triggers" in fault for fault in lint.manifest_errors(scaled))


def test_other_faults_between_files_are_found(lint, tmp_path):
    for name in ("docker-compose.yml", ".env.example", "Dockerfile", ".dockerignore", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("deploy", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert list(lint.releases(tmp_path)) == []
    compose = tmp_path / "docker-compose.yml"
    compose.write_text(compose.read_text().replace("26.08-py3", "25.01-py3", 1))
    assert [fault.split()[0] for fault in lint.releases(tmp_path)] == ["docker-compose.yml"]


def test_the_export_image_downloads_into_its_volume():
    stage = (ROOT / "Dockerfile").read_text().partition(" AS export")[2].partition("\nFROM ")[0]
    workdir = Path(re.findall(r"(?m)^WORKDIR (.*)$", stage)[-1])
    volumes = json.loads(re.findall(r"(?m)^VOLUME (.*)$", stage)[-1])
    assert str(workdir / checkpoints.DIRECTORY) in volumes


# --- scripts of the images


def test_the_export_image_fills_a_volume_once(tmp_path):
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
    assert (models / "sam2_preprocess" / "config.pbtxt").is_file()
    (models / "sam2" / "config.pbtxt").write_text("changed by hand")
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert (models / "sam2" / "config.pbtxt").read_text() == "changed by hand"
    assert subprocess.run([*command[:2], "sam2"], capture_output=True, timeout=60, check=False).returncode == 2


def test_a_setup_that_was_replaced_is_done_again(tmp_path):
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


def test_an_interrupted_copy_of_the_seed_is_made_again(tmp_path):
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


# --- the jobs of Kubernetes for `triton-sam annotate` ----------------------------------------------------------------


FOLDER = bundled("deploy/kubernetes/annotate")


def command_of(name: str) -> list[str]:
    """Return the arguments of the command that a job runs."""
    (job,) = helm.load(FOLDER / name)
    if job["kind"] == "RayJob":
        return shlex.split(job["spec"]["entrypoint"])[1:]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    return [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in words][1:]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_command_understands_its_options(path):
    args = build_parser().parse_args(command_of(path.name))
    assert (args.source, args.task, args.out) == ("/data/boxes.json", "boxes", Path("/data/masks"))
    assert args.images == "/data/images"


def test_the_parts_are_as_many_as_the_pods():
    (job,) = helm.load(FOLDER / "indexed-job.yaml")
    part = build_parser().parse_args(command_of("indexed-job.yaml")).part
    assert part == Part(3, job["spec"]["completions"])
    assert job["spec"]["completionMode"] == "Indexed"


def test_the_jobs_of_one_run_differ_in_nothing_that_decides_about_the_masks():
    def deciding(name: str) -> list[str]:
        return [word for word in command_of(name) if not word.startswith(("--part", "--threads"))]

    assert deciding("indexed-job.yaml") == deciding("finish-job.yaml")
    pods = [helm.load(FOLDER / name)[0]["spec"]["template"]["spec"] for name in ("indexed-job.yaml", "finish-job.yaml")]
    assert pods[0]["volumes"] == pods[1]["volumes"]
    assert pods[0]["containers"][0]["image"] == pods[1]["containers"][0]["image"]
