"""Collecting materials from unpacked packages: useful ones only, never those of the evaluation."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

pytest.importorskip("cv2")
import cv2
from support.materials import CLIPART, WALLPAPERS, draw_cutout, draw_photograph, qt_archive, write_packages

from triton_sam.scenes.collect import PHOTOGRAPH_SIDE, collect
from triton_sam.scenes.materials import read_manifest

pytestmark = pytest.mark.nightly  # code of tools


def test_cutouts_and_photographs_are_collected_with_their_licence(tmp_path):
    write_packages(tmp_path / "root")
    materials = collect(tmp_path / "out", [tmp_path / "nowhere", tmp_path / "root"])
    assert [material.kind for material in materials] == ["cutout"] * 4 + ["background"] * 3
    assert read_manifest(tmp_path / "out") == materials
    assert {material.licence for material in materials} == {"public domain", "GPL-2+, CC-BY-SA-4.0"}
    assert all((tmp_path / "out" / material.file).is_file() for material in materials)


def test_useless_files_are_left_out(tmp_path):
    write_packages(tmp_path, 1, 1)
    folder = tmp_path / CLIPART
    cv2.imwrite(str(folder / "opaque.png"), np.full((90, 90, 3), 9, np.uint8))
    cv2.imwrite(str(folder / "small.png"), draw_cutout(1, 30))
    cv2.imwrite(str(folder / "long.png"), np.full((60, 600, 4), 255, np.uint8))
    cv2.imwrite(str(folder / "empty.png"), np.zeros((90, 90, 4), np.uint8))
    (folder / "damaged.png").write_bytes(b"no image")
    (folder / "link.png").symlink_to(folder / "0.png")
    (tmp_path / WALLPAPERS / "preview.png").write_bytes(b"too small for a photograph")
    plain = np.random.default_rng(0).integers(100, 102, (600, 600, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / WALLPAPERS / "plain.png"), plain)
    assert (tmp_path / WALLPAPERS / "plain.png").stat().st_size > 100_000
    assert [material.path for material in collect(tmp_path / "out", [tmp_path])] == ["0.png", "0.png"]


def test_large_photographs_are_scaled_down(tmp_path):
    write_packages(tmp_path, 1, 0)
    large = np.kron(np.random.default_rng(0).integers(0, 256, (50, 100, 3)), np.ones((20, 20, 1)))
    cv2.imwrite(str(tmp_path / WALLPAPERS / "large.jpg"), large.astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 95])
    material = collect(tmp_path / "out", [tmp_path])[-1]
    assert cv2.imread(str(tmp_path / "out" / material.file)).shape == (PHOTOGRAPH_SIDE // 2, PHOTOGRAPH_SIDE, 3)


def test_forbidden_files_are_never_collected(tmp_path):
    write_packages(tmp_path, 2, 2)
    forbidden = hashlib.sha256((tmp_path / WALLPAPERS / "1.png").read_bytes()).hexdigest()
    materials = collect(tmp_path / "out", [tmp_path], frozenset([forbidden]))
    assert [material.path for material in materials if material.kind == "background"] == ["0.png"]


def test_photographs_of_qt_archives_are_collected(tmp_path):
    folder = tmp_path / "usr/share/gcompris-qt/rcc"
    folder.mkdir(parents=True)
    encoded = [cv2.imencode(".webp", draw_photograph(number))[1].tobytes() for number in range(3)]
    images = {"a.webp": encoded[0], "b.webp": encoded[1], "click.ogg": encoded[2], "small.webp": b"icon"}
    (folder / "erase.rcc").write_bytes(qt_archive(images))
    (folder / "chess.rcc").write_bytes(qt_archive({"c.webp": encoded[2]}))
    materials = collect(tmp_path / "out", [tmp_path])
    assert [material.path for material in materials] == ["erase.rcc/images/a.webp", "erase.rcc/images/b.webp"]
    assert materials[0].sha256 == hashlib.sha256(encoded[0]).hexdigest()


def test_a_folder_of_photographs_is_a_source(tmp_path):
    own = tmp_path / "mine"
    (own / "trip").mkdir(parents=True)
    cv2.imwrite(str(own / "20240101_x.png"), draw_photograph(1))
    cv2.imwrite(str(own / "trip" / "a.jpg"), draw_photograph(2))
    cv2.imwrite(str(own / "plain.png"), np.zeros((300, 300, 3), np.uint8))
    materials = collect(tmp_path / "out", [tmp_path / "nowhere"], photographs=[own])
    assert {(material.source, material.path, material.licence) for material in materials} == {
        ("mine", "20240101_x.png", "not stated"), ("mine", "trip/a.jpg", "not stated")
    }  # fmt: skip
