"""Precomputes the embeddings of an image's tiles, so that clicks need no encode. The same call resumes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .._common.extras import missing
from .._common.files import locked
from ..client.server_models import FIXED_IMAGE, EncoderIdentity
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError
from ..families import get_family
from ..families.sam1 import SAM1
from ..inputs.embeddings import ImageEmbeddings
from .folders import FEATURES
from .parts import SIDE, Blocks
from .pyramid import LargeImage
from .stored import OWN, PIXELS, StoredTiles, group_of, hash_of, signature_of

THREADS = 2
"""Concurrent tiles: while the server encodes one tile, another is read or written."""
_NEW = ".new-"


def precompute(
    client: SamTritonClient,
    image: LargeImage,
    path: str | os.PathLike[str],
    *,
    tile: int = SIDE,
    overlap: int = 256,
    level: int = 0,
    micro_sam: str | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> StoredTiles:
    """Compute the embeddings of all tiles of a level and write them to a folder. Existing tiles are kept.

    Tiles are written atomically, even if the process is killed.

    Args:
        path: the folder, whose parent must exist. `stored` describes its layout.
    """
    chosen = image.level_at(level)
    if micro_sam is not None and client.family.name != SAM1.name:
        raise ConfigurationError(f"micro-sam has no model of {client.family.name}: leave its name out")
    blocks = Blocks.of_tiles(chosen.size, tile, overlap)
    known = EncoderIdentity.of(client.encode(FIXED_IMAGE))
    own = {"family": known.family, "encoder": known.encoder, "weights": known.weights}
    folder = _Folder(Path(path))
    with folder.opened(_attributes(blocks, own, micro_sam), blocks):
        stored = StoredTiles(folder.path, image)
        _fill(stored, folder, client, progress)
        folder.finish(lambda: signature_of(image.levels[level]))
    return stored


def _attributes(blocks: Blocks, own: dict[str, Any], micro_sam: str | None) -> dict[str, Any]:
    """Return the attributes of the folder that are constant for all tiles."""
    name = micro_sam or own["encoder"]
    return {
        "tile_shape": [*reversed(blocks.block)],
        "halo": [*reversed(blocks.halo)],
        "model_type": name[: len("vit_b")] if micro_sam else name,
        "model_name": name,
        "model_hash": own["weights"],
        OWN: own,
    }


def _fill(stored: StoredTiles, folder: _Folder, client: SamTritonClient, progress: Callable[[int, int], None]) -> None:
    level, total = stored.image.levels[stored.level], len(stored.blocks)

    def work(number: int) -> None:
        if stored.has(number):
            stored.window(number)  # the image may have changed meanwhile
            return
        pixels = level.read(*stored.blocks.region(number))
        folder.write(number, client.encode_here(pixels), hash_of(pixels))

    with ThreadPoolExecutor(THREADS) as pool:
        for done, _ in enumerate(pool.map(work, range(total)), 1):  # an error cancels the tiles that have not begun
            progress(done, total)


class _Folder:
    """The Zarr folder being filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            import zarr
        except ImportError as error:
            raise missing("embeddings of tiles need", "tiles", error) from error
        self._zarr: Any = zarr

    @contextlib.contextmanager
    def opened(self, attributes: dict[str, Any], blocks: Blocks) -> Iterator[None]:
        """Lock the folder for this process while the block runs."""
        with contextlib.suppress(FileExistsError):
            self.path.mkdir()
        if not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is a file: give a folder for the embeddings")
        with locked(self.path / ".lock", self._refuse_second):
            self._check(attributes, blocks)
            for leftover in self.path.glob(f"{_NEW}*"):
                shutil.rmtree(leftover)  # a killed process left it
            yield

    def write(self, number: int, embeddings: ImageEmbeddings, pixels: str) -> None:
        """Write a tile atomically."""
        new = self.path / f"{_NEW}{number}"
        for name, values in embeddings.items():
            group = group_of(embeddings.family, name)
            width, height = embeddings.image_size
            array = self._zarr.create_array(
                new / group, shape=values.shape, dtype="float32", chunks=values.shape, zarr_format=2
            )
            array[:] = values
            sides = [height, width]
            array.attrs.update({"original_size": sides, "input_size": _input_size(sides), PIXELS: pixels})
        for group in sorted((each.name for each in new.iterdir()), key=lambda name: name == FEATURES):
            target = self.path / group / str(number)
            shutil.rmtree(target, ignore_errors=True)  # the process was killed before it wrote the features
            (new / group).replace(target)
        new.rmdir()

    def finish(self, signature: Callable[[], str]) -> None:
        """Write the attributes that micro-sam expects in a complete file."""
        root = self._zarr.open_group(self.path, mode="r+")
        if "input_size" not in root.attrs:
            root.attrs.update({"data_signature": signature(), "input_size": None, "original_size": None})

    def _check(self, attributes: dict[str, Any], blocks: Blocks) -> None:
        """Create the folder, or check that it was created with the same attributes."""
        if not any(each.name != ".lock" for each in self.path.iterdir()):
            self._begin(attributes, blocks)
        try:
            root = self._zarr.open_group(self.path, mode="r")
            before = dict(root.attrs)
        except Exception as error:  # zarr raises almost any exception for damaged files
            raise ConfigurationError(f"{self.path} holds other files: give another folder") from error
        if not before:
            self._begin(attributes, blocks)  # the process was killed right after its start
            return
        names = [name for name in attributes if before.get(name) != attributes[name]]
        if list(root[FEATURES].attrs.get("shape", ())) != [*reversed(blocks.size)]:
            names.append("level")
        if names:
            raise ConfigurationError(
                f"{self.path} holds embeddings with other {', '.join(names)}: give another folder, or remove it"
            )

    def _begin(self, attributes: dict[str, Any], blocks: Blocks) -> None:
        root = self._zarr.open_group(self.path, mode="a", zarr_format=2)
        family = attributes[OWN]["family"]
        outputs = get_family(family).encoder.output_names
        for name in sorted({FEATURES, *(group_of(family, output) for output in outputs)}):
            group = root.require_group(name)
            group.attrs.update(
                {"shape": [*reversed(blocks.size)], **{key: attributes[key] for key in ("tile_shape", "halo")}}
            )
        root.attrs.update(attributes)

    def _refuse_second(self) -> None:
        raise ConfigurationError(f"another process writes to {self.path}: wait for it, or give another folder")


def _input_size(sides: list[int]) -> list[int]:
    """Return height and width in SAM1's encoder input, whose longest side has 1,024 pixels."""
    scale = SAM1.image_size / max(sides)
    return [int(side * scale + 0.5) for side in sides]
