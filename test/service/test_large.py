"""/v1/large over a real service and a real Triton: lists, tiles, clicks, and what callers must not see."""

import io
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
import zarr
from PIL import Image
from support.large_images import draw, write_tiff, write_zarr
from support.running_service import NOBODY, problem, running_service

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import checkout
from triton_sam.cli import main
from triton_sam.errors import ConfigurationError
from triton_sam.masks import rle_to_mask
from triton_sam.service.settings import ServiceSettings
from triton_sam.tiles import LargeImageClient, open_large_image

HOUSE = (1510, 905, 1700, 1300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A slide, an OME-Zarr image in a subfolder, and things that nobody may see."""
    base = tmp_path_factory.mktemp("large")
    inside, outside = base / "inside", base / "outside"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    pixels = draw([HOUSE, (60, 60, 100, 90)])
    write_tiff(inside / "slide.tif", pixels)
    write_zarr(inside / "deep/cells.zarr", pixels[:700, :600], levels=2)
    write_tiff(outside / "secret.tif", pixels[:64, :64], levels=1)
    write_zarr(outside / "secret.zarr", pixels[:64, :64], levels=1)
    (inside / "link.tif").symlink_to(outside / "secret.tif")
    (inside / "link.zarr").symlink_to(outside / "secret.zarr")
    (inside / "away").symlink_to(outside)
    (inside / "near.tif").symlink_to(inside / "slide.tif")
    shutil.copytree(outside / "secret.zarr", inside / "part.zarr")
    shutil.rmtree(inside / "part.zarr/0")
    (inside / "part.zarr/0").symlink_to(outside / "secret.zarr/0")
    (inside / "bad.tif").write_bytes(b"II*\0damaged")
    (inside / "notes.txt").write_text("not an image")
    return inside


@pytest.fixture(scope="module")
def large(service_triton, folder):
    with running_service(service_triton.grpc_url, large_images=str(folder)) as running:
        yield running


def ids_of(service):
    return {each["name"]: each["id"] for each in service.http.get("/v1/large").json()["images"]}


@pytest.fixture(scope="module")
def ids(large):
    return ids_of(large)


def test_the_list_has_no_image_from_outside(ids):
    assert list(ids) == ["bad.tif", "deep/cells.zarr", "near.tif", "part.zarr", "slide.tif"]


def test_a_part_from_outside_and_a_damaged_file_are_refused(large, ids):
    for name, words in (
        ("part.zarr", "link that leads out of the folder"),
        ("bad.tif", "bad.tif cannot be read as a large image"),
    ):
        assert words in problem(large.http.get(f"/v1/large/{ids[name]}"), 422)["detail"]


NO_IDS = (
    "../outside/secret.tif",
    "..%2foutside%2fsecret.tif",
    "0" * 32,
    "slide.tif",
    "%00",
)


def test_paths_are_no_ids(large):
    for name in NO_IDS:
        assert large.http.get(f"/v1/large/{name}").status_code in (404, 422)


def test_levels_and_tiles_show_the_image(large, ids):
    info = large.http.get(f"/v1/large/{ids['slide.tif']}").json()
    assert (info["width"], info["height"], info["tile"], info["epsg"]) == (3000, 2200, 512, None)
    sizes = [(each["width"], each["height"], each["columns"], each["rows"]) for each in info["levels"]]
    assert sizes == [(3000, 2200, 6, 5), (1500, 1100, 3, 3), (750, 550, 2, 2), (375, 275, 1, 1)]
    pixels = draw([HOUSE, (60, 60, 100, 90)])
    for level, described in enumerate(info["levels"]):
        shown = np.zeros((described["height"], described["width"]), int)
        for row in range(described["rows"]):
            for column in range(described["columns"]):
                answer = large.http.get(f"/v1/large/{info['id']}/levels/{level}/tiles/{column}/{row}")
                assert answer.headers["content-type"] == "image/jpeg"
                tile = np.asarray(Image.open(io.BytesIO(answer.content)).convert("L"))
                top, left = row * 512, column * 512
                shown[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
        step = 2**level
        wanted = pixels[::step, ::step, 0].astype(int)
        # Edges may move by a pixel, and JPEG changes a few values.
        assert (abs(shown - wanted) > 12).mean() < 0.01


NO_TILES = (
    "9/tiles/0/0",
    "0/tiles/6/0",
    "0/tiles/0/5",
    "999999/tiles/0/0",
)


def test_there_are_no_other_tiles(large, ids):
    for place in NO_TILES:
        detail = problem(large.http.get(f"/v1/large/{ids['slide.tif']}/levels/{place}"), 404)["detail"]
        assert "there is no such tile" in detail


def test_a_click_is_that_of_the_client(large, ids, service_triton, folder):
    body = {"points": [[1600, 1000]], "format": "rle"}
    answer = large.http.post(f"/v1/large/{ids['slide.tif']}/segment", json=body)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["masks"]
    with open_large_image(folder / "slide.tif") as image, SAM2TritonClient(service_triton.http_url) as client:
        (wanted,) = LargeImageClient(client, image).segment([[1600, 1000]])
    assert tuple(found["region"]) == wanted.region
    np.testing.assert_array_equal(rle_to_mask(found["rle"]), wanted.mask)
    assert found["score"] == pytest.approx(wanted.score, abs=1e-5)
    x, y, width, height = found["bbox"]
    assert (x, y, x + width, y + height) == wanted.box
    assert found["is_cut"] == wanted.is_cut
    detail = problem(large.http.post(f"/v1/large/{ids['slide.tif']}/segment", json={}), 422)["detail"]
    assert detail == "the prompt is empty: give `points`, `box`, or both"


def test_polygons_are_in_pixels_of_the_image_at_every_scale(large, ids):
    body = {"points": [[80, 75], [300, 300]], "labels": [1, 0], "multimask": True}
    answer = large.http.post(f"/v1/large/{ids['deep/cells.zarr']}/segment", json=body).json()
    assert [each["candidate"] for each in answer["masks"]] == [0, 1, 2]
    assert answer["masks"][0]["region"] == [0, 0, 600, 700]  # all of a small image
    for scale in (1, 2.1):
        body = {"box": [1500, 895, 1710, 1310], "scale": scale}
        (found,) = large.http.post(f"/v1/large/{ids['slide.tif']}/segment", json=body).json()["masks"]
        ring = np.array(found["polygons"][0][0])
        assert [*ring.min(axis=0), *ring.max(axis=0)] == pytest.approx(HOUSE, abs=16 * scale)
        assert "rle" not in found or found["rle"] is None
        x1, _, x2, _ = found["region"]
        assert x2 - x1 == (1024 if scale == 1 else 2048)


@pytest.mark.skipif(shutil.which("curl") is None or os.name != "posix", reason="no curl")
def test_the_line_of_the_documentation_works(large, ids):
    text = (checkout() / "docs/reference/rest.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"curl .*/v1/large/.*", text)
    line = line.replace("localhost:5000", large.url).replace("51200, 30400", "1600, 1000")
    done = subprocess.run(
        ["bash", "-c", line], env={**os.environ, "ID": ids["slide.tif"]}, capture_output=True, check=True
    )
    assert json.loads(done.stdout)["masks"][0]["polygons"]


def test_too_large_a_view_is_refused_and_the_token_is_asked_for(folder):
    with running_service(NOBODY, large_images=str(folder), max_megapixels=0.4, token="open sesame") as running:
        assert running.http.get("/large").status_code == 200
        problem(running.http.get("/v1/large"), 401)
        problem(running.http.get(f"/v1/large/{'0' * 32}/levels/0/tiles/0/0"), 401)
        running.http.headers["Authorization"] = "Bearer open sesame"
        images = {each["name"]: each["id"] for each in running.http.get("/v1/large").json()["images"]}
        detail = problem(running.http.get(f"/v1/large/{images['slide.tif']}/levels/3/tiles/0/0"), 422)["detail"]
        assert "the file needs a pyramid" in detail
        assert running.http.get(f"/v1/large/{images['slide.tif']}/levels/0/tiles/0/0").status_code == 200
        body = {"points": [[1600, 1000]]}
        assert running.http.post(f"/v1/large/{images['slide.tif']}/segment", json=body).status_code == 503
    with pytest.raises(ConfigurationError, match=r"--large-images: .* is not a folder"):
        ServiceSettings(large_images=str(folder / "gone"))


def test_a_file_that_is_replaced_is_opened_again(tmp_path):
    path = tmp_path / os.fsdecode(b"m\xfcller.tif")  # not UTF-8
    write_tiff(path, draw([], (300, 200)), levels=1)
    with running_service(NOBODY, large_images=str(tmp_path)) as running:
        (image,) = running.http.get("/v1/large").json()["images"]
        assert image["name"] == "m\N{REPLACEMENT CHARACTER}ller.tif"
        first = running.http.get(f"/v1/large/{image['id']}").json()
        write_tiff(tmp_path / "new.tif", draw([], (400, 200)), levels=1)
        (tmp_path / "new.tif").replace(path)
        then = running.http.get(f"/v1/large/{image['id']}").json()
        assert (first["width"], then["width"]) == (300, 400)
        assert first["version"] != then["version"]  # with it, the page's browser does not reuse the first one's tiles
        path.unlink()
        problem(running.http.get(f"/v1/large/{image['id']}"), 404)


def test_without_the_option_there_is_nothing(service):
    assert service.http.get("/large").status_code == 404
    assert service.http.get("/v1/large").status_code == 404
    assert 'href="large" hidden' in service.http.get("/").text


# --- embeddings that lie beside large images: clicks need no encode, and stale ones are refused ----------------------

TILED = (1300, 700)


@pytest.fixture(scope="module")
def embedded(service_triton, tmp_path_factory):
    """A service, and its folder: a slide with the embeddings of its two tiles, and a link to embeddings outside."""
    base = tmp_path_factory.mktemp("large")
    inside = base / "inside"
    inside.mkdir()
    slide = write_tiff(inside / "slide.tif", draw([(260, 205, 600, 500), (1000, 300, 1100, 420)], TILED), levels=2)
    assert main(["large", str(slide), "--precompute", "-q", "--url", service_triton.grpc_url]) == 0
    shutil.copy(slide, inside / "link.tif")
    shutil.copytree(inside / "slide.tif.sam2.embeddings.zarr", base / "outside.zarr")
    (inside / "link.tif.sam2.embeddings.zarr").symlink_to(base / "outside.zarr")
    with running_service(service_triton.grpc_url, large_images=str(inside)) as running:
        yield running, inside


def click(embedded, name, *point, **options):
    service, _ = embedded
    body = {"points": [point], "format": "rle", **options}
    return service.http.post(f"/v1/large/{ids_of(service)[name]}/segment", json=body)


def test_embeddings_from_outside_are_refused(embedded):
    answer = click(embedded, "link.tif", 400, 350)
    assert answer.status_code == 422
    assert "link that leads out of the folder" in answer.json()["detail"]


def test_stale_embeddings_are_refused(embedded):
    """The folder is replaced meanwhile, as a user does it, and the service notices both faults and the repair."""
    _, folder = embedded
    path = folder / "slide.tif.sam2.embeddings.zarr"
    good = shutil.copytree(path, folder.parent / "good.zarr")
    root = zarr.open_group(path, mode="r+")
    own = dict(root.attrs["triton_sam"])

    def replaced(group, **attributes):
        shutil.rmtree(path)
        shutil.copytree(good, path)
        zarr.open_group(path, mode="r+")[group].attrs.update(attributes) if group else root.attrs.update(attributes)

    replaced("", triton_sam={**own, "weights": "0" * 32})
    answer = click(embedded, "slide.tif", 400, 350)
    assert (answer.status_code, answer.json()["code"]) == (422, "stale_embeddings")
    assert "other weights" in answer.json()["detail"]
    replaced("features/0", triton_sam_pixels="0" * 32)
    answer = click(embedded, "slide.tif", 400, 350)
    assert answer.status_code == 422
    assert "does not fit slide.tif: the pixels of tile 0" in answer.json()["detail"]
    assert click(embedded, "slide.tif", 1050, 350).status_code == 200
    shutil.rmtree(path)
    assert click(embedded, "slide.tif", 400, 350).json()["masks"][0]["region"] == [0, 0, 1024, 700]
