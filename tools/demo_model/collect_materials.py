#!/usr/bin/env python3
"""Collect cut-outs and photographs that packages carry, for train_images.py and held-out composites.

  apt-get download openclipart-png tuxpaint-stamps-default gnome-backgrounds
  for f in *.deb; do dpkg -x "$f" unpacked; done
  tools/demo_model/collect_materials.py --root unpacked --out runs/materials

Missing packages are left out: each adds variety, and none is required. The photographs of write_data_set.py, on
which models are evaluated, are never collected.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cv2
import numpy as np
from numpy.typing import NDArray

from tools.demo_model.materials import Material, Pixels, write_manifest
from tools.demo_model.write_data_set import hashes
from triton_sam._common.files import atomic_path
from triton_sam._common.process import run_program
from triton_sam.errors import ConfigurationError
from triton_sam.masks.boxes import mask_to_box

CUTOUT_SIDE, PHOTOGRAPH_SIDE = 320, 1280
"""Maximum side of a collected cut-out and of a collected photograph, in pixels."""

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
_MIN_SIDE = 48  # the outline of a smaller cut-out is useless for training
_FILL = (0.12, 0.93)  # share of its bounding box that the silhouette of a useful cut-out covers
_MAIN_SHARE = 0.8  # minimum share of the silhouette in one piece
_LONGEST = 5.0  # maximum ratio of length and width
_MIN_PHOTOGRAPH_SIDE = 256  # pixels
_MIN_DETAIL = 4.0  # minimum mean difference of neighbouring pixels at 256 px; gradients and plain surfaces have less
_SKIN_TONES = ("1f3fb", "1f3fc", "1f3fd", "1f3fe", "1f3ff")  # emoji that differ only in skin tone


@dataclass(frozen=True)
class Source:
    """A package with materials."""

    name: str
    kind: str
    licence: str
    folders: tuple[str, ...]
    nested: bool = True
    without: frozenset[str] = frozenset()
    min_bytes: int = 100_000


SOURCES = (
    Source("openclipart-png", "cutout", "public domain", ("usr/share/openclipart/png",)),
    Source(
        "@lobehub/fluent-emoji-3d", "cutout", "MIT", ("package/assets", "node_modules/@lobehub/fluent-emoji-3d/assets")
    ),
    Source(
        "tuxpaint-stamps-default",
        "cutout",
        "GPL-2+",
        ("usr/share/tuxpaint/stamps",),
        without=frozenset({"symbols", "roadsigns", "flags"}),
    ),
    Source(
        "wesnoth-1.16-data",
        "cutout",
        "GPL-2+",
        ("usr/share/games/wesnoth/1.16/data/core/images/portraits",),
    ),
    Source("plasma-workspace-wallpapers", "background", "GPL-2+", ("usr/share/wallpapers",)),
    Source("mate-backgrounds", "background", "GPL-2+, CC-BY-SA-4.0", ("usr/share/backgrounds/mate/nature",)),
    Source("gnome-backgrounds", "background", "CC-BY-SA-3.0", ("usr/share/backgrounds/gnome",)),
    Source(
        "ukui-wallpapers, lomiri-wallpapers",
        "background",
        "CC-BY-SA-3.0, CC-BY-SA-4.0, CC-BY-4.0, CC0",
        ("usr/share/backgrounds",),
        nested=False,
    ),
    Source(
        "scratch",  # rooms, streets, parks
        "background",
        "CC-BY-SA-3.0",
        ("usr/share/scratch/Media/Backgrounds",),
        min_bytes=10_000,
    ),
    Source("scikit-learn", "background", "CC-BY-2.0", ("sklearn/datasets/images",)),
    Source("scikit-image", "background", "CC0", ("skimage/data",)),
)
_ONLY = {"scikit-image": {"brick.png", "grass.png", "gravel.png", "hubble_deep_field.jpg"}}
"""Names of the usable files of a source. The other photographs of scikit-image are for evaluation."""


def collect(
    out: Path,
    roots: Iterable[Path],
    forbidden: frozenset[str] = frozenset(),
    limit: int = 3000,
    photographs: Iterable[Path] = (),
) -> list[Material]:
    """Copy the materials of all available sources to a folder, scaled down, and write its manifest.

    Returns:
        The materials, in the order of the manifest.
    """
    own = [_own_photographs(folder) for folder in photographs]
    out.mkdir(parents=True, exist_ok=True)
    roots = tuple(roots)
    materials: list[Material] = []
    seen = set(forbidden)  # shared, because the folder of one source may contain another's folder
    for source in SOURCES:
        materials += _collect_source(out, source, roots, seen, limit)
    for folder, source in own:
        materials += _collect_source(out, source, (folder,), seen, limit)
    if not materials:
        names = ", ".join(source.name for source in SOURCES)
        raise ConfigurationError(
            f"none of the packages {names} is there: install some, or give the folder of unpacked ones"
        )
    write_manifest(out, materials)
    return materials


def _own_photographs(folder: Path) -> tuple[Path, Source]:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder: give a folder of photographs")
    return folder, Source(folder.resolve().name, "background", "not stated", (".",), min_bytes=0)


def _collect_source(
    out: Path, source: Source, roots: tuple[Path, ...], seen: set[str], limit: int
) -> Iterator[Material]:
    """Yield the materials of a source whose hash is not in `seen`, and add their hashes."""
    taken = 0
    for origin, content in _files(source, roots):
        digest = hashlib.sha256(content).hexdigest()
        if digest in seen or taken >= limit:
            continue
        seen.add(digest)
        name = f"{source.kind}s/{digest[:20]}.{'png' if source.kind == 'cutout' else 'jpg'}"
        if not (out / name).is_file():
            decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
            pixels = None if decoded is None else _prepare(np.asarray(decoded), source.kind)
            if pixels is None:
                continue
            _write(out / name, pixels)
        taken += 1
        yield Material(name, source.kind, source.name, origin, source.licence, digest)


def _files(source: Source, roots: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) in a machine-independent order that mixes the source's subfolders."""
    for root in roots:
        for base in (root / folder for folder in source.folders):
            found = base.rglob("*") if source.nested else base.glob("*")
            files = [path for path in found if _is_usable(source, base, path)]
            for path in sorted(files, key=lambda path: _mixed(path.relative_to(base))):
                yield path.relative_to(base).as_posix(), path.read_bytes()
            if files:
                return


