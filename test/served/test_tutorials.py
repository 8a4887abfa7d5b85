"""The commands of the tutorials about boxes, slides and maps run as they stand, and so does the JavaScript example."""

import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import checkout
from triton_sam.cli import main
from triton_sam.masks import rle_to_mask

ROOT = checkout()
if ROOT is None or os.name != "posix":
    pytest.skip("the tutorials are in the checkout, for bash", allow_module_level=True)

INSTALLS = ("pip install", "git clone")
SMALL = {
    "python docs/tutorial/draw_large_image.py": "--columns 2 --rows 1",
    "--with everything": "--points-per-side 3 --pred-iou-thresh 0.4 --stability-score-thresh 0.6",
}
"""Options behind the commands that hold these words: they make a test quick, and find something with the demo model."""


@pytest.fixture
def follow(service_triton, tmp_path, monkeypatch):
    """Run all commands of a tutorial in an empty folder that has the documents and images of a checkout."""
    for name in ("docs", "test"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)

    def run_all(name: str) -> Path:
        text = re.sub(r" *\\\n *", " ", (ROOT / "docs/tutorial" / name).read_text(encoding="utf-8"))
        lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        assert len(lines) >= 4
        for line in lines:
            if not line.startswith(INSTALLS):
                _run(line, service_triton.grpc_url)
        return tmp_path

    return run_all


def _run(line: str, url: str) -> None:
    if "gpkg" in line and importlib.util.find_spec("pyogrio") is None:
        return
    for words, options in SMALL.items():
        line += f" {options}" if words in line else ""
    line = line.replace("--local", f"--url {url}")
    if line.startswith("triton-sam service"):
        _serve(line)
    elif line.startswith("triton-sam "):
        assert main(shlex.split(line)[1:]) == 0, line
    else:
        command = line.replace("python ", f"{shlex.quote(sys.executable)} ")
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True, capture_output=True)


def _serve(line: str) -> None:
    """Start the service on a free port, ask for its large images, and stop it."""
    words = [sys.executable, "-m", "triton_sam", *shlex.split(line)[1:], "--port", "0"]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            pages = (re.search(r"the page: (http://\S+)/ ", each) for each in process.stderr)
            url = next(page[1] for page in pages if page)
            with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=60) as client:  # it listens soon
                page, names = client.get(f"{url}/large"), client.get(f"{url}/v1/large").json()
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert page.status_code == 200
    assert [each["name"] for each in names["images"]] == ["slide.tif"]


def features(path: Path) -> list[dict]:
    return json.loads(path.read_text())["features"]


def middle(feature: dict) -> np.ndarray:
    points = np.array(feature["geometry"]["coordinates"][0][0])
    return (points.min(axis=0) + points.max(axis=0)) / 2


def test_from_boxes_to_masks(follow, service_triton, capsys):
    folder = follow("boxes.md")
    assert "2 images, 3 prompts, 0 errors, 1 skipped" in capsys.readouterr().err
    document = json.loads((folder / "masks/coco.json").read_text())
    assert [each["category_id"] for each in document["annotations"]] == [0, 0, 1]
    assert "line 3" in (folder / "masks/skipped.jsonl").read_text()
    assert len((folder / "masks/yolo/labels/shapes.txt").read_text().splitlines()) == 2
    assert (folder / "masks/labels/coffee.jpg.png").exists()
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(folder / "photos/coffee.jpg")
        (expected,) = client.segment(box=[120, 80, 480, 320])
    np.testing.assert_array_equal(rle_to_mask(document["annotations"][0]["segmentation"]), expected.mask)
    models = json.loads((folder / "masks/manifest.json").read_text())["models"]
    assert models.keys() == {"sam2_encoder", "sam2_decoder", "weights"}
    assert len(models["weights"]) == 32


@pytest.mark.slow
def test_a_slide(follow):
    pytest.importorskip("zarr")
    folder = follow("slide.md")
    assert middle(features(folder / "ball.geojson")[0]) == pytest.approx([200, 180], abs=25)
    assert (folder / "ball.png").read_bytes().startswith(b"\x89PNG")
    found = features(folder / "objects/geojson/slide.geojson")
    document = json.loads((folder / "objects/coco_polygons.json").read_text())
    assert len(found) == len(document["annotations"]) > 0


def test_a_map(follow):
    pytest.importorskip("zarr")
    folder = follow("map.md")
    assert middle(features(folder / "ball.geojson")[0]) == pytest.approx([500100, 5399910], abs=15)
    found = features(folder / "masks/geojson/town.geojson")
    assert [each["properties"]["category"] for each in found] == ["ball", "plate"]
    assert (folder / "masks/gpkg/town.gpkg").exists() == (importlib.util.find_spec("pyogrio") is not None)


# --- examples/click.mjs, which docs/reference/other-languages.md shows -----------------------------------------------


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
def node():
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
