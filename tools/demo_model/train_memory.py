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
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

from tools.demo_model.clips import SIDE, ClipPool, map_clip
from tools.demo_model.memory_trainer import MemoryTrainer, parse_clip_stages, track_iou
from tools.demo_model.runs import CONFIG, WEIGHTS, Settings, prepare_device
from tools.demo_model.tracking import memory_parameters, prepare_memory
from triton_sam.commands._options import run_script
from triton_sam.export.sam2.recipe import EXPORTER
from triton_sam.scenes.clip import generate_clip

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
    sys.exit(run_script(main))
