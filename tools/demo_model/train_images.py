#!/usr/bin/env python3
"""Train the image half of sam2.1_hiera_micro on a GPU, from the embeddings and masks of MobileSAM and from scenes.

example, on a GPU with 80 GB:
  triton-sam download mobilesam
  tools/demo_model/train_images.py --teacher checkpoints/mobile_sam.pt --materials runs/materials \\
      --init checkpoints/sam2.1_hiera_micro.pt --out runs/distil
  tools/demo_model/train_memory.py --init runs/distil/masks/sam2.1_hiera_micro.pt --out runs/memory

The first phase uses only the embeddings (Zhang et al., "Faster Segment Anything", 2023, section 3.2). The second phase
trains all parameters, with photographs and scenes in the same step.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tools.demo_model import network
from tools.demo_model.images import Amounts, Images, workers
from tools.demo_model.materials import Materials
from tools.demo_model.network import SIDE, VARIANCE, Teacher, adopt_decoder, fit_projection
from tools.demo_model.runs import CONFIG, WEIGHTS, Run, Settings, Stage, prepare_device
from tools.demo_model.targets import (
    Targets,
    correction_clicks,
    offset_loss,
    scene_targets,
    shaken_boxes,
    target_loss,
    taught_targets,
    teacher_decoder,
)
from triton_sam._common.process import run_program
from triton_sam.export.sam2.recipe import EXPORTER
from triton_sam.families.base import LABEL_NO_POINT

_LOGIT_LIMIT = 32.0  # SAM2ImagePredictor clamps the logits that it returns for mask inputs
_MASK_INPUT_SHARE = 0.7  # share of later rounds with the previous logits in addition to clicks
_ABSENT_SHARE = 0.04  # share of the prompts on drawn scenes
_ROUND_SHARES = (0.5, 0.3, 0.2)  # shares of the steps with one, two and three rounds
_TINT = 0.2  # largest change of the contrast
_SHIFT = 0.14  # standard deviation of a change of the colour


@dataclass(frozen=True)
class Mix:
    """The images of a step."""

    photographs: int
    scenes: int
    prompts: int = 0
    embeddings: float = 1.0


@dataclass(frozen=True)
class Drawn:
    """The images of a step on the device.

    Attributes:
        pixels: uint8 (B, S, S, 3), the photographs first.
        embeddings: float32 (B, 256, S/16, S/16), the teacher's.
        labels: uint8 (B', S/2, S/2), the objects of the B' scenes.
        parts: uint8 (B', S/2, S/2), their parts.
        complete: whether all objects in the scenes are numbered.
    """

    pixels: Tensor
    embeddings: Tensor
    labels: Tensor
    parts: Tensor
    complete: bool


class ImageTrainer(Run):
    """Trains a SAM2Base on the teacher's embeddings and, with a teacher, on masks.

    Args:
        teacher: the teacher's decoder, from targets.teacher_decoder(); None: no masks.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        images: Images,
        mix: Mix,
        teacher: nn.Module | None = None,
        bf16: bool = False,
    ) -> None:
        super().__init__(model.train(), settings, network.trained_parameters(model))
        self._images, self._mix, self._teacher, self._bf16 = images, mix, teacher, bf16

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns "loss", "error" (of the embeddings, relative to their mean square) and IoUs."""
        rng = self.random()
        drawn = self._draw(rng)
        network.set_side(self.model, drawn.pixels.shape[1])
        with self._autocast():
            features = network.encode(self.model, _tinted(rng, drawn.pixels)).float()
        error = F.mse_loss(features.embedding, drawn.embeddings) / VARIANCE
        loss = self._mix.embeddings * error + offset_loss(features.embedding)
        measured = {"error": error.detach()}
        if self._teacher is not None:
            targets = self._targets(self._teacher, drawn)
            gradients, found = self._learn_masks(rng, features, targets)
            maps = (features.embedding, *features.high_res)
            loss = loss + sum((x * gradient).sum() for x, gradient in zip(maps, gradients, strict=True))
            measured |= found
        self.learn(loss)
        measured["loss"] = self._mix.embeddings * measured["error"] + measured.get("masks", 0.0)
        return {name: float(value) for name, value in measured.items()}

    def _autocast(self) -> torch.autocast:
        device = self._images.photographs.tensors["image"].device.type
        return torch.autocast(device, torch.bfloat16, enabled=self._bf16)

    def _draw(self, rng: np.random.Generator) -> Drawn:
        photographs, scenes = self._images.photographs, self._images.draw_scenes(rng)
        rows, others = photographs.draw(rng, self._mix.photographs), scenes.draw(rng, self._mix.scenes)
        pixels = torch.cat([photographs.tensors["image"][rows], scenes.tensors["image"][others]])
        embeddings = torch.cat([photographs.embeddings[rows], scenes.embeddings[others]]).float()
        labels, parts = scenes.tensors["labels"][others], scenes.tensors["parts"][others]
        if rng.random() < 0.5:
            pixels, embeddings, labels, parts = pixels.flip(2), embeddings.flip(3), labels.flip(2), parts.flip(2)
        return Drawn(pixels, embeddings, labels, parts, scenes is self._images.drawn)

    def _targets(self, teacher: nn.Module, drawn: Drawn) -> Targets:
        photographs = drawn.embeddings[: self._mix.photographs]
        taught = taught_targets(teacher, photographs, self._mix.prompts, self._bf16)
        absent = _ABSENT_SHARE if drawn.complete else 0.0
        return taught.join(scene_targets(drawn.labels, drawn.parts, self._mix.prompts, absent))

    def _learn_masks(
        self, rng: np.random.Generator, features: network.Features, targets: Targets
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Add the gradients of all rounds of prompts to the decoder's weights.

        The graph of each round is freed before the next round, which saves most of the memory.

        Returns:
            The gradients of the embedding and of the two high-resolution maps, and "masks" (the loss) and the IoUs.
        """
        leaves = [x.detach().requires_grad_() for x in (features.embedding, *features.high_res)]
        points, labels, boxed = self._first_prompts(targets)
        rounds = 1 + int(rng.choice(len(_ROUND_SHARES), p=_ROUND_SHARES))
        measured = {"masks": torch.zeros((), device=points.device)}
        mask: Tensor | None = None
        for number in range(rounds):
            with self._autocast():
                repeated = network.Features(leaves[0], (leaves[1], leaves[2])).repeat(self._mix.prompts)
                answer = network.decode(self.model, repeated, points, labels, mask).float()
            ambiguous = (labels != LABEL_NO_POINT).sum(1) == 1
            loss, iou = target_loss(answer, targets, ambiguous, number == 0)
            (loss / rounds).backward()  # type: ignore[no-untyped-call]
            measured["masks"] += loss.detach() / rounds
            self._record(measured, number, iou, boxed, targets)
            if number + 1 == rounds:
                break
            logits = _logits_to_correct(rng, answer, ambiguous)
            point, label = correction_clicks(logits > 0, targets.region(), targets.side)
            points, labels = torch.cat([points, point[:, None]], 1), torch.cat([labels, label[:, None]], 1)
            mask = logits[:, None] if rng.random() < _MASK_INPUT_SHARE else None
        return [leaf.grad for leaf in leaves if leaf.grad is not None], measured

    def _first_prompts(self, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """Return points (P, 2, 2) and labels (P, 2), boxes for half of the prompts, and which are boxes, bool (P,)."""
        count, device = self._mix.prompts, targets.known.device
        boxed = (torch.arange(len(targets.known), device=device) % count >= (count + 1) // 2) & (targets.present > 0)
        boxes = shaken_boxes(targets.region(), targets.side)
        points = torch.where(boxed[:, None, None], boxes, targets.clicks[:, None].expand(-1, 2, -1))
        corners, click = (torch.tensor(pair, device=device) for pair in ((2.0, 3.0), (1.0, float(LABEL_NO_POINT))))
        return points, torch.where(boxed[:, None], corners, click), boxed

    def _record(self, measured: dict[str, Tensor], number: int, iou: Tensor, boxed: Tensor, targets: Targets) -> None:
        """Add mean IoUs: first round for each kind of prompt and image, later "click3" for the third prompt."""
        counted = (targets.known * targets.present) > 0
        if number > 0:
            measured[f"click{number + 1}"] = iou[counted, 0].mean()
            return
        photographs = torch.arange(len(counted), device=counted.device) < self._mix.photographs * self._mix.prompts
        for kind, chosen in (("click", ~boxed & counted), ("box", boxed & counted)):
            measured[kind], measured[f"{kind}_best"] = iou[chosen, 0].mean(), iou[chosen, 1:].amax(1).mean()
            measured[f"{kind}_photographs"] = iou[chosen & photographs, 0].mean()


def _tinted(rng: np.random.Generator, images: Tensor) -> Tensor:
    """Normalise images, uint8 (B, S, S, 3), and change the contrast and colour of each, which keeps masks valid."""
    count = len(images)
    scale = torch.from_numpy(rng.uniform(1 - _TINT, 1 + _TINT, (count, 1, 1, 1)).astype(np.float32))
    shift = torch.from_numpy(rng.normal(0, _SHIFT, (count, 3, 1, 1)).astype(np.float32))
    return network.normalise(images) * scale.to(images.device) + shift.to(images.device)


def _logits_to_correct(rng: np.random.Generator, answer: network.Prediction, ambiguous: Tensor) -> Tensor:
    """Return the logits (P, h, w) that the simulated user corrects."""
    with torch.no_grad():
        logits = answer.logits.detach()
        best = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        if rng.random() < 0.5:  # of a multimask prediction, a user corrects the mask with the highest score
            best = torch.where(ambiguous, 1 + answer.iou[:, 1:].argmax(1), best)
        return logits[torch.arange(len(logits), device=logits.device), best].clamp(-_LOGIT_LIMIT, _LOGIT_LIMIT)


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
    sys.exit(run_program(main))
