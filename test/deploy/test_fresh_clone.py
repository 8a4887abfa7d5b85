"""`scripts/run_triton.sh`, then `scripts/infer_example.sh`, in a fresh clone on a host without a container program.

`test_containers_run` does the same with a container.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.fresh_clone import check_mask, fresh_clone, infer_example, served

from triton_sam._common.bundle import checkout
from triton_sam.repository.selection import select_models

ROOT = checkout()
if ROOT is None or not (ROOT / ".git").exists() or shutil.which("git") is None or shutil.which("curl") is None:
    pytest.skip("this needs git, curl, and a clone of the repository", allow_module_level=True)
if not sys.platform.startswith("linux"):
    pytest.skip("the local server needs Linux", allow_module_level=True)

NO_CONTAINERS = {"CONTAINER_ENGINE": "no-such-program", "PYTHON": "", "PYTHONPATH": ""}


@pytest.mark.slow
def test_two_scripts_of_a_fresh_clone_end_in_a_mask(tmp_path):
    """The Python of this environment has the extra `local`, and the package comes from the clone."""
    clone = fresh_clone(ROOT, tmp_path / "clone")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with served(clone, tmp_path / "log", {**NO_CONTAINERS, "PATH": path}, seconds=500) as port:
        check_mask(infer_example(clone, port))
    log = (tmp_path / "log").read_text()
    assert "neither docker nor podman answers: serving without a container" in log
    assert "installing the local server" not in log
    assert (clone / "triton_sam" / "__pycache__").is_dir()


def test_the_container_chooses_models_of_a_fresh_clone_that_have_all_their_weights(tmp_path):
    clone = fresh_clone(ROOT, tmp_path / "clone")
    chosen = {folder.name for folder in select_models(clone / "model_repository", None)}
    assert {"sam2", "sam2_encoder", "sam2_decoder", "sam2_preprocess"} <= chosen


@pytest.mark.nightly
def test_a_host_with_nothing_but_python_installs_the_local_server(tmp_path):
    """The script makes .venv in the clone, from the package index."""
    python = shutil.which(f"python3.{sys.version_info[1]}", path=f"{sys.base_prefix}/bin")
    if python is None:
        pytest.skip(f"there is no Python in {sys.base_prefix}/bin")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(python)
    clone = fresh_clone(ROOT, tmp_path / "clone")
    variables = {**NO_CONTAINERS, "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "VIRTUAL_ENV": ""}
    with served(clone, tmp_path / "log", variables, seconds=500) as port:
        check_mask(infer_example(clone, port))
    assert f"installing the local server into {clone}/.venv" in (tmp_path / "log").read_text()
