"""Every block of Python in the documents runs as it stands, and so do the commands and code of the first READMEs.

docs/compatibility.md has a row for each of the latter. test_lint_docs.py checks the rest of the documents.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import certifi
import numpy as np
import pytest

from triton_sam._common.bundle import checkout
from triton_sam.cli import build_parser

ROOT = checkout()
if ROOT is None or not (ROOT / "tools").is_dir():
    pytest.skip("documents are in the checkout only", allow_module_level=True)

from tools.maintain import documents  # noqa: E402


def python_blocks():
    """Return the blocks of Python in all documents, with their places."""
    return [
        (document.at(position), textwrap.dedent(block))
        for document in documents.Checkout(ROOT).documents
        for language, position, block in document.blocks()
        if language == "python"
    ]


PYTHON = python_blocks()


@pytest.mark.parametrize(("place", "code"), PYTHON, ids=[place for place, _ in PYTHON])
def test_python_runs_as_it_stands(service_triton, place, code, tmp_path, monkeypatch, images):
    """Only the address is another, and what a fragment leaves out is there: client, place, what to do with masks."""
    code = code.replace("grpc://localhost:8001", service_triton.grpc_url)
    code = code.replace("localhost:8000", service_triton.http_url.removeprefix("http://"))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "images").symlink_to(images)
    shutil.copy(images / "shapes.jpg", tmp_path / "image.jpg")
    if "slide.tif" in code:
        pytest.importorskip("zarr")
        from support.large_images import draw, write_tiff

        write_tiff(tmp_path / "slide.tif", draw([(1510, 905, 1700, 1300)]))
    (tmp_path / "deploy" / "nginx" / "tls").mkdir(parents=True)
    shutil.copy(certifi.where(), tmp_path / "deploy" / "nginx" / "tls" / "ca.crt")  # of make_certificates.sh
    monkeypatch.chdir(tmp_path)
    names = {}
    if "licker" in code:
        names["clicker"] = clicked(service_triton.grpc_url)
    if re.search(r"(?m)^\S.*\bawait\b", code):
        asyncio.run(run_fragment(code, service_triton.grpc_url))
        return
    if "SAM2TritonClient" in code and "import" not in code:
        names["SAM2TritonClient"] = __import__("triton_sam").SAM2TritonClient
    exec(compile(code, place, "exec"), names)
    client = names.get("client")
    if "masks" in names:
        assert names["masks"].shape == (1, 1, 256, 256)
        assert names["iou"].shape == (1, 1)
    if "segment" in names:
        assert names["segment"].mask.shape == (600, 800)
        assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")
    if client is not None:
        client.close()


def clicked(url):
    """Return the widget for notebooks after a click, for lines that go on with it."""
    pytest.importorskip("anywidget")
    from triton_sam import SAM2TritonClient
    from triton_sam.integrations.notebook import Clicker

    with SAM2TritonClient(url) as client:
        clicker = Clicker("image.jpg", client)
        clicker.click(200, 180)
        assert len(clicker.segments) == 1
    return clicker


async def run_fragment(code, url):
    """Run lines that await something, with what stands around them in the text."""
    from triton_sam import SpeculativeSAM2Client

    shown = []
    async with SpeculativeSAM2Client(url) as client:
        await client.set_image_async("image.jpg")
        names = {"client": client, "x": 200, "y": 180, "show": lambda *result: shown.append(result)}
        exec("async def fragment():\n" + textwrap.indent(code + "\nreturn task\n", "    "), names)
        await (await names["fragment"]())
        await asyncio.sleep(0)
    assert len(shown) == 1


# The commands and the code of the first READMEs as they stood, as far as they run without a GPU and without Docker


TASKS = """
setup download-base clone-sam2 export-onnx test-sam2 test-speculative download-tiny download-small download-large
setup-all setup-sam1 setup-sam2 setup-sam3 test-sam3 download-sam1-h download-sam1-l download-sam1-b download-sam3-onnx
export-sam1 export-sam2 benchmark-sam2 benchmark-sam3 install-sam1 install-sam2 benchmark-sam2-both benchmark-sam3-both
"""

SHELL = [
    ("bash scripts/download_sam2.sh base_plus", "sam2", "base_plus"),
    ("bash scripts/download_sam2.sh", "sam2", None),
    ("bash scripts/download_sam1.sh vit_h --quiet", "sam1", "vit_h"),
]
"""Shell scripts, and the family and size that each downloads; None: the default size."""

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
    tasks = documents.Checkout(ROOT).tasks
    assert [name for name in TASKS.split() if name not in tasks] == []
    assert "sam_vit_h_4b8939.pth" in tasks["export-sam1"]["cmd"]
    assert tasks["setup-sam1"]["depends-on"] == ["export-sam1"]
    assert tasks["export-sam1"]["depends-on"] == ["download-sam1-h"]
    assert tasks["setup"]["depends-on"] == ["setup-sam2"]
    assert set(tasks["setup-all"]["depends-on"]) == {"setup-sam1", "setup-sam2", "setup-sam3"}


def test_official_weights_to_start_with_are_those_of_the_default_size():
    places = [*ROOT.glob("triton_sam/**/*.py"), ROOT / "triton_sam/service/static/index.html", ROOT / "README.md"]
    other = re.compile(r"setup (sam2 (tiny|small|base_plus|large)|mobilesam(?! +for a CPU))\b")
    assert [str(each) for each in places if other.search(each.read_text("utf-8"))] == []


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
def test_named_shell_commands_start_a_command_of_today():
    environment = {**os.environ, "PYTHON": "echo"}
    for line, family, size in SHELL:
        done = subprocess.run(shlex.split(line), cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        started = done.stdout.partition("-m triton_sam ")[2].split()
        args = build_parser().parse_args(started)
        assert (args.command, args.family, args.size) == ("download", family, size)


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
    names = {"np": np}
    exec(BASIC.format(module=module, options=options).replace("localhost:8000", address), names)
    with contextlib.closing(names["client"]):
        assert names["masks"].shape == (1, 1, 256, 256)
        assert names["iou"].shape == (1, 1)
        assert names["binary_mask"].dtype == np.uint8


@pytest.mark.parametrize("module", ["triton_sam2", "triton_sam"])
def test_the_speculative_client_runs_as_it_stood(address, module):
    from triton_sam import wait_for_latest_result  # the README left this import out

    positions = [(200 + step, 180) for step in range(10)]
    names = {"np": np, "mouse_positions": positions, "wait_for_latest_result": wait_for_latest_result}
    exec(SPECULATIVE.format(module=module).replace("localhost:8000", address), names)
    result, client = asyncio.run(names["interactive_segmentation"]())
    with contextlib.closing(client):
        assert result[0].shape == (1, 1, 256, 256)
        assert client.get_session_status("user_session_1")["completed"] >= 1
