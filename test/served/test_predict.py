"""`triton-sam predict`: several images, streams, formats of files, candidates, refinement."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triton_sam import SAM2TritonClient
from triton_sam.cli import main
from triton_sam.masks.rle import rle_to_mask

POINT = ("--point", "200,180")


@pytest.fixture
def predict(capfdbinary, server):
    """Return a function that runs the command against the shared server: (exit code, stdout as bytes, stderr)."""

    def run(*arguments, url=server.http_url):
        code = main(["predict", *map(str, arguments), *(() if url is None else ("--url", url))])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture
def expected(server, images):
    """The mask of POINT in shapes.jpg."""
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        yield client.segment([[200, 180]])[0]


@pytest.fixture
def pictures(images, tmp_path):
    for name in ("shapes.jpg", "coffee.jpg"):
        (tmp_path / name).write_bytes((images / name).read_bytes())
    return tmp_path


def opened(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_without_a_file_it_prints_a_table_and_a_hint(predict, images, expected):
    code, out, err = predict(images / "shapes.jpg", *POINT)
    assert code == 0
    assert out.decode() == f"object 0: score {expected.score:.3f}, {expected.area} pixels, box {expected.box}\n"
    assert "--out mask.png" in err
    assert predict(images / "shapes.jpg", *POINT, "--quiet")[2] == ""


def test_the_demo_model_is_named_once_on_standard_error(predict, pictures, server):
    """The server tells it by both protocols; --json and --quiet are silent."""
    line = "the masks come from the weights of the demo model; `triton-sam setup sam2` fetches official weights\n"
    images = (pictures / "shapes.jpg", pictures / "coffee.jpg")
    for url in (server.http_url, server.grpc_url):
        code, out, err = predict(*images, *POINT, url=url)
        assert (code, err.count(line)) == (0, 1)
        assert b"weights" not in out
    for option in ("--json", "--quiet"):
        assert predict(*images, *POINT, option)[2].count("demo") == 0


def test_several_images_by_a_pattern(predict, pictures):
    arguments = ("--out", pictures / "mask.png", "--overlay", pictures / "drawn.png", "--json")
    code, out, err = predict(pictures / "*.jpg", *POINT, *arguments)
    assert code == 0, err
    coffee, shapes = map(json.loads, out.decode().splitlines())
    assert (shapes["file"], coffee["image"]) == (str(pictures / "shapes.jpg"), {"width": 600, "height": 400})
    for answer, name in ((shapes, "shapes"), (coffee, "coffee")):
        with Image.open(pictures / f"mask_{name}.png") as mask, Image.open(pictures / f"drawn_{name}.png") as drawn:
            np.testing.assert_array_equal(np.asarray(mask) > 0, rle_to_mask(answer["objects"][0]["rle"]))
            assert drawn.size == mask.size
    assert {path.name for path in pictures.iterdir()} == {
        "shapes.jpg", "coffee.jpg", "mask_shapes.png", "mask_coffee.png", "drawn_shapes.png", "drawn_coffee.png",
    }  # fmt: skip


def test_from_standard_input_to_standard_output(predict, images, expected, monkeypatch):
    content = (images / "shapes.jpg").read_bytes()
    for name, check in (
        ("png", lambda out: np.testing.assert_array_equal(opened(out) > 0, expected.mask)),
        ("rle", lambda out: np.testing.assert_array_equal(rle_to_mask(json.loads(out)[0]["rle"]), expected.mask)),
    ):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        code, out, err = predict("-", *POINT, "--out", "-", "--format", name, "--quiet")
        assert (code, err) == (0, "")
        check(out)


def test_coco_polygons_and_geojson(predict, pictures, expected):
    both = (pictures / "shapes.jpg", pictures / "coffee.jpg", *POINT)
    assert predict(*both, "--out", pictures / "all.json")[0] == 0
    coco = json.loads((pictures / "all.json").read_bytes())
    assert [image["file_name"] for image in coco["images"]] == ["shapes.jpg", "coffee.jpg"]
    np.testing.assert_array_equal(rle_to_mask(coco["annotations"][0]["segmentation"]), expected.mask)
    assert predict(both[0], *POINT, "--out", pictures / "one.geojson")[0] == 0
    features = json.loads((pictures / "one.geojson").read_bytes())["features"]
    assert features[0]["properties"]["area"] == expected.area
    assert predict(both[0], *POINT, "--out", pictures / "rings.json", "--format", "polygons")[0] == 0
    assert json.loads((pictures / "rings.json").read_bytes())[0]["polygons"] == expected.to_polygons()


def test_all_candidates(predict, images, server, tmp_path):
    code, out, _ = predict(images / "shapes.jpg", *POINT, "--all-candidates", "--out", tmp_path / "mask.png")
    assert code == 0
    assert [line.split(":")[0] for line in out.decode().splitlines()] == [f"object 0, candidate {n}" for n in range(3)]
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        segments = client.segment([[200, 180]], multimask_output=True)
    for segment, name in zip(segments, ("mask", "mask_1", "mask_2"), strict=True):
        with Image.open(tmp_path / f"{name}.png") as mask:
            np.testing.assert_array_equal(np.asarray(mask) > 0, segment.mask)


def test_a_mask_is_refined_by_its_logits(predict, images, expected, server, tmp_path):
    logits, refined = tmp_path / "logits.npy", tmp_path / "refined.png"
    assert predict(images / "shapes.jpg", *POINT, "--logits", logits)[0] == 0
    np.testing.assert_array_equal(np.load(logits)[0, 0], expected.logits)
    arguments = ("--point", "100,100,0", "--mask-input", logits, "--out", refined)
    assert predict(images / "shapes.jpg", *POINT, *arguments)[0] == 0
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        again = client.segment([[200, 180], [100, 100]], [1, 0], mask_input=expected.logits)[0]
    with Image.open(refined) as mask:
        np.testing.assert_array_equal(np.asarray(mask) > 0, again.mask)
