"""Training clips (drawn by many processes), their feature maps, and the prompts that start a track.

In the clips, objects move along free paths, cross each other, hide behind things, leave and return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from tools.demo_model import network
from tools.demo_model.images import Arrays, Pool, workers
from tools.demo_model.targets import CELL, click_inside, shaken_boxes
from tools.demo_model.tracking import FirstPrompt, FrameMaps
from triton_sam.errors import ConfigurationError
from triton_sam.scenes import textures
from triton_sam.scenes.clip import TRAINING_CLIPS, Clip, Layer, draw_layer, generate_clip, photograph, sprite

_LIKE_EVALUATION = 0.4  # share of training clips drawn like the evaluation's clips, with other seeds
_LONG = 32  # frames in which the objects of a clip cross the whole image
_MAX_OBJECTS = 5
_THING_SHARE = 0.35  # share of layers that only hide the objects behind them


def generate_training_clip(seed: int, frames: int, size: int) -> Clip:
    """Draw a training clip, a part of the movements of a long clip. The same arguments give the same clip.

    Args:
        seed: number of the clip, at least TRAINING_CLIPS.
        frames: number of frames, 2..32.
        size: side of the square frames in pixels, at least 64.
    """
    if seed < TRAINING_CLIPS or not 2 <= frames <= _LONG:
        raise ConfigurationError(
            f"clip {seed} with {frames} frames cannot be used for training: use seeds from {TRAINING_CLIPS} on, since "
            f"smaller ones are held out, and 2 to {_LONG} frames"
        )
    rng = np.random.default_rng([seed, 0x30E])
    if rng.random() < _LIKE_EVALUATION:
        whole = generate_clip(seed, _LONG, size)
        stride = 2 if 2 * frames <= _LONG and rng.random() < 0.3 else 1
        start = int(rng.integers(_LONG - stride * (frames - 1)))
        shown = slice(start, start + stride * (frames - 1) + 1, stride)
        return Clip(whole.images[shown], whole.labels[shown])
    return _wander(rng, frames, size)


def _wander(rng: np.random.Generator, frames: int, size: int) -> Clip:
    """Draw layers on free paths over a background that moves as with the camera."""
    ground = textures.random_colour(rng)
    margin = size // 8
    wide = textures.paint(rng, (size + 2 * margin, size + 2 * margin), ground, 1.0)
    pan = rng.uniform(-1, 1, 2) * rng.choice([0.0, 0.5, 1.0]) * margin
    layers = _layers(rng, size, ground)
    images = np.empty((frames, size, size, 3), np.uint8)
    labels = np.zeros((frames, size, size), np.uint8)
    for frame in range(frames):
        time = frame / _LONG
        left, top = (round(margin + float(share) * time) for share in pan)
        canvas = wide[top : top + size, left : left + size].copy()
        for layer in layers:
            draw_layer(layer, time, canvas, labels[frame])
        images[frame] = photograph(rng, canvas)
    return Clip(images, labels)


def _layers(rng: np.random.Generator, size: int, ground: textures.Field) -> list[Layer]:
    """Return the objects and the things that hide them, from back to front."""
    layers: list[Layer] = []
    objects = int(rng.integers(2, _MAX_OBJECTS + 1))
    label = 0
    twin = float(rng.random()) < 0.25  # objects of one colour, distinguishable only by position and outline
    shared = textures.contrasting_colour(rng, ground, 0.2)
    while label < objects:
        is_thing = float(rng.random()) < _THING_SHARE
        label += not is_thing
        radius = float(np.exp(rng.uniform(np.log(0.05), np.log(0.2))))
        colour = shared if twin and not is_thing else textures.contrasting_colour(rng, ground, 0.15)
        pixels = textures.paint(rng, (size, size), colour, 0.25)
        mask = sprite(rng, size, radius).astype(np.float32)
        turn = float(rng.uniform(-90, 90))
        layers.append(Layer(0 if is_thing else label, mask, pixels, _path(rng, size), turn))
    return layers


def _path(rng: np.random.Generator, size: int) -> Callable[[float], tuple[float, float]]:
    """Return a path: a wavy line, with any speed up to a crossing of the image."""
    start = rng.uniform(0.1, 0.9, 2) * size
    speed = rng.uniform(0, 1.2) * size
    angle = rng.uniform(0, 2 * np.pi)
    along = speed * np.array([np.cos(angle), np.sin(angle)])
    wave = size * rng.uniform(0, 0.08, 2)
    beat, phase = rng.uniform(2, 9, 2), rng.uniform(0, 2 * np.pi, 2)

    def place(time: float) -> tuple[float, float]:
        x, y = start + along * time + wave * np.sin(beat * time + phase)
        return float(x), float(y)

    return place


SIDE = 512
"""Side of the frames in pixels."""
CLIP_FRAMES = 10
"""Number of frames of a training clip."""

_SHAPES = {"images": (CLIP_FRAMES, SIDE, SIDE, 3), "labels": (CLIP_FRAMES, SIDE, SIDE)}
_MIN_PIXELS = 400  # minimum area of tracked objects in the first frame


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
    no_memory: Tensor = model.no_mem_embed.detach().view(1, -1, 1, 1)  # type: ignore[operator]
    images = torch.from_numpy(np.ascontiguousarray(clip.images)).to(no_memory.device)
    with torch.no_grad():
        parts = torch.split(images, len(images) if images.is_cuda else 1)  # on a CPU, one at a time is faster
        kept = [network.encode(model, network.normalise(part)) for part in parts]
    return MappedClip(
        torch.cat([maps.embedding - no_memory for maps in kept]).half(),
        torch.cat([maps.high_res[0] for maps in kept]).half(),
        torch.cat([maps.high_res[1] for maps in kept]).half(),
        clip.labels,
    )


class ClipPool:
    """Training clips with their maps on the device of a model."""

    def __init__(self, folder: Path, model: nn.Module, count: int) -> None:
        self._pool = Pool(folder, draw_clip, _SHAPES, count, "cpu")
        self._model = model
        self._mapped: dict[int, MappedClip] = {}

    def fill(self, processes: int) -> None:
        """Draw all clips in several processes."""
        with workers(processes) as executor:
            self._pool.start(executor, Path())
            self._pool.take(None)

    def clip(self, number: int) -> MappedClip:
        """Return training clip 0, 1, 2, ..., encoded on first use."""
        if number not in self._mapped:
            images, labels = (np.array(self._pool.tensors[name][number]) for name in ("images", "labels"))
            self._mapped[number] = map_clip(self._model, Clip(images, labels))
        return self._mapped[number]


def draw_clip(_folder: Path, number: int) -> Arrays:
    """Draw a clip: "images", (10, 512, 512, 3), and "labels", (10, 512, 512)."""
    clip = generate_training_clip(TRAINING_CLIPS + number, CLIP_FRAMES, SIDE)
    return {"images": clip.images, "labels": clip.labels}


def draw_track(rng: np.random.Generator, clip: MappedClip, frames: int) -> Track | None:
    """Choose a random object and a first frame that shows it. None if no object is large enough."""
    start = int(rng.integers(len(clip.labels) - frames + 1))
    areas = np.bincount(clip.labels[start].ravel())
    fitting = [number for number in range(1, len(areas)) if areas[number] >= _MIN_PIXELS]
    return Track(clip, int(rng.choice(fitting)), start) if fitting else None


def frame_maps(tracks: list[Track], offset: int) -> FrameMaps:
    """Return the maps of the frame `offset` after the first frame of each track, in single precision."""

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
    masks = np.stack([track.clip.labels[track.start] == track.number for track in tracks])
    return torch.from_numpy(masks)[:, None].float().to(tracks[0].clip.embedding.device)


def first_prompt(tracks: list[Track], kind: str) -> FirstPrompt:
    """Draw the prompts of the first frames, on the maps' device: an inaccurate "box", or a "click"."""
    regions = first_masks(tracks)[:, 0] > 0
    side, device = regions.shape[-1], regions.device
    if kind == "click":
        labels = torch.ones(len(tracks), 1, dtype=torch.int32, device=device)
        return FirstPrompt(click_inside(regions, side)[:, None], labels, True)
    labels = torch.tensor([[2, 3]] * len(tracks), dtype=torch.int32, device=device)
    return FirstPrompt(shaken_boxes(regions, side), labels, False)
