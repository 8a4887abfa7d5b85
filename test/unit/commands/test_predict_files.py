"""Files that `triton-sam predict` reads: images by patterns and URLs, and the logits of an earlier call."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.file_server import Server

from triton_sam.commands._predict_files import read_logits, read_sources
from triton_sam.errors import ConfigurationError, ImageError, PromptError


def saved(path: Path, array: np.ndarray) -> bytes:
    np.save(path, array)
    return path.read_bytes()


def test_logits_are_read_as_float32(tmp_path: Path) -> None:
    saved(tmp_path / "x.npy", np.ones((1, 1, 4, 4), np.float64))
    assert read_logits(tmp_path / "x.npy").dtype == np.float32


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x93NUMPY", b"PK\x03\x04xx"),  # zipfile.BadZipFile
        (b"(1, 1, 4, 4), }", b"(1, 1, 4, (4), "),  # tokenize.TokenError
        (b"(1, 1, 4, 4)", b"(9**9, 9**9)"),
        (b"4, 4), }       ", b"4, 4000000000),}"),  # MemoryError
        (b"\x93NUMPY", b"number"),
    ],
)
def test_a_damaged_file_of_logits_is_one_clear_error(old: bytes, new: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(saved(path, np.ones((1, 1, 4, 4), np.float32)).replace(old, new, 1))
    with pytest.raises(
        PromptError, match=re.escape(f"cannot read the logits in {path}: it is not an .npy file of numbers")
    ):
        read_logits(path)


def test_a_missing_file_and_an_archive_are_told(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="No such file or directory"):
        read_logits(tmp_path / "none.npy")
    np.savez(tmp_path / "two.npz", np.ones(3))
    with pytest.raises(PromptError, match="holds no logits"):
        read_logits(tmp_path / "two.npz")


def test_a_pattern_in_a_folder_with_brackets_finds_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "day [1]"
    folder.mkdir()
    for name in ("a.png", "b [2].png"):
        (folder / name).touch()
    found = read_sources([str(folder / "*.png")])
    assert [source.file_name for source in found] == ["a.png", "b [2].png"]
    assert [source.file_name for source in read_sources([str(folder / "b [2].png")])] == ["b [2].png"]
    with pytest.raises(ImageError, match=r"no file fits this pattern. For a \[ in the name of a file, write \[\[\]"):
        read_sources([str(folder / "c [2]*.png")])


def test_a_url_is_an_image_with_the_name_of_its_file(images: Path) -> None:
    """test/unit/download/test_images.py has the failures of such a download."""
    with Server() as server, server.running():
        server.content, server.where = (images / "shapes.jpg").read_bytes(), "/a/shapes.jpg?size=large"
        url = server.url + server.where
        [source] = read_sources([url])
        assert (source.content, source.file_name, source.stem) == (server.content, "shapes.jpg", "shapes")
        with pytest.raises(ConfigurationError, match="named twice"):
            read_sources([url, url])


def test_a_file_url_is_the_path_that_it_names(tmp_path: Path) -> None:
    spaced = tmp_path / "two words.jpg"
    spaced.touch()
    [source] = read_sources([spaced.as_uri()])
    assert (source.name, source.content) == (str(spaced), spaced)  # the name is what --out must not overwrite
    with pytest.raises(ConfigurationError, match="named twice"):
        read_sources([spaced.as_uri(), str(spaced)])
    with pytest.raises(ImageError, match="another machine"):
        read_sources(["file://elsewhere/photo.jpg"])
