"""The feature maps of training clips, computed once and kept on the disk, and the prompts that start a track."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from .._common.files import atomic_path
from .._common.npz import write_npz
from ..scenes.clip import Clip
from ..scenes.motion import TRAINING_CLIPS, generate_training_clip
from . import network
from .memory import FirstPrompt, FrameMaps
from .prompts import CELL, click_inside, shaken_box

SIDE = 512
"""Side of the frames in pixels."""
CLIP_FRAMES = 10
"""Number of frames of a training clip."""

_MIN_PIXELS = 400  # smaller objects of the first frame are not tracked


@dataclass(frozen=True)
class MappedClip:
    """A clip of T frames with its maps.

    Attributes:
        embedding: half precision (T, 256, S/16, S/16), without no_mem_embed.
        fine: half precision (T, 32, S/4, S/4).
        middle: half precision (T, 64, S/8, S/8).
        labels: uint8 (T, S, S), the number of the object at each pixel, or 0.
    """

    embedding: Tensor
    fine: Tensor
    middle: Tensor
    labels: NDArray[np.uint8]


@dataclass(frozen=True)
class Track:
    """An object of a clip and the frames in which it is tracked."""

    clip: MappedClip
    number: int
    start: int


def map_clip(model: nn.Module, clip: Clip) -> MappedClip:
    """Run the image encoder on all frames of a clip."""
    window = network.Window(clip.images.shape[1], clip.images.shape[1])
    no_memory: Tensor = model.no_mem_embed.detach().view(1, -1, 1, 1)  # type: ignore[operator]
    images = torch.from_numpy(np.ascontiguousarray(clip.images)).to(no_memory.device)
    with torch.no_grad():
        parts = torch.split(images, len(images) if images.is_cuda else 1)  # a CPU is faster with one at a time
        kept = [network.encode(model, network.normalise(part), window) for part in parts]
    return MappedClip(
        torch.cat([maps.embedding - no_memory for maps in kept]).half(),
        torch.cat([maps.high_res[0] for maps in kept]).half(),
        torch.cat([maps.high_res[1] for maps in kept]).half(),
        clip.labels,
    )


class ClipStore:
    """Training clips with their maps in a folder. A clip that is not there yet is drawn and encoded.

    Args:
        folder: the folder, which is created. A clip of ten frames of 512 px has 24 MB.
        model: the SAM2Base that encodes. The maps belong to its image encoder, so use a new folder for other weights.
        side: side of the frames in pixels.
        frames: number of frames of a clip.
    """

    def __init__(self, folder: Path, model: nn.Module, side: int = SIDE, frames: int = CLIP_FRAMES) -> None:
        self._folder, self._model, self._side, self._frames = folder, model, side, frames
        folder.mkdir(parents=True, exist_ok=True)

    def clip(self, number: int) -> MappedClip:
        """Return training clip 0, 1, 2, ..."""
        path = self._folder / f"{number}.npz"
        if not path.is_file():
            clip = generate_training_clip(TRAINING_CLIPS + number, self._frames, self._side)
            mapped = map_clip(self._model, clip)
            with atomic_path(path) as partial, partial.open("wb") as stream:
                write_npz(
                    stream,
                    {
                        "embedding": mapped.embedding.numpy(),
                        "fine": mapped.fine.numpy(),
                        "middle": mapped.middle.numpy(),
                        "labels": mapped.labels,
                    },
                )
        with np.load(path) as stored:
            embedding, fine, middle = (torch.from_numpy(stored[name]) for name in ("embedding", "fine", "middle"))
            return MappedClip(embedding, fine, middle, stored["labels"])


def draw_track(rng: np.random.Generator, clip: MappedClip, frames: int) -> Track | None:
    """Choose an object and a first frame, in which it is visible, at random. None if no object is large enough."""
    start = int(rng.integers(len(clip.labels) - frames + 1))
    areas = np.bincount(clip.labels[start].ravel())
    fitting = [number for number in range(1, len(areas)) if areas[number] >= _MIN_PIXELS]
    return Track(clip, int(rng.choice(fitting)), start) if fitting else None


def frame_maps(tracks: list[Track], offset: int) -> FrameMaps:
    """Return the maps of the frame `offset` after the first one of each track, in single precision."""

    def gather(name: str) -> Tensor:
        maps = torch.stack([getattr(track.clip, name)[track.start + offset] for track in tracks]).float()
        return maps.contiguous(memory_format=torch.channels_last)

    return FrameMaps(gather("embedding"), (gather("fine"), gather("middle")))


def targets(tracks: list[Track], frames: int) -> Tensor:
    """Return the share of each cell that each object covers, float32 (frames, B, S/4, S/4), on the maps' device."""
    device = tracks[0].clip.embedding.device
    labels = np.stack([track.clip.labels[track.start : track.start + frames] for track in tracks], 1)
    numbers = torch.tensor([track.number for track in tracks], device=device)
    regions = torch.from_numpy(labels).to(device) == numbers[:, None, None]
    return F.avg_pool2d(regions.float(), CELL)


def first_masks(tracks: list[Track]) -> Tensor:
    """Return the true masks of the first frames, float32 (B, 1, S, S), on the maps' device."""
    masks = torch.from_numpy(np.stack(_first_regions(tracks)))[:, None].float()
    return masks.to(tracks[0].clip.embedding.device)


def _first_regions(tracks: list[Track]) -> list[NDArray[np.bool_]]:
    return [track.clip.labels[track.start] == track.number for track in tracks]


def first_prompt(rng: np.random.Generator, tracks: list[Track], kind: str) -> FirstPrompt:
    """Draw the prompts of the first frames, on the maps' device: a "box" drawn in haste, or a "click"."""
    regions = _first_regions(tracks)
    device = tracks[0].clip.embedding.device
    if kind == "click":
        points = np.stack([click_inside(rng, region) for region in regions])[:, None]
        return FirstPrompt(
            torch.from_numpy(points).to(device), torch.ones(len(tracks), 1, dtype=torch.int32, device=device), True
        )
    boxes = np.stack([shaken_box(rng, region, region.shape[0]) for region in regions])
    labels = torch.tensor([[2, 3]] * len(tracks), dtype=torch.int32, device=device)
    return FirstPrompt(torch.from_numpy(boxes).to(device), labels, False)
