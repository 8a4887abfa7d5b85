"""Embeddings of tiles: micro-sam's layout, processes that are killed, and files that are damaged or do not fit."""

import hashlib
import json
import random
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr
from support.commands import with_support
from support.contents import files_below
from support.large_images import SIZE, TileClient, draw, write_tiff

from triton_sam.client.server_models import EncoderIdentity
from triton_sam.errors import ConfigurationError, InputError
from triton_sam.tiles import LargeImageClient, open_large_image, precompute
from triton_sam.tiles.parts import Blocks
from triton_sam.tiles.pyramid import Level
from triton_sam.tiles.stored import StoredTiles, signature_of, stretched

OBJECTS = [(1510, 905, 1700, 1300), (60, 60, 100, 90), (2900, 2100, 3000, 2200)]


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    return write_tiff(tmp_path_factory.mktemp("slide") / "slide.tif", draw(OBJECTS))


@pytest.fixture(scope="module")
def stored(slide):
    path = slide.with_name("stored.zarr")
    with open_large_image(slide) as image:
        precompute(TileClient(), image, path, micro_sam="vit_b_lm")
    return path


def features_of(pixels):
    return TileClient().encode_here(pixels)["image_embeddings"]


def test_the_layout_is_that_of_micro_sam(slide, stored):
    """Read in the words of micro_sam.util: _check_saved_embeddings() and set_precomputed()."""
    pixels, root = draw(OBJECTS), zarr.open(stored, mode="r")
    assert root.metadata.zarr_format == 2
    expected = {
        "data_signature": hashlib.sha1(pixels.tobytes(), usedforsecurity=False).hexdigest(),
        "tile_shape": [768, 768],
        "halo": [128, 128],
        "model_type": "vit_b",
        "model_name": "vit_b_lm",
        "input_size": None,
        "original_size": None,
    }
    assert {name: root.attrs[name] for name in expected} == expected
    features = root["features"]
    assert features.attrs["shape"] == [SIZE[1], SIZE[0]]
    assert (features.attrs["tile_shape"], features.attrs["halo"]) == ([768, 768], [128, 128])
    assert sorted(features.array_keys(), key=int) == [str(number) for number in range(12)]
    number = 0
    for top in range(0, SIZE[1], 768):
        for left in range(0, SIZE[0], 768):
            part = pixels[max(0, top - 128) : top + 896, max(0, left - 128) : left + 896]
            tile = features[str(number)]
            assert (tile.shape, tile.dtype, tile.chunks) == ((1, 256, 64, 64), np.float32, (1, 256, 64, 64))
            np.testing.assert_array_equal(tile[:], features_of(part))
            assert tile.attrs["original_size"] == list(part.shape[:2])
            assert max(tile.attrs["input_size"]) == 1024
            number += 1


def test_the_signature_is_computed_in_strips_of_limited_bytes(monkeypatch):
    values = np.random.default_rng(1).integers(0, 9999, (50, 30, 40), dtype=np.uint16)
    sizes = []

    def read(x1, y1, x2, y2):
        sizes.append(values[y1:y2, x1:x2].nbytes)
        return values[y1:y2, x1:x2]

    monkeypatch.setattr("triton_sam.tiles.stored._STRIP", 20_000)
    assert signature_of(Level((30, 50), read)) == hashlib.sha1(values.tobytes(), usedforsecurity=False).hexdigest()
    assert max(sizes) <= 20_000


def test_every_point_lies_in_a_block_with_its_surroundings():
    for size in ((1, 1), (100, 1), (257, 300), (1024, 768)):
        blocks = Blocks.of_tiles(size, 128, 32)
        for x in range(0, size[0], 7):
            for y in range(0, size[1], 7):
                x1, y1, x2, y2 = blocks.region(blocks.at(x, y))
                assert min(x - x1, 16) == (min(16, x))
                assert min(y - y1, 16) == (min(16, y))
                assert x2 - x > (15 if x2 < size[0] else 0)
                assert y2 - y > (15 if y2 < size[1] else 0)
        assert blocks.region(len(blocks) - 1)[2:] == size


