#!/usr/bin/env python3
"""Train the image half of sam2.1_hiera_micro on a GPU, from the embeddings and masks of MobileSAM and from scenes.

example, on a GPU with 80 GB:
  triton-sam download mobilesam
  tools/demo_model/train_images.py --teacher checkpoints/mobile_sam.pt --materials runs/materials \\
      --init checkpoints/sam2.1_hiera_micro.pt --out runs/distil
  tools/demo_model/train_memory.py --init runs/distil/masks/sam2.1_hiera_micro.pt --out runs/memory

A run draws its images anew each time it starts, which takes 16 cores a minute, and needs 5 MB of the device's memory
and 3 MB of disk for each: 9,100 images with the default numbers. The folders embeddings and masks of --out receive
curves.json and sam2.1_hiera_micro.pt of each phase. The memory half does not fit the result, so train it anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tools.demo_model.image_trainer import ImageTrainer, Mix
from tools.demo_model.images import Amounts, Images
from tools.demo_model.materials import Materials
from tools.demo_model.pools import workers
from tools.demo_model.runs import CONFIG, WEIGHTS, Settings, Stage, prepare_device
from tools.demo_model.targets import teacher_decoder
from tools.demo_model.teacher import SIDE, Teacher, adopt_decoder, fit_projection
from triton_sam.commands._options import run_script
from triton_sam.export.sam2.recipe import EXPORTER

_FITTED = 48  # photographs of the linear regression
_RATE, _MASKS_RATE = 1.5e-3, 6e-4  # peak learning rates of both phases
_EMBEDDINGS_WEIGHT = 1.5  # of the embeddings' error in the second phase


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--teacher", type=Path, required=True, metavar="CHECKPOINT", help="checkpoint of MobileSAM")
    add("--materials", type=Path, required=True, metavar="FOLDER", help="folder that collect_materials.py wrote")
    add("--init", type=Path, required=True, metavar="CHECKPOINT", help="weights whose image encoder continues learning")
    add("--out", type=Path, required=True, help="folder of the run")
    add("--photographs", type=int, default=4000, metavar="N", help="parts of photographs (default: %(default)s)")
    add("--composites", type=int, default=1300, metavar="N", help="composites with three views (default: %(default)s)")
    add("--drawn", type=int, default=400, metavar="N", help="drawn scenes with three views (default: %(default)s)")
    add("--embeddings", default="1.75m", metavar="LENGTH", help="length of the first phase: 5m or 600 steps (1.75m)")
    add("--masks", default="4.4m", metavar="LENGTH", help="length of the second phase (4.4m)")
    add("--images", type=int, default=16, metavar="N",
        help="images of a step of the second phase, half of them photographs; the first phase has half as many more "
        "(default: %(default)s)")  # fmt: skip
    add("--prompts", type=int, default=6, metavar="N", help="prompts for each image (default: %(default)s)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes that draw images (default: all cores)")
    add("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda if there is one, else cpu)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, in bfloat16 on a GPU."""
    options = parser().parse_args(arguments)
    device = prepare_device(options.device)
    Materials(options.materials)  # raises errors now instead of in another process
    bf16 = device != "cpu"
    teacher = Teacher(options.teacher).to(device, bf16)
    model = EXPORTER.build(CONFIG, SIDE).to(device)
    EXPORTER.restore(model, options.init, CONFIG)
    adopt_decoder(model, teacher)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        images = Images(Path(folder), Amounts(options.photographs, options.composites, options.drawn), device)
        print("drawing images", flush=True)
        with workers(options.workers) as executor:
            images.fill(executor, options.materials, teacher)
        _learn(options, model, images, teacher, bf16)
    return 0


def _learn(options: argparse.Namespace, model: Any, images: Images, teacher: Teacher, bf16: bool) -> None:
    asked = teacher_decoder(model, teacher)
    half = options.images // 2
    first, second = options.out / "embeddings", options.out / "masks"
    error = fit_projection(model, _lessons(images))
    print(f"embeddings: relative error {error:.3f} before the training", flush=True)
    settings = Settings((Stage.parse(options.embeddings),), _RATE)
    run = ImageTrainer(model, settings, images, Mix(2 * half, half), bf16=bf16)
    run.run(first)
    model.load_state_dict(run.weights())
    mix = Mix(half, options.images - half, options.prompts, _EMBEDDINGS_WEIGHT)
    settings = Settings((Stage.parse(options.masks),), _MASKS_RATE, hold=0.3)
    ImageTrainer(model, settings, images, mix, asked, bf16).run(second)
    print(f"wrote {second / WEIGHTS}", flush=True)


def _lessons(images: Images) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield evenly chosen photographs, uint8 (S, S, 3), and their embeddings by the teacher."""
    pool = images.photographs
    for number in range(0, len(pool), max(1, len(pool) // _FITTED)):
        yield pool.tensors["image"][number], pool.embeddings[number].float()


if __name__ == "__main__":
    sys.exit(run_script(main))
