"""Every block of Python in the documents runs as it stands. test_lint_docs.py checks the rest of the documents."""

from __future__ import annotations

import asyncio
import re
import shutil
import textwrap

import certifi
import pytest

from triton_sam._common.bundle import checkout

ROOT = checkout()
if ROOT is None or not (ROOT / "tools").is_dir():
    pytest.skip("documents are in the checkout only", allow_module_level=True)

from tools.maintain import documents  # noqa: E402


def python_blocks() -> list[tuple[str, str]]:
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
    names: dict = {}
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


async def run_fragment(code: str, url: str) -> None:
    """Run lines that await something, with what stands around them in the text."""
    from triton_sam import SpeculativeSAM2Client

    shown: list = []
    async with SpeculativeSAM2Client(url) as client:
        await client.set_image_async("image.jpg")
        names = {"client": client, "x": 200, "y": 180, "show": lambda *result: shown.append(result)}
        exec("async def fragment():\n" + textwrap.indent(code + "\nreturn task\n", "    "), names)
        await (await names["fragment"]())
        await asyncio.sleep(0)
    assert len(shown) == 1
