"""The commands and the code of the first READMEs as they stood, as far as they run without a GPU and without Docker.

docs/compatibility.md has a row for each. Names of Pixi tasks are checked here, and what they start by
tools/maintain/lint_docs.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.manifest import pixi_tasks

from triton_sam._common.bundle import checkout
from triton_sam.cli import build_parser

ROOT = checkout()
if ROOT is None:
    pytest.skip("scripts are in the checkout only", allow_module_level=True)

PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")

TASKS = """
setup download-base clone-sam2 export-onnx test-sam2 test-speculative download-tiny download-small download-large
setup-all setup-sam1 setup-sam2 setup-sam3 test-sam3 download-sam1-h download-sam1-l download-sam1-b download-sam3-onnx
export-sam1 export-sam2 benchmark-sam2 benchmark-sam3 install-sam1 install-sam2 benchmark-sam2-both benchmark-sam3-both
"""

SHELL = [
    ("bash scripts/download_sam2.sh base_plus", "download sam2 base_plus"),
    ("bash scripts/download_sam2.sh tiny", "download sam2 tiny"),
    ("bash scripts/download_sam2.sh", "download sam2 base_plus"),
    ("bash scripts/download_sam1.sh vit_h", "download sam1 vit_h"),
]
"""Shell scripts, and the command of today that each starts."""

EXPORT = """
--checkpoint checkpoints/sam2.1_hiera_base_plus.pt --model-cfg sam2_repo/sam2/configs/sam2.1/sam2.1_hiera_b+.yaml
--output-dir model_repository --image-size 1024 --device cpu
"""

BASIC = """
from {module} import SAM2TritonClient

client = SAM2TritonClient("localhost:8000"{options})
client.set_image("image.jpg")
masks, iou = client.predict(
    point_coords=[[512, 512]],  # (x, y) in original image space
    point_labels=[1]             # 1=foreground, 0=background
)
binary_mask = (masks[0, 0] > 0).astype(np.uint8)
"""

SPECULATIVE = """
from {module} import SpeculativeSAM2Client, queue_multiple_requests
import asyncio

async def interactive_segmentation():
    client = SpeculativeSAM2Client("localhost:8000")
    client.set_image("image.jpg")

    session_id = "user_session_1"

    coords_list = [np.array([[x, y]]) for x, y in mouse_positions]
    labels_list = [np.array([1]) for _ in mouse_positions]

    tasks = await queue_multiple_requests(
        client, coords_list, labels_list, session_id
    )
    client.cancel_session_requests(session_id)
    return await wait_for_latest_result(tasks, client, session_id), client
"""


def test_named_tasks_exist_and_set_up_what_they_did():
    tasks = pixi_tasks()
    assert [name for name in TASKS.split() if name not in tasks] == []
    assert "sam_vit_h_4b8939.pth" in tasks["export-sam1"]["cmd"]
    assert tasks["setup-sam1"]["depends-on"] == ["export-sam1"]
    assert tasks["export-sam1"]["depends-on"] == ["download-sam1-h"]
    assert tasks["setup"]["depends-on"] == ["setup-sam2"]
    assert set(tasks["setup-all"]["depends-on"]) == {"setup-sam1", "setup-sam2", "setup-sam3"}


def test_every_task_and_script_has_a_row_of_the_page():
    assert [name for name in TASKS.split() if not re.search(rf"(?<![\w-]){name}(?![\w-])", PAGE)] == []
    shown = ("run_triton", "run_triton_custom", "health_check", "infer_example", "build_image", "download_sam2")
    assert [name for name in shown if f"scripts/{name}.sh" not in PAGE] == []


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
def test_named_shell_commands_start_a_command_of_today():
    environment = {**os.environ, "PYTHON": "echo"}
    for line, today in SHELL:
        done = subprocess.run(shlex.split(line), cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        started = done.stdout.partition("-m triton_sam ")[2].split()
        assert " ".join(started[:3]) == today
        assert build_parser().parse_args(started).command == "download"


def test_the_export_takes_its_first_options():
    from triton_sam.commands.export import add_export_options

    parser = argparse.ArgumentParser()
    add_export_options(parser, ("sam2",))
    args = parser.parse_args(EXPORT.split())
    assert (args.model_repository, args.image_size, args.device) == (Path("model_repository"), 1024, "cpu")
    assert args.model_cfg == "sam2_repo/sam2/configs/sam2.1/sam2.1_hiera_b+.yaml"


@pytest.fixture
def address(service_triton, images, tmp_path, monkeypatch):
    """Make image.jpg the test image, and return the address that replaces localhost:8000."""
    (tmp_path / "image.jpg").symlink_to(images / "shapes.jpg")
    monkeypatch.chdir(tmp_path)
    return service_triton.http_url.removeprefix("http://")


@pytest.mark.parametrize(("module", "options"), [("triton_sam2", ""), ("triton_sam", ', model_type="sam2"')])
def test_the_basic_client_runs_as_it_stood(address, module, options):
    names: dict = {"np": np}
    exec(BASIC.format(module=module, options=options).replace("localhost:8000", address), names)
    with contextlib.closing(names["client"]):
        assert names["masks"].shape == (1, 1, 256, 256)
        assert names["iou"].shape == (1, 1)
        assert names["binary_mask"].dtype == np.uint8


@pytest.mark.parametrize("module", ["triton_sam2", "triton_sam"])
def test_the_speculative_client_runs_as_it_stood(address, module):
    from triton_sam import wait_for_latest_result  # the README left this import out

    positions = [(200 + step, 180) for step in range(10)]
    names: dict = {"np": np, "mouse_positions": positions, "wait_for_latest_result": wait_for_latest_result}
    exec(SPECULATIVE.format(module=module).replace("localhost:8000", address), names)
    result, client = asyncio.run(names["interactive_segmentation"]())
    with contextlib.closing(client):
        assert result[0].shape == (1, 1, 256, 256)
        assert client.get_session_status("user_session_1")["completed"] >= 1