def _mixed(path: Path) -> str:
    return hashlib.sha256(path.as_posix().encode()).hexdigest()


def _is_usable(source: Source, base: Path, path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    if path.suffix.lower() not in _SUFFIXES:
        return False
    if not source.without.isdisjoint(path.relative_to(base).parts):
        return False
    if source.name in _ONLY and path.name not in _ONLY[source.name]:
        return False
    if source.kind == "cutout":
        return not any(tone in path.stem for tone in _SKIN_TONES)
    # Wallpapers have files in several sizes, such as 1920x1080.jpg. One is enough.
    in_sizes = re.match(r"\d+x\d", path.stem) is not None
    chosen = {"1920x1080", "5120x2880", "3840x2160"}
    return path.stat().st_size >= source.min_bytes and (not in_sizes or path.stem in chosen)


def _prepare(decoded: NDArray[np.generic], kind: str) -> Pixels | None:
    """Return the material in its stored form; None if it is unusable."""
    if decoded.dtype != np.uint8 or decoded.ndim not in (2, 3):
        return None
    pixels = np.asarray(decoded, np.uint8)
    return _prepare_cutout(pixels) if kind == "cutout" else _prepare_photograph(pixels)


def _prepare_cutout(pixels: Pixels) -> Pixels | None:
    """Trim a cut-out, uint8 (H, W, 4), to its silhouette and scale it down."""
    if pixels.ndim != 3 or pixels.shape[2] != 4:
        return None
    mask = pixels[..., 3] >= 128
    box = mask_to_box(mask)
    if box is None:
        return None
    pixels = pixels[box[1] : box[3], box[0] : box[2]]
    height, width = pixels.shape[:2]
    if min(height, width) < _MIN_SIDE or max(height, width) > _LONGEST * min(height, width):
        return None
    pixels = _scale(pixels, CUTOUT_SIDE)
    mask = pixels[..., 3] >= 128
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
    in_one_piece = stats[1:, cv2.CC_STAT_AREA].max(initial=0) >= _MAIN_SHARE * mask.sum()
    return pixels if in_one_piece and _FILL[0] <= mask.mean() <= _FILL[1] else None


def _prepare_photograph(pixels: Pixels) -> Pixels | None:
    """Scale a photograph down and drop its alpha; None for small photographs and plain surfaces."""
    if min(pixels.shape[:2]) < _MIN_PHOTOGRAPH_SIDE:
        return None
    colour = cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR) if pixels.ndim == 2 else pixels[..., :3]
    scaled = _scale(np.ascontiguousarray(colour, np.uint8), PHOTOGRAPH_SIDE)
    small = cv2.resize(scaled, (256, 256), interpolation=cv2.INTER_AREA).astype(np.float32)
    detail = float(np.abs(np.diff(small, axis=0)).mean() + np.abs(np.diff(small, axis=1)).mean())
    return scaled if detail >= _MIN_DETAIL else None


def _scale(pixels: Pixels, side: int) -> Pixels:
    factor = side / max(pixels.shape[:2])
    if factor >= 1:
        return pixels
    size = (max(1, round(pixels.shape[1] * factor)), max(1, round(pixels.shape[0] * factor)))
    return np.asarray(cv2.resize(np.ascontiguousarray(pixels), size, interpolation=cv2.INTER_AREA), np.uint8)


def _write(path: Path, pixels: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded, content = cv2.imencode(path.suffix, pixels)
    if not encoded:
        raise OSError(f"{path} cannot be encoded")
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.tobytes())


def main() -> int:
    """Collect the materials and print how many each package gave."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--out", type=Path, required=True, help="folder of the collected files and their manifest")
    add("--root", type=Path, action="append", metavar="DIR",
        help="folder of unpacked packages; repeat the option for more (default: /, the Debian system)")  # fmt: skip
    add("--photographs", type=Path, action="append", default=[], metavar="DIR",
        help="also collect the photographs in this folder and its subfolders; repeat the option for more")  # fmt: skip
    add("--limit", type=int, default=3000, help="maximum number of files of one package (default: 3000)")
    given = options.parse_args()
    collected = collect(given.out, given.root or [Path("/")], hashes(), given.limit, given.photographs)
    for source, number in Counter(material.source for material in collected).items():
        print(f"{number:6} {source}")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
