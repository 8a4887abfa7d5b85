"""Embeddings of tiles, computed ahead, on a real Triton: clicks need no encoder, and their masks stay the same."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.session_requests import encoded

from triton_sam.cli import main
from triton_sam.errors import ConfigurationError
from triton_sam.tiles import LargeImageClient, open_large_image

tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")

TILES = ["--tile", "640", "--overlap", "128"]
"""Blocks of 512 pixels, with 64 around each."""
COUNT = 6
CLICKS = [(100, 90), (700, 300), (1100, 200), (200, 700), (600, 790), (1150, 600)]
"""One for each tile."""


@pytest.fixture(scope="module")
def slide(images, tmp_path_factory):
    with Image.open(images / "shapes.jpg") as shapes:
        pixels = np.asarray(shapes.convert("RGB").resize((1200, 800)))
    path = tmp_path_factory.mktemp("slide") / "slide.tif"
    tifffile.imwrite(path, pixels, photometric="rgb", tile=(256, 256))
    return path


@pytest.fixture(scope="module")
def stored(slide, server):
    """The folder that the command has written."""
    assert main(["large", str(slide), "--precompute", *TILES, "-q", "--url", server.http_url]) == 0
    return slide.with_name("slide.tif.sam2.embeddings.zarr")


@pytest.mark.slow
def test_clicks_need_no_encoder_and_give_the_same_masks(slide, stored, http_client, transport):
    with open_large_image(slide) as image:
        far, near = LargeImageClient(http_client, image), LargeImageClient(http_client, image, embeddings=stored)
        before = encoded(transport)
        found = [near.segment([click], enlarge=0, multimask_output=True) for click in CLICKS]
        boxed = near.segment(box=[40, 40, 260, 240], enlarge=0)
        assert encoded(transport) == before
        assert len({objects[0].region for objects in found}) == COUNT
        for click, objects in zip(CLICKS, found, strict=True):
            wanted = far.segment([click], view=objects[0].region, multimask_output=True)
            for one, other in zip(objects, wanted, strict=True):
                np.testing.assert_array_equal(one.mask, other.mask)
                assert (one.region, one.score) == (other.region, pytest.approx(other.score, abs=1e-5))
        assert boxed[0].region == found[0][0].region
        wait_until(lambda: encoded(transport) == before + COUNT)


def test_the_command_uses_them_and_goes_on(slide, stored, server, transport, tmp_path):
    url = ["-q", "--url", server.http_url]
    click = ["large", str(slide), "--point", "300,250", "--embeddings"]
    before = encoded(transport)
    assert main([*click, *url, "--out", str(tmp_path / "cell.geojson")]) == 0
    assert json.loads((tmp_path / "cell.geojson").read_text())["features"]
    folder = shutil.copytree(stored, tmp_path / "other")
    again = ["large", str(slide), "--precompute", *TILES, "--embeddings", str(folder), *url]
    assert main(again) == 0
    after = encoded(transport)
    assert after <= before + 2  # the fixed image, and a larger part around an object on a border
    for number in (1, 4):
        shutil.rmtree(folder / "features" / str(number))
    assert main(again) == 0
    wait_until(lambda: encoded(transport) - after in (2, 3))
    for number in range(COUNT):
        for group in ("features", "high_res_feats_0", "high_res_feats_1"):
            one, other = (zarr.open_array(each / group / str(number), mode="r") for each in (stored, folder))
            np.testing.assert_array_equal(one[:], other[:])


def test_other_weights_are_refused(slide, stored, http_client, tmp_path):
    """By the mark of the weights, or, where there is none, by what the encoder makes of a tile."""
    folder = shutil.copytree(stored, tmp_path / "copy")
    root = zarr.open_group(folder, mode="r+")
    own = dict(root.attrs["triton_sam"])
    with open_large_image(slide) as image:
        root.attrs["triton_sam"] = {**own, "weights": "0" * 32}
        with pytest.raises(ConfigurationError, match="other weights than those of sam2_encoder"):
            LargeImageClient(http_client, image, embeddings=folder)
        root.attrs["triton_sam"] = {**own, "weights": None}
        LargeImageClient(http_client, image, embeddings=folder)
        array = root["features/0"]
        array[:] = array[:][:, ::-1]
        with pytest.raises(ConfigurationError, match="other weights than those of sam2_encoder"):
            LargeImageClient(http_client, image, embeddings=folder)
        root.attrs["triton_sam"] = {**own, "encoder": "sam2.1_large_encoder"}
        with pytest.raises(ConfigurationError, match="not by sam2_encoder"):
            LargeImageClient(http_client, image, embeddings=folder)
