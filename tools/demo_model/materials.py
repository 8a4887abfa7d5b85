"""A folder of collected materials with a manifest: cut-outs with exact alpha, and photographs as backgrounds.

`collect_materials.py` writes the folder. One material in `HELD_OUT_SHARE` is held out, by the hash of its source, so
that held-out scenes contain only cut-outs and backgrounds that are not used for training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from triton_sam._common import strict_json
from triton_sam._common.files import atomic_write
from triton_sam.errors import ConfigurationError

MANIFEST = "manifest.json"
HELD_OUT_SHARE = 16
"""One in this number of materials is held out."""

_VERSION = 1
_SOURCE_POWER = {"cutout": 0.4, "background": 1.0}
"""With a power below 1, cut-outs of small sources are more frequent than their share, because photographs are few."""
_CACHED_PHOTOGRAPHS, _CACHED_CUTOUTS = 24, 512

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Material:
    """An entry of the manifest."""

    file: str
    kind: str
    source: str
    path: str
    licence: str
    sha256: str

    @property
    def held_out(self) -> bool:
        """Whether only held-out scenes may show this material."""
        return int(self.sha256[:8], 16) % HELD_OUT_SHARE == 0


def write_manifest(folder: Path, materials: list[Material]) -> None:
    """Write the manifest of a folder atomically."""
    content = {"version": _VERSION, "materials": [asdict(material) for material in materials]}
    atomic_write(folder / MANIFEST, strict_json.dumps(content, indent=0).encode())


def read_manifest(folder: Path) -> list[Material]:
    """Return the materials of a folder."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        return [Material(**entry) for entry in content["materials"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}): write it with tools/demo_model/collect_materials.py --out {folder}"
        ) from error


class Materials:
    """The materials of a folder, either the held-out ones or the others."""

    def __init__(self, folder: Path, held_out: bool = False) -> None:
        chosen = [material for material in read_manifest(folder) if material.held_out == held_out]
        self._files = {kind: _by_source(folder, chosen, kind) for kind in ("cutout", "background")}
        for kind, sources in self._files.items():
            if not sources:
                share = "held-out " if held_out else ""
                raise ConfigurationError(f"{folder} contains no {share}{kind}: collect more materials")
        # lru_cache on a method would keep the folder alive forever.
        self._cutout = lru_cache(_CACHED_CUTOUTS)(lambda path: _read(path, 4))
        self._photograph = lru_cache(_CACHED_PHOTOGRAPHS)(lambda path: _read(path, 3))

    def cutout(self, rng: np.random.Generator) -> Pixels:
        """Return a random cut-out: uint8 (h, w, 4), RGB and alpha, trimmed to its silhouette."""
        return self._choose(rng, "cutout", self._cutout)

    def photograph(self, rng: np.random.Generator, shape: tuple[int, int]) -> Pixels:
        """Return a random part of a background, randomly flipped: uint8 (H, W, 3), RGB, of the given shape."""
        whole = self._choose(rng, "background", self._photograph)
        scale = max(shape[0] / whole.shape[0], shape[1] / whole.shape[1])  # of the largest part that fits
        zoom = scale * float(np.exp(rng.uniform(0, np.log(3.0))))
        height, width = (max(1, min(n, round(side / zoom))) for n, side in zip(whole.shape, shape, strict=False))
        top = int(rng.integers(whole.shape[0] - height + 1))
        left = int(rng.integers(whole.shape[1] - width + 1))
        part = whole[top : top + height, left : left + width]
        how = cv2.INTER_AREA if height > shape[0] else cv2.INTER_LINEAR
        resized = np.asarray(cv2.resize(part, (shape[1], shape[0]), interpolation=how), np.uint8)
        return np.ascontiguousarray(resized[:, ::-1]) if rng.random() < 0.5 else resized

    def _choose(self, rng: np.random.Generator, kind: str, read: Callable[[str], Pixels]) -> Pixels:
        sources = self._files[kind]
        weights = np.array([len(files) for files in sources]) ** _SOURCE_POWER[kind]
        files = sources[int(rng.choice(len(sources), p=weights / weights.sum()))]
        return read(files[int(rng.integers(len(files)))])


def _by_source(folder: Path, materials: list[Material], kind: str) -> list[list[str]]:
    """Return the files of each source that has materials of a kind."""
    sources: dict[str, list[str]] = {}
    for material in materials:
        if material.kind == kind:
            sources.setdefault(material.source, []).append(str(folder / material.file))
    return list(sources.values())


def _read(path: str, channels: int) -> Pixels:
    content = cv2.imread(path, cv2.IMREAD_UNCHANGED if channels == 4 else cv2.IMREAD_COLOR)
    if content is None or content.ndim != 3 or content.shape[2] != channels:
        raise ConfigurationError(f"{path} cannot be read: collect the materials again")
    order = [2, 1, 0, 3][:channels]
    return np.ascontiguousarray(content[..., order], dtype=np.uint8)
