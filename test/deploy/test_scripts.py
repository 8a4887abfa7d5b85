"""The scripts that start Triton, with stand-ins for Docker and Python, and scripts that call a real server."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled, checkout

ROOT = checkout()
if ROOT is None:
    pytest.skip("scripts are in the checkout only", allow_module_level=True)

MODELS = ("sam1_encoder", "sam2", "sam2_encoder", "sam2_decoder", "sam2_encoder_jpeg", "sam2_preprocess")


class Machine:
    """A folder of programs that record their calls."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.calls = folder / "bin", folder / "calls"
        self.programs.mkdir()
        self.python = self.add("standin-python")

    def add(self, name: str, body: str = "") -> Path:
        program = self.programs / name
        program.write_text(f'#!/bin/bash\necho "$(basename "$0") $*" >> {self.calls}\n{body}\n')
        program.chmod(0o755)
        return program

    def run(self, script: str, *arguments: object, **variables: object) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHON": str(self.python), "HOME": os.environ["HOME"]}
        environment.update({name: str(value) for name, value in variables.items()})
        command = ["bash", str(ROOT / "scripts" / script), *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def last_call(self) -> str:
        return self.calls.read_text().splitlines()[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return a repository with SAM2's weights, and with SAM1's configuration but not its weights."""
    for name in MODELS:
        shutil.copytree(bundled("model_repository") / name, tmp_path / "models" / name)
    shutil.rmtree(tmp_path / "models" / "sam1_encoder" / "1", ignore_errors=True)
    return tmp_path / "models"


class TestRunTriton:
    def test_docker_gets_the_models_that_it_can_load(self, machine, models):
        """NVIDIA's own image lacks the package of the session models."""
        machine.add("docker", "[[ $1 != image ]]")  # no image of scripts/build_image.sh
        done = machine.run("run_triton.sh", models, HTTP_PORT=8100, BIND_ADDRESS="0.0.0.0")
        assert done.returncode == 0, done.stderr
        call = machine.last_call()
        assert call.startswith("docker run --rm ")
        assert f"-p 0.0.0.0:8100:8000 -p 0.0.0.0:8001:8001 -p 0.0.0.0:8002:8002 -v {models}:/models:ro nvcr.io/" in call
        assert call.endswith("--load-model=sam2_decoder --load-model=sam2_encoder")
        assert "sam2 is left out, because it needs the image of scripts/build_image.sh" in done.stderr

    def test_the_image_of_the_project_loads_the_session_model_too(self, machine, models):
        machine.add("docker")
        assert machine.run("run_triton.sh", models).returncode == 0
        call = machine.last_call()
        assert " triton-sam:26.08-py3 tritonserver " in call
        loaded = {word.partition("=")[2] for word in call.split() if word.startswith("--load-model=")}
        assert loaded == set(MODELS) - {"sam1_encoder"}

    @pytest.mark.parametrize("variables", [{"TRITON_LOCAL": 1}, {}])
    def test_the_local_server_stands_in_for_docker(self, machine, models, variables):
        machine.add("docker", "exit $([[ -n ${TRITON_LOCAL:-} ]] && echo 0 || echo 1)")  # there is one, or none runs
        assert machine.run("run_triton.sh", models, METRICS_PORT=9002, **variables).returncode == 0
        assert machine.last_call() == (
            f"standin-python -m triton_sam serve --model-repository {models} --host 127.0.0.1 "
            "--http-port 8000 --grpc-port 8001 --metrics-port 9002"
        )

    def test_a_missing_repository_and_unknown_options_are_one_line(self, machine, tmp_path):
        done = machine.run("run_triton.sh", tmp_path / "none")
        assert (done.returncode, done.stderr) == (
            1,
            f"run_triton.sh: there is no model repository at {tmp_path / 'none'}\n",
        )
        assert machine.run("run_triton.sh", "--gpu").returncode == 2


class TestRunTritonCustom:
    def test_a_checkpoint_is_exported_then_served(self, machine, models, tmp_path):
        machine.add("docker", "exit 1")
        checkpoint = tmp_path / "sam2_hiera_large.pt"
        checkpoint.write_bytes(b"weights")
        shutil.rmtree(models / "sam2")
        done = machine.run(
            "run_triton_custom.sh", models, SAM2_CHECKPOINT=checkpoint, SAM2_MODEL_CFG="sam2_hiera_l.yaml"
        )
        assert done.returncode == 0, done.stderr
        _, export, serve = [line for line in machine.calls.read_text().splitlines() if line.startswith("standin")]
        script = ROOT / "scripts" / "export_sam2_to_onnx.py"
        options = f"--checkpoint {checkpoint} --output-dir {models} --model-cfg sam2_hiera_l.yaml"
        assert export == f"standin-python {script} {options}"
        assert serve.startswith("standin-python -m triton_sam serve ")
        assert (models / "sam2" / "config.pbtxt").is_file()

    def test_a_checkpoint_that_was_exported_is_not_exported_again(self, machine, models, tmp_path):
        machine.add("docker", "exit 1")
        checkpoint = tmp_path / "sam2_hiera_large.pt"
        checkpoint.write_bytes(b"weights")
        # The stand-in gives the answer that the script's Python code would give.
        machine.add("standin-python", f"[[ $1 == - ]] && echo {hashlib.sha256(b'weights').hexdigest()}; true")
        done = machine.run("run_triton_custom.sh", models, SAM2_CHECKPOINT=checkpoint)
        assert done.returncode == 0, done.stderr
        assert "holds this checkpoint already" in done.stdout
        assert "export_sam2_to_onnx" not in machine.calls.read_text()
        assert machine.last_call().startswith("standin-python -m triton_sam serve ")

    def test_the_real_package_tells_which_checkpoint_was_exported(self, machine, tmp_path):
        """The built-in model pair was exported from this checkpoint, so there is nothing to export."""
        machine.add("docker", "exit 1")
        machine.add("standin-python", f'[[ $1 == - ]] && exec {sys.executable} "$@"; true')
        shutil.copytree(bundled("model_repository"), tmp_path / "models", ignore=shutil.ignore_patterns("[2-9]*"))
        checkpoint = ROOT / "checkpoints" / "sam2.1_hiera_micro.pt"
        done = machine.run("run_triton_custom.sh", tmp_path / "models", SAM2_CHECKPOINT=checkpoint)
        assert "holds this checkpoint already" in done.stdout, done.stderr

    @pytest.mark.parametrize(("checkpoint", "code"), [("", 2), ("relative.pt", 2), ("/no/such.pt", 1)])
    def test_a_checkpoint_must_be_named_in_full_and_exist(self, machine, checkpoint, code):
        done = machine.run("run_triton_custom.sh", SAM2_CHECKPOINT=checkpoint)
        assert done.returncode == code
        assert len(done.stderr.splitlines()) == 1


def program(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_speculative_example_answers_the_newest_position(service_triton):
    out = program("examples/speculative.py", "--url", service_triton.grpc_url, "--seconds", "1")
    assert "the mouse stops after" in out
    asked, sent = re.search(r"(\d+) asked, (\d+) sent", out).groups()
    assert 0 < int(sent) <= int(asked)


def test_bytes_of_a_click_stay_below_their_thresholds(service_triton):
    assert "logits" in program("scripts/click_bytes.py", "--url", service_triton.http_url)
