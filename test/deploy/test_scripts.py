"""The scripts that start Triton, with stand-ins for Docker and Python, and scripts that call a real server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.nginx_proxy import answering, free_ports
from support.tiny_models import write_family

from triton_sam._common.bundle import bundled, checkout

ROOT = checkout()
if ROOT is None:
    pytest.skip("scripts are in the checkout only", allow_module_level=True)

TAG = re.search(r"(?m)^ARG TRITON_TAG=(.+)$", (ROOT / "Dockerfile").read_text())[1]
MODELS = ("sam2", "sam2_encoder", "sam2_decoder", "sam2_encoder_jpeg", "sam2_preprocess")


NOTHING_THERE = "[[ $1 != image && $1 != container ]]"
"""A container program that runs, but has no images and no containers."""


def fresh_clone(folder: Path) -> Path:
    """Return a folder with the files that the scripts need, and no environment."""
    clone = folder / "clone"
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    for name in ("Dockerfile", "constraints.txt"):
        shutil.copy(ROOT / name, clone)
    return clone


class Machine:
    """A folder of programs that record their calls."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.calls = folder / "bin", folder / "calls"
        self.programs.mkdir()
        self.python = self.add("standin-python")
        self.add("podman", "exit 1")  # there may be a real one in /usr/bin

    def add(self, name: str, body: str = "") -> Path:
        program = self.programs / name
        program.write_text(f'#!/bin/bash\necho "$(basename "$0") $*" >> {self.calls}\n{body}\n')
        program.chmod(0o755)
        return program

    def run(self, script, *arguments, root=ROOT, folder=ROOT, code=0, **variables) -> subprocess.CompletedProcess[str]:
        """Run a script, which must end with a status. A variable that is None is not set."""
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHON": str(self.python), "HOME": os.environ["HOME"]}
        environment.update({name: str(value) for name, value in variables.items() if value is not None})
        environment = {name: value for name, value in environment.items() if variables.get(name, "") is not None}
        command = ["bash", str(root / "scripts" / script), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr
        return done

    def last_call(self) -> str:
        return self.calls.read_text().splitlines()[-1]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def models(tmp_path):
    """Return a repository with SAM2's weights, and with SAM1's configuration but not its weights."""
    for name in MODELS:
        shutil.copytree(bundled("model_repository") / name, tmp_path / "models" / name)
    write_family(tmp_path / "models", "sam1")
    return tmp_path / "models"


class TestRunTriton:
    def test_docker_gets_the_models_that_it_can_load(self, machine, models):
        """NVIDIA's own image lacks the package of the session models."""
        machine.add("docker", NOTHING_THERE)
        image = f"nvcr.io/nvidia/tritonserver:{TAG}"
        done = machine.run("run_triton.sh", models, HTTP_PORT=8100, BIND_ADDRESS="0.0.0.0", TRITON_IMAGE=image)
        call = machine.last_call()
        assert call.startswith("docker run --rm --name sam2-triton-server ")
        assert f"-p 0.0.0.0:8100:8000 -p 0.0.0.0:8001:8001 -p 0.0.0.0:8002:8002 -v {models}:/models:ro nvcr.io/" in call
        assert call.endswith("--load-model=sam2_decoder --load-model=sam2_encoder")
        assert "sam2 is left out, because it needs the image of scripts/build_image.sh" in done.stderr

    @pytest.mark.parametrize(("has_package", "command"), [(0, "triton-sam container"), (1, "tritonserver --model-rep")])
    def test_another_image_is_asked_whether_it_has_the_package(self, machine, models, has_package, command):
        """A copy of NVIDIA's image in another registry has none."""
        machine.add("docker", f"[[ $* == *'command -v triton-sam'* ]] && exit {has_package}\n{NOTHING_THERE}")
        image = "registry.example.com/tritonserver:mirror"
        machine.run("run_triton.sh", models, TRITON_IMAGE=image)
        assert f" {image} {command}" in machine.last_call()
        assert ("sam2_encoder" in machine.last_call()) == bool(has_package)

    def test_the_image_of_the_project_chooses_the_models(self, machine, models):
        machine.add("docker", "[[ $1 != container ]]")
        machine.run("run_triton.sh", models)
        assert machine.last_call().endswith(f" -v {models}:/models:ro triton-sam:{TAG} triton-sam container")
        assert "docker build" not in machine.calls.read_text()

    @pytest.mark.parametrize("engine", ["docker", "podman"])
    def test_the_first_start_builds_the_image_so_that_the_session_model_is_served(self, machine, models, engine):
        machine.add("docker", "exit 1")
        machine.add(engine, NOTHING_THERE)
        done = machine.run("run_triton.sh", models, TRITON_TAG="30.01-py3", CONTAINER_NAME="mine")
        build, run = [line for line in machine.calls.read_text().splitlines() if " build " in line or " run " in line]
        tag = "--build-arg TRITON_TAG=30.01-py3 --target triton --tag triton-sam:30.01-py3"
        assert build == f"{engine} build {tag} {ROOT}"
        assert run.startswith(f"{engine} run --rm --name mine ")
        assert run.endswith(" triton-sam:30.01-py3 triton-sam container")
        assert "building triton-sam:30.01-py3" in done.stderr

    @pytest.mark.parametrize(("engine", "gpu"), [("docker", "--gpus all"), ("podman", "--device nvidia.com/gpu=all")])
    def test_a_container_gets_the_gpus(self, machine, models, engine, gpu):
        machine.add("docker", "exit 1")
        machine.add(engine, "[[ $1 != container ]]")
        machine.add("nvidia-smi")
        machine.run("run_triton.sh", models)
        assert f" {gpu} " in machine.last_call()

    @pytest.mark.parametrize("variables", [{"TRITON_LOCAL": 1}, {}])
    def test_the_local_server_stands_in_for_docker(self, machine, models, variables):
        machine.add("docker", "exit $([[ -n ${TRITON_LOCAL:-} ]] && echo 0 || echo 1)")  # there is one, or none runs
        done = machine.run("run_triton.sh", models, METRICS_PORT=9002, **variables)
        assert ("neither docker nor podman answers" in done.stderr) == (not variables)
        assert machine.last_call() == (
            f"standin-python -m triton_sam serve --model-repository {models} --host 127.0.0.1 "
            "--http-port 8000 --grpc-port 8001 --metrics-port 9002"
        )

    def test_the_environment_of_the_local_server_is_made_in_a_fresh_clone(self, machine, models, tmp_path):
        clone = fresh_clone(tmp_path)
        machine.add("docker", "exit 1")
        # The stand-in can serve once pip of the new environment has run. It answers as `python3 -m venv` does.
        made = 'mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python"'
        mark = tmp_path / "installed"
        cases = f'"- ") test -e {mark};; "-m venv") {made};; "-m pip") touch {mark};;'
        machine.add("python3", f'case "$1 $2" in {cases} esac')
        done = machine.run("run_triton.sh", models, root=clone, PYTHON=None)
        calls = machine.calls.read_text()
        assert f"python3 -m venv {clone}/.venv\n" in calls
        assert "python -m pip install --quiet -c constraints.txt -e .[local]\n" in calls
        assert machine.last_call().startswith(f"python -m triton_sam serve --model-repository {models} ")
        assert f"installing the local server into {clone}/.venv" in done.stderr

    def test_an_environment_of_the_user_is_not_changed(self, machine, models, tmp_path):
        clone = fresh_clone(tmp_path)
        machine.add("docker", "exit 1")
        machine.add("python3", "[[ $1 != - ]]")
        (clone / ".venv").mkdir()
        done = machine.run("run_triton.sh", models, root=clone, code=1, PYTHON=None)
        assert done.stderr.splitlines()[-1].endswith('pip install -c constraints.txt -e ".[local]")')
        assert list((clone / ".venv").iterdir()) == []

    def test_folders_that_are_no_models_are_left_out(self, machine, models):
        """A folder without a configuration, one that cannot be read (find fails as if), and no folder with weights."""
        machine.add("docker", "[[ $1 != container ]]")
        image = f"nvcr.io/nvidia/tritonserver:{TAG}"
        (models / "a_notes").mkdir()
        (models / "lost+found").mkdir()
        machine.add("find", '/usr/bin/find "$@"; [[ $* != *lost+found* ]]')
        done = machine.run("run_triton.sh", models, TRITON_IMAGE=image)
        assert set(re.findall(r"--load-model=(\S+)", machine.last_call())) == {"sam2_encoder", "sam2_decoder"}
        for name in MODELS:
            shutil.rmtree(models / name)
        done = machine.run("run_triton.sh", models, code=1, TRITON_IMAGE=image)
        assert f"no model in {models} has weights that can be read" in done.stderr.splitlines()[-1]

    @pytest.mark.parametrize(
        ("docker", "arguments", "code", "words"),
        [
            (f"[[ $1 != build ]] && {NOTHING_THERE}", ["models"], 1, "TRITON_LOCAL=1 serves without a container"),
            ("", ["models"], 1, "there is a container sam2-triton-server already: end it with `docker stop"),
            ("", ["none"], 1, "run_triton.sh: there is no model repository at "),
            ("", ["--gpu"], 2, "sage: "),
        ],
        ids=["no image", "a container of that name", "no repository", "unknown option"],
    )
    def test_what_ends_it_is_said(self, machine, models, docker, arguments, code, words):
        machine.add("docker", docker)
        done = machine.run("run_triton.sh", *arguments, folder=models.parent, code=code)
        assert words in done.stderr
        assert not machine.calls.exists() or "docker run" not in machine.calls.read_text()


class TestRunTritonCustom:
    @pytest.fixture
    def checkpoint(self, tmp_path):
        (tmp_path / "sam2_hiera_large.pt").write_bytes(b"weights")
        return tmp_path / "sam2_hiera_large.pt"

    def test_a_checkpoint_is_exported_then_served(self, machine, models, checkpoint):
        machine.add("docker", "exit 1")
        machine.run("run_triton_custom.sh", models, SAM2_CHECKPOINT=checkpoint, SAM2_MODEL_CFG="sam2_hiera_l.yaml")
        export, serve = [line for line in machine.calls.read_text().splitlines() if line.startswith("standin")]
        script = ROOT / "scripts" / "export_sam2_to_onnx.py"
        options = f"--checkpoint {checkpoint} --output-dir {models} --model-cfg sam2_hiera_l.yaml"
        assert export == f"standin-python {script} {options}"
        assert serve.startswith("standin-python -m triton_sam serve ")

    @pytest.mark.parametrize(
        ("engine", "user", "mapping"), [("docker", 1000, ""), ("podman", 1000, " --userns keep-id"), ("podman", 0, "")]
    )
    def test_a_host_without_python_exports_in_the_image(self, machine, models, checkpoint, engine, user, mapping):
        machine.add("id", f"echo {user}")
        machine.add("docker", "exit 1")
        machine.add("python3", "exit 1")
        machine.add(engine, NOTHING_THERE)
        clone = fresh_clone(models.parent)
        machine.run("run_triton_custom.sh", models, root=clone, SAM2_CHECKPOINT=checkpoint, PYTHON=None)
        calls = [line for line in machine.calls.read_text().splitlines() if re.search(" (build|run) ", line)]
        assert calls[0] == (
            f"{engine} build --build-arg TRITON_TAG={TAG} --build-arg EXTRAS=export"
            f" --target export --tag triton-sam-export:pytorch {clone}"
        )
        assert f" -v {models}:/models -v {checkpoint}:/checkpoints/{checkpoint.name}:ro " in calls[1]
        assert f" --user {user}:{user} " in calls[1]
        assert f":ro{mapping} --entrypoint" in calls[1]
        command = f"export sam2 --checkpoint /checkpoints/{checkpoint.name} --model-repository /models"
        assert calls[1].endswith(f"--entrypoint triton-sam triton-sam-export:pytorch {command}")
        assert calls[-1].startswith(f"{engine} run --rm --name sam2-triton-server ")

    def test_a_checkpoint_without_a_hash_is_an_error(self, machine, models, checkpoint):
        for program in ("sha256sum", "shasum"):
            machine.add(program, "exit 1")
        done = machine.run("run_triton_custom.sh", models, SAM2_CHECKPOINT=checkpoint, code=1)
        assert f"cannot read {checkpoint}" in done.stderr

    def test_a_checkpoint_that_was_exported_is_not_exported_again(self, machine, tmp_path):
        """The built-in model pair was exported from this checkpoint, so there is nothing to export."""
        machine.add("docker", "exit 1")
        shutil.copytree(bundled("model_repository"), tmp_path / "models", ignore=shutil.ignore_patterns("[2-9]*"))
        checkpoint = ROOT / "checkpoints" / "sam2.1_hiera_micro.pt"
        done = machine.run("run_triton_custom.sh", tmp_path / "models", SAM2_CHECKPOINT=checkpoint)
        assert "holds this checkpoint already" in done.stdout
        assert machine.calls.read_text().count("standin-python") == 1
        # The newest version counts: this one was exported from other weights.
        (tmp_path / "models" / "sam2_encoder" / "10").mkdir()
        (tmp_path / "models" / "sam2_encoder" / "10" / "model.onnx").write_bytes(b"other")
        done = machine.run("run_triton_custom.sh", tmp_path / "models", SAM2_CHECKPOINT=checkpoint)
        assert "already" not in done.stdout
        assert "export_sam2_to_onnx" in machine.calls.read_text()


# --- scripts/model_health.py, the health check of the containers -----------------------------------------------------


SCRIPT = ROOT / "scripts" / "model_health.py"
INDEX = [
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
def test_reasons(statuses, ready, live):
    with answering(("127.0.0.1", 0), statuses, json.dumps(INDEX).encode()) as (port, seen):
        for options, words in ((), ready), (("--live",), live):
            done = check(port, *options)
            assert (done.returncode, done.stdout) == (int(bool(words)), "")
            assert words in done.stderr
            assert done.stderr.count("\n") == int(bool(words))
        assert "/v2/models/sam3/ready" not in seen


def test_a_server_that_does_not_answer_or_is_not_triton():
    done = check(free_ports(1)[0])
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    with answering(("127.0.0.1", 0), {}, b"<html>") as (port, _):
        done = check(port)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
