"""Embeddings that lie beside large images: the service answers clicks without an encode, and refuses stale ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("tifffile")
pytest.importorskip("zarr")

import zarr
from support.large_images import draw, write_tiff
from support.running_service import running_service
from support.session_requests import encoded

from triton_sam import SAM2TritonClient
from triton_sam.cli import main
from triton_sam.masks import rle_to_mask
from triton_sam.tiles import LargeImageClient, open_large_image
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

HOUSE = (260, 205, 600, 500)
SIZE = (1300, 700)
REGIONS = [[0, 0, 896, 700], [640, 0, 1300, 700]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, service_triton: Any) -> Path:
    """A slide with the embeddings of its two tiles, and a link to embeddings outside of the folder."""
    base = tmp_path_factory.mktemp("large")
    inside = base / "inside"
    inside.mkdir()
    slide = write_tiff(inside / "slide.tif", draw([HOUSE, (1000, 300, 1100, 420)], SIZE), levels=2)
    assert main(["large", str(slide), "--precompute", "-q", "--url", service_triton.grpc_url]) == 0
    shutil.copy(slide, inside / "link.tif")
    shutil.copytree(inside / "slide.tif.sam2.embeddings.zarr", base / "outside.zarr")
    (inside / "link.tif.sam2.embeddings.zarr").symlink_to(base / "outside.zarr")
    return inside


@pytest.fixture(scope="module")
def large(service_triton: Any, folder: Path) -> Iterator[Any]:
    with running_service(service_triton.grpc_url, large_images=str(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def ids(large: Any) -> dict[str, str]:
    return {each["name"]: each["id"] for each in large.http.get("/v1/large").json()["images"]}


def click(large: Any, image: str, *point: int, **options: Any) -> Any:
    return large.http.post(f"/v1/large/{image}/segment", json={"points": [point], "format": "rle", **options})


@pytest.mark.slow
def test_clicks_need_no_encoder(large: Any, ids: dict[str, str], folder: Path, service_triton: Any) -> None:
    assert list(ids) == ["link.tif", "slide.tif"], "embeddings are no images"
    transport = Transport(parse_url(service_triton.http_url))
    before = encoded(transport)
    found = [click(large, ids["slide.tif"], x, 350).json()["masks"][0] for x in (400, 1050, 450)]
    assert [each["region"] for each in found] == [*REGIONS, REGIONS[0]]
    assert encoded(transport) == before
    with open_large_image(folder / "slide.tif") as image, SAM2TritonClient(service_triton.http_url) as client:
        wanted = LargeImageClient(client, image).segment([[400, 350]], view=tuple(REGIONS[0]))[0]
    np.testing.assert_array_equal(rle_to_mask(found[0]["rle"]), wanted.mask)
    assert found[0]["score"] == pytest.approx(wanted.score, abs=1e-5)
    assert click(large, ids["slide.tif"], 400, 350, scale=4).json()["masks"][0]["region"] == [0, 0, *SIZE]
    transport.close()


def test_embeddings_from_outside_are_refused(large: Any, ids: dict[str, str]) -> None:
    answer = click(large, ids["link.tif"], 400, 350)
    assert answer.status_code == 422
    assert "link that leads out of the folder" in answer.json()["detail"]


def test_stale_embeddings_are_refused(large: Any, ids: dict[str, str], folder: Path) -> None:
    """The folder is replaced meanwhile, as a user does it, and the service notices both faults and the repair."""
    path = folder / "slide.tif.sam2.embeddings.zarr"
    good = shutil.copytree(path, folder.parent / "good.zarr")
    root = zarr.open_group(path, mode="r+")
    own = dict(root.attrs["triton_sam"])

    def replaced(group: str, **attributes: Any) -> None:
        shutil.rmtree(path)
        shutil.copytree(good, path)
        zarr.open_group(path, mode="r+")[group].attrs.update(attributes) if group else root.attrs.update(attributes)

    replaced("", triton_sam={**own, "weights": "0" * 32})
    answer = click(large, ids["slide.tif"], 400, 350)
    assert (answer.status_code, answer.json()["code"]) == (422, "stale_embeddings")
    assert "other weights" in answer.json()["detail"]
    replaced("features/0", triton_sam_pixels="0" * 32)
    answer = click(large, ids["slide.tif"], 400, 350)
    assert answer.status_code == 422
    assert "does not fit slide.tif: the pixels of tile 0" in answer.json()["detail"]
    assert click(large, ids["slide.tif"], 1050, 350).status_code == 200
    shutil.rmtree(path)
    assert click(large, ids["slide.tif"], 400, 350).json()["masks"][0]["region"] == [0, 0, 1024, 700]
