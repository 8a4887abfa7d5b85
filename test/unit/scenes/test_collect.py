"""Collecting materials from unpacked packages: useful ones only, never those of the evaluation."""

from __future__ import annotations

import hashlib

import pytest

pytest.importorskip("cv2")
import cv2
from support.materials import WALLPAPERS, draw_photograph, qt_archive, write_packages

from triton_sam.scenes.collect import collect
from triton_sam.scenes.materials import read_manifest

pytestmark = pytest.mark.nightly  # code of tools


def test_cutouts_and_photographs_are_collected_with_their_licence(tmp_path):
    write_packages(tmp_path / "root")
    materials = collect(tmp_path / "out", [tmp_path / "nowhere", tmp_path / "root"])
    assert [material.kind for material in materials] == ["cutout"] * 4 + ["background"] * 3
    assert read_manifest(tmp_path / "out") == materials
    assert {material.licence for material in materials} == {"public domain", "GPL-2+, CC-BY-SA-4.0"}
    assert all((tmp_path / "out" / material.file).is_file() for material in materials)


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
