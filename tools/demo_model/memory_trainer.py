"""The training run of the memory half on drawn clips."""

from __future__ import annotations

import types
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sam2.modeling.sam2_utils import LayerNorm2d
from torch import Tensor, nn

from tools.demo_model import clips
from tools.demo_model.losses import mask_iou
from tools.demo_model.runs import Run, Settings, Stage
from tools.demo_model.tracking import Tracker, freeze_images, memory_parameters, object_head, track_loss
from triton_sam.errors import ConfigurationError

_FIRST_CLIPS, _TRACKS_FOR_CLIP = 16, 24  # the run starts with few clips and adds one per 24 tracks
_PROMPTS, _PROMPT_SHARES = ("box", "click"), (0.7, 0.3)
_MASK_SHARE = 0.3  # share of the objects that start from their true mask


class Clips(Protocol):
    """A source of training clips."""

    def clip(self, number: int) -> clips.MappedClip:
        """Return clip 0, 1, 2, ..."""


def parse_clip_stages(text: str) -> tuple[Stage, ...]:
    """Parse the stages of a run, for example "2:5m,4:15m": tracks of 2 frames for 5 minutes, then of 4 for 15."""
    stages = []
    for item in text.split(","):
        frames, _, length = item.strip().partition(":")
        if not frames.isdecimal() or not 2 <= int(frames) <= clips.CLIP_FRAMES:
            raise ConfigurationError(
                f"cannot read the stage {item!r}: write it like 4:15m or 4:600, with 2 to {clips.CLIP_FRAMES} frames"
            )
        stages.append(Stage.parse(length, int(frames)))
    if len({stage.steps is None for stage in stages}) > 1:
        raise ConfigurationError("give every stage in minutes or every stage in steps")
    return tuple(stages)


class MemoryTrainer(Run):
    """Trains the memory half of a SAM2Base in place."""

    def __init__(self, model: nn.Module, settings: Settings, source: Clips, count: int, tracks: int) -> None:
        freeze_images(model.eval())
        speed_up_norms(model)
        super().__init__(model, settings, memory_parameters(model), object_head(model))
        self._source, self._count, self._tracks = source, count, tracks

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns "loss", "iou" (of the following frames) and "iou_last" (of the last frame)."""
        rng = self.random()
        frames = self.settings.stages[self.progress.stage].frames
        tracks = self._draw_tracks(rng, frames)
        prompt = clips.first_prompt(tracks, str(rng.choice(_PROMPTS, p=_PROMPT_SHARES)))
        loss, iou = track_loss(
            self.model,
            [clips.frame_maps(tracks, number) for number in range(frames)],
            prompt,
            clips.targets(tracks, frames),
            clips.first_masks(tracks),
            torch.from_numpy(rng.random(len(tracks)) < _MASK_SHARE).to(prompt.points.device),
            easy=float(rng.random()) < 1 - self.progress.share_done(self.settings.stages),
        )
        self.learn(loss)
        return {"loss": float(loss.detach()), "iou": float(iou.mean()), "iou_last": float(iou[-1].mean())}

    def _draw_tracks(self, rng: np.random.Generator, frames: int) -> list[clips.Track]:
        known = min(self._count, _FIRST_CLIPS + self.progress.step * self._tracks // _TRACKS_FOR_CLIP)
        tracks: list[clips.Track] = []
        while len(tracks) < self._tracks:
            track = clips.draw_track(rng, self._source.clip(int(rng.integers(known))), frames)
            if track is not None:
                tracks.append(track)
        return tracks


def speed_up_norms(model: nn.Module) -> None:
    """Compute the LayerNorm2d modules with torch's layer_norm, in a fraction of the time."""
    for module in model.modules():
        if isinstance(module, LayerNorm2d):
            module.forward = types.MethodType(_normed, module)  # a copy of the model has its own method


def _normed(module: Any, x: Tensor) -> Tensor:
    last = F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), module.weight, module.bias, module.eps)
    return last.permute(0, 3, 1, 2)


def track_iou(model: nn.Module, clip: clips.MappedClip) -> Tensor:
    """Track all objects of a clip's first frame from their boxes, without gradients.

    Returns:
        The IoU of the chosen masks of the following frames, (T - 1, B), at a quarter of the side; 1 where an object is
        hidden and its mask is empty.
    """
    frames = len(clip.labels)
    tracks = [clips.Track(clip, int(number), 0) for number in np.unique(clip.labels[0]) if number != 0]
    wanted = clips.targets(tracks, frames)
    prompt = clips.first_prompt(tracks, "box")
    measured = []
    with torch.no_grad():
        tracker = Tracker(model)
        tracker.start(clips.frame_maps(tracks, 0), prompt, None, None)
        for number in range(1, frames):
            answer = tracker.step(number, clips.frame_maps(tracks, number))
            measured.append(mask_iou(answer.shown() - 0.5, wanted[number]))
    return torch.stack(measured)
