#!/usr/bin/env python3
"""Train the memory half of sam2.1_hiera_micro, which only videos use, on drawn clips.

example, on a GPU:
  tools/demo_model/train_memory.py --init runs/distil/masks/sam2.1_hiera_micro.pt --out runs/memory

The folder --out receives curves.json and sam2.1_hiera_micro.pt, in which only the memory half and the head of the
object score differ from the checkpoint of --init. They are the weights that were best on held-out clips.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sam2.modeling.sam2_utils import LayerNorm2d
from torch import Tensor, nn

from tools.demo_model import clips
from tools.demo_model.clips import SIDE, ClipPool, map_clip
from tools.demo_model.runs import CONFIG, WEIGHTS, Run, Settings, Stage, prepare_device
from tools.demo_model.targets import mask_iou
from tools.demo_model.tracking import Tracker, freeze_images, memory_parameters, object_head, prepare_memory, track_loss
from triton_sam._common.process import run_program
from triton_sam.errors import ConfigurationError
from triton_sam.export.sam2.recipe import EXPORTER
from triton_sam.scenes.clip import generate_clip

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


_HELD_OUT = (500, 501)  # seeds of clips that neither training nor the default evaluation uses
_FITTED = 6  # clips to which prepare_memory fits the last normalisation


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--init", type=Path, required=True, metavar="CHECKPOINT", help="weights with a trained image half")
    add("--out", type=Path, required=True, help="folder of the run")
    add("--stages", default="2:0.3m,4:0.5m,8:1.6m", metavar="FRAMES:LENGTH,...",
        help="stages of the training; each has the number of frames of a track and a length in minutes (5m) or steps "
        "(600) (default: %(default)s)")  # fmt: skip
    add("--clips", type=int, default=400, help="number of clips (default: %(default)s)")
    add("--tracks", type=int, default=16, help="number of objects in a step (default: %(default)s)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes that draw clips (default: all cores)")
    add("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda if there is one, else cpu)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    settings = Settings(parse_clip_stages(options.stages), 1.5e-3, 20, hold=0.5, weight_decay=0.01, ema=0.99)
    device = prepare_device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        torch.manual_seed(0)
        model: nn.Module = EXPORTER.build(CONFIG, SIDE).to(device)
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        EXPORTER.restore(model, options.init, CONFIG)
        clips = ClipPool(Path(folder), model, options.clips)
        print("drawing clips", flush=True)
        clips.fill(options.workers)
        _begin(model, fresh, clips, min(_FITTED, options.clips))
        run = MemoryTrainer(model, settings, clips, options.clips, options.tracks)
        run.run(options.out, _measurer(model))
        print(f"wrote {options.out / WEIGHTS}", flush=True)
    return 0


def _begin(model: nn.Module, fresh: dict[str, torch.Tensor], clips: ClipPool, fitted: int) -> None:
    """Set the initial weights of the memory half."""
    with torch.no_grad():
        for name, parameter in memory_parameters(model):
            parameter.copy_(fresh[name])
    prepare_memory(model, torch.cat([clips.clip(number).embedding[::3] for number in range(fitted)]).float())


def _measurer(model: nn.Module) -> Callable[[nn.Module], float]:
    """Return a function that measures the mean IoU of held-out clips. All models must share this image half."""
    held_out = [map_clip(model, generate_clip(seed)) for seed in _HELD_OUT]
    return lambda measured: float(torch.cat([track_iou(measured, clip).flatten() for clip in held_out]).mean())


if __name__ == "__main__":
    sys.exit(run_program(main))