def test_clicks_encode_what_is_not_stored(slide, stored, tmp_path):
    folder, client = shutil.copytree(stored, tmp_path / "stored.zarr"), TileClient()
    shutil.rmtree(folder / "features/0")
    with open_large_image(slide) as image:
        large = LargeImageClient(client, image, embeddings=folder)
        client.encoded.clear()
        (found,) = large.segment([[1600, 1000]])
        assert found.region == (1408, 640, 2432, 1664)
        assert client.encoded == []
        large.segment([[80, 80]])
        large.segment([[1600, 1000]], view=(1000, 500, 2000, 1500))
        assert len(client.encoded) == 2
        large.segment(box=[100, 100, 2900, 2000])
        assert len(client.encoded) == 3


@pytest.mark.parametrize("level", [1, 2])
def test_tiles_of_a_smaller_level(level, slide, tmp_path):
    client = TileClient()
    with open_large_image(slide) as image:
        folder = precompute(client, image, tmp_path / "stored.zarr", level=level, tile=256, overlap=64)
        assert (folder.level, folder.length) == (level, 256 << level)
        large = LargeImageClient(client, image, embeddings=folder.path)
        client.encoded.clear()
        (found,) = large.segment([[1600, 1000]], enlarge=0)
        assert client.encoded == []
        x1, y1, x2, y2 = found.region
        assert x1 < 1600 < x2
        assert y1 < 1000 < y2
        assert found.scale == (1 << level, 1 << level)
        with pytest.raises(ConfigurationError, match="holds embeddings with other level: give another folder"):
            precompute(client, image, folder.path, tile=256, overlap=64)


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=[pytest.mark.slow, pytest.mark.nightly])]
)
def test_a_killed_process_leaves_whole_tiles(kills, slide, stored, tmp_path):
    """Each process is killed at a random moment after a few more tiles; the last one ends."""
    folder, chance = tmp_path / "stored.zarr", random.Random(kills)
    words = ["large", str(slide), "--model", "sam1", "--precompute", "--tile", "512", "--overlap", "128", "-q"]
    command = [sys.executable, "-m", "support.large_run", *words, "--embeddings", str(folder)]
    total = 8 * 6
    for _ in range(kills):
        before = len(list(folder.glob("features/[0-9]*")))
        with subprocess.Popen(command, env=with_support(TILES="4")) as process:
            while process.poll() is None and len(list(folder.glob("features/[0-9]*"))) < before + 2:
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
        assert process.returncode == -9
        tiles = list(folder.glob("features/[0-9]*"))
        assert before <= len(tiles) < total
        with open_large_image(slide) as image:
            partial = StoredTiles(folder, image)
            for tile in tiles[-3:]:
                window = partial.window(int(tile.name))
                np.testing.assert_array_equal(
                    partial.embeddings(int(tile.name), "sam1_encoder")["image_embeddings"], features_of(window.pixels)
                )
    assert subprocess.run(command, env=with_support(), check=False).returncode == 0
    with open_large_image(slide) as image:
        precompute(TileClient(), image, tmp_path / "whole.zarr", tile=512, overlap=128)
    assert files_below(folder) == files_below(tmp_path / "whole.zarr")


