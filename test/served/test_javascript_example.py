"""examples/click.mjs, which docs/reference/other-languages.md shows, gets the masks of the Python client."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import checkout

ROOT = checkout()
if ROOT is None or not (ROOT / "examples").is_dir():
    pytest.skip("examples are in the checkout only", allow_module_level=True)

EXAMPLE = ROOT / "examples" / "click.mjs"
LOST = """
import { readFile, writeFile } from "node:fs/promises";
import { Sam } from "%s";
const [url, image, out] = process.argv.slice(2);
const sam = new Sam(url);
console.log(String(await sam.setImage(await readFile(image))));
sam.imageId = "0".repeat(64);
const { mask, score } = await sam.click([[200, 180], [3, 4]], [1, 0]);
await writeFile(out, mask);
await new Sam(url, "nowhere").setImage(mask).catch((error) => console.log(error.message));
"""


@pytest.fixture(scope="module")
def node() -> Path:
    """The Node that comes with Playwright."""
    return Path(pytest.importorskip("playwright").__file__).parent / "driver" / "node"


def run(node: Path, *arguments: object) -> str:
    program = [str(node), *map(str, arguments)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected(url: str, image: Path, points: list, labels: list) -> np.ndarray:
    with SAM2TritonClient(url) as client:
        client.set_image(image)
        return client.segment(points, labels)[0].mask


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(path.read_bytes()))) > 0


def test_a_click(service_triton, node, images, tmp_path):
    image, out = images / "shapes.jpg", tmp_path / "mask.png"
    said = run(node, EXAMPLE, service_triton.http_url, image, 200, 180, out)
    assert said.startswith("score 0.")
    np.testing.assert_array_equal(pixels(out), expected(service_triton.grpc_url, image, [[200, 180]], [1]))


def test_a_lost_image_is_sent_again_and_errors_are_raised(service_triton, node, images, tmp_path):
    program, image, out = tmp_path / "lost.mjs", images / "shapes.jpg", tmp_path / "mask.png"
    program.write_text(LOST % EXAMPLE.as_uri())
    size, error = run(node, program, service_triton.http_url, image, out).splitlines()
    assert size == "800,600"
    assert "nowhere" in error
    np.testing.assert_array_equal(pixels(out), expected(service_triton.grpc_url, image, [[200, 180], [3, 4]], [1, 0]))