def test_another_run_does_not_mix(slide, stored):
    with open_large_image(slide) as image:
        for path, family, options, message in (
            (
                stored,
                "sam1",
                {"tile": 512, "overlap": 128, "micro_sam": "vit_b_lm"},
                "holds embeddings with other tile_shape, halo",
            ),
            (slide.parent, "sam1", {}, "holds other files"),
            (slide, "sam1", {}, "is a file"),
            (stored, "sam1", {"level": 3}, "level must be 0 to 2"),
            (stored, "sam1", {"overlap": 600}, "overlap must be 0 to 512"),
            (stored, "sam2", {"micro_sam": "vit_b"}, "micro-sam has no model of sam2"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                precompute(TileClient(family=family), image, path, **options)


def test_damage_is_one_clear_error(slide, stored, tmp_path):
    with open_large_image(slide) as image:
        with pytest.raises(InputError, match="there are no embeddings"):
            StoredTiles(tmp_path / "none", image)
        (tmp_path / "other").mkdir()
        with pytest.raises(InputError, match="is not a Zarr folder"):
            StoredTiles(tmp_path / "other", image)
        zarr.open_group(tmp_path / "empty", mode="w")
        with pytest.raises(InputError, match="has no embeddings of an image"):
            StoredTiles(tmp_path / "empty", image)
        folder = shutil.copytree(stored, tmp_path / "damaged")
        (folder / "features/0/0.0.0.0").write_bytes(b"damaged")
        with pytest.raises(InputError, match=r"tile 0 of .* is damaged"):
            StoredTiles(folder, image).embeddings(0, "sam1_encoder")
        (folder / "features/.zattrs").write_text(json.dumps({"shape": [1, 2], "tile_shape": [0, 0], "halo": "x"}))
        with pytest.raises(InputError, match="has no embeddings of an image"):
            StoredTiles(folder, image)
    small = write_tiff(tmp_path / "small.tif", draw([], (300, 200)), levels=1)
    with open_large_image(small) as image, pytest.raises(InputError, match="3000 x 2200 pixels, and no level"):
        StoredTiles(stored, image)


def write_as_micro_sam(path, values, tile, halo=0):
    """Write what micro_sam.util.precompute_image_embeddings() writes with zarr 3, by an encoder of TileClient."""
    root = zarr.open(path, mode="a")
    if tile is None:
        array = root.create_array("features", shape=(1, 256, 64, 64), chunks=(1, 256, 64, 64), dtype=np.float32)
        array[:] = features_of(stretched(values))
    else:
        features, number = root.require_group("features"), 0
        features.attrs.update({"shape": values.shape[:2], "tile_shape": (tile, tile), "halo": (halo, halo)})
        for top in range(0, values.shape[0], tile):
            for left in range(0, values.shape[1], tile):
                part = values[max(0, top - halo) : top + tile + halo, max(0, left - halo) : left + tile + halo]
                array = features.create_array(str(number), shape=(1, 256, 64, 64), chunks=(1, 256, 64, 64), dtype="f4")
                array[:] = features_of(stretched(part))
                array.attrs["original_size"] = part.shape[:2]
                number += 1
    root.attrs.update(
        {
            "data_signature": hashlib.sha1(np.asarray(values).tobytes(), usedforsecurity=False).hexdigest(),
            "tile_shape": tile and [tile, tile],
            "halo": tile and [halo, halo],
            "model_type": "vit_b",
            "input_size": None if tile else (1024, 1024),
            "original_size": None if tile else values.shape[:2],
        }
    )


@pytest.mark.parametrize("tile", [384, None])
@pytest.mark.parametrize("kind", ["grey16", "rgb"])
def test_files_of_micro_sam_are_read(tile, kind, tmp_path):
    pixels = draw([(300, 350, 420, 500)], (1000, 800))
    values = pixels if kind == "rgb" else pixels[:, :, 0].astype(np.uint16) * 17
    write_as_micro_sam(tmp_path / "micro.zarr", values, tile, 64)
    with open_large_image(write_tiff(tmp_path / "slide.tif", values, levels=1)) as image:
        client = TileClient()
        large = LargeImageClient(client, image, embeddings=tmp_path / "micro.zarr")
        assert len(client.encoded) == 2  # the fixed image, and one tile that shows whether the encoders agree
        client.encoded.clear()
        (found,) = large.segment([[350, 400]], enlarge=0)
        assert client.encoded == []
        x1, y1, x2, y2 = found.region
        part = stretched(values[y1:y2, x1:x2])
        np.testing.assert_array_equal(client.decoded, features_of(part))
        assert found.region == ((0, 320, 448, 800) if tile else (0, 0, 1000, 800))
        with pytest.raises(ConfigurationError, match="other weights"):
            LargeImageClient(TileClient(seed=3), image, embeddings=tmp_path / "micro.zarr")
        with pytest.raises(ConfigurationError, match="not by sam2_encoder"):
            LargeImageClient(TileClient(family="sam2"), image, embeddings=tmp_path / "micro.zarr")
    values[700, 900] += 1
    with (
        open_large_image(write_tiff(tmp_path / "slide.tif", values, levels=1)) as image,
        pytest.raises(InputError, match="the pixels of the image have changed"),
    ):
        StoredTiles(tmp_path / "micro.zarr", image)


def test_marks_are_compared_where_both_sides_have_one(slide, stored):
    with open_large_image(slide) as image:
        tiles = StoredTiles(stored, image)
        assert not tiles.check_encoder(EncoderIdentity("sam1", "sam1_encoder", "a"))
