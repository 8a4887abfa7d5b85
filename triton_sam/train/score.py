"""The head of the score: its inputs for many prompts, kept on the disk, and its training on these alone.

All other weights stay as they are, so the masks and the tokens that the head reads do not change. Therefore the tokens
are computed once, by the frozen model, for scenes that the training of the masks did not show: on scenes that it
showed, masks are too good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from . import clips, network
from .dataset import Example
from .losses import mask_iou
from .memory import Answer, Tracker
from .prompts import ImagePrompts, correction_clicks, draw_prompts, shaken_box

HEAD = "sam_mask_decoder.iou_prediction_head."
"""Start of the names of the head's parameters."""
CLICK, BOX, TWO_CLICKS, THREE_CLICKS, TRACKED = range(5)
"""The kinds of prompts. An object that is tracked has none in its frame."""

_LOGIT_LIMIT = 32.0  # SAM2ImagePredictor clamps the logits that it returns for use as a mask input
_RANKING_WEIGHT, _RANKING_SCALE = 0.2, 10.0
_BATCH = 512
_WEIGHT_DECAY = 0.02
_TRACKED_SHARE = 0.5  # weight of a tracked frame: neighbouring frames are alike


@dataclass(frozen=True)
class Answers:
    """The answers of a model to N prompts.

    Attributes:
        tokens: (N, 256), the token that the head reads.
        iou: (N, 4), the true IoU of the single mask and of the three candidates, 0..1; NaN if it is not known.
        kinds: (N,), the kind of each prompt.
    """

    tokens: Tensor
    iou: Tensor
    kinds: Tensor

    def chosen(self, rows: Tensor) -> Answers:
        """Return the answers of some rows: numbers, or bool (N,)."""
        return Answers(self.tokens[rows], self.iou[rows], self.kinds[rows])


def join(parts: Sequence[Answers]) -> Answers:
    """Return all answers of a list, which may be empty, in its order."""
    parts = [Answers(torch.empty(0, 256), torch.empty(0, 4), torch.empty(0, dtype=torch.int64)), *parts]
    return Answers(*(torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "iou", "kinds")))


def head_of(model: nn.Module) -> nn.Module:
    """Return the head of the score, (N, 256) to (N, 4)."""
    return model.get_submodule(HEAD[:-1])


@contextmanager
def _heard(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that receives each input of the head, as long as the block runs."""
    tokens: list[Tensor] = []

    def keep(_head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        tokens.append(inputs[0])

    with head_of(model).register_forward_pre_hook(keep):
        yield tokens


def answer_scene(
    model: nn.Module, example: Example, window: network.Window, count: int, rng: np.random.Generator
) -> list[Answers]:
    """Let the model answer clicks, boxes and corrected clicks on the objects of a scene.

    Args:
        model: the SAM2Base, in eval mode.
        example: the scene, or the part of it that the window shows.
        window: the part of the frame that the model sees. The example is scaled to its side.
        count: number of objects. One that is chosen twice gets two different clicks.
        rng: the source of randomness.

    Returns:
        `count` answers of each kind but TRACKED, or nothing if the scene has no object that is large enough.
    """
    drawn = draw_prompts(rng, example, count, absent_share=0.0)
    return [] if drawn is None else list(_Asker(model, example, drawn, window).answers(rng))


class _Asker:
    """Asks the model about the prompts of one image."""

    def __init__(self, model: nn.Module, example: Example, drawn: ImagePrompts, window: network.Window) -> None:
        self._model, self._drawn = model, drawn
        self._window, side = window, window.side
        self._scale = np.float32(side / example.image.shape[0])
        self._regions = torch.from_numpy(drawn.regions).float()
        network.set_window(model, self._window)
        pixels = torch.from_numpy(cv2.resize(example.image, (side, side), interpolation=cv2.INTER_LINEAR)[None])
        with torch.no_grad():
            self._features = network.encode(model, network.normalise(pixels), self._window)

    def answers(self, rng: np.random.Generator) -> Iterator[Answers]:
        """Yield the answers to all kinds of prompts."""
        count, frame = len(self._drawn.regions), self._window.frame / self._scale
        boxes = np.stack([shaken_box(rng, region, round(frame)) for region in self._drawn.regions])
        yield self._ask(BOX, boxes, np.tile(np.array([2, 3], np.float32), (count, 1)), None)[0]
        points, labels = self._drawn.clicks[:, None], np.ones((count, 1), np.float32)
        found, logits = self._ask(CLICK, points, labels, None)
        yield found
        for kind in (TWO_CLICKS, THREE_CLICKS):
            small = self._drawn.targets.shape[1:]
            shown = F.interpolate(logits, size=small, mode="bilinear", align_corners=False)[:, 0] > 0
            point, label = correction_clicks(rng, shown.numpy(), self._drawn.targets)
            points = np.concatenate([points, point[:, None]], 1)
            labels = np.concatenate([labels, label[:, None]], 1)
            found, logits = self._ask(kind, points, labels, logits.clamp(-_LOGIT_LIMIT, _LOGIT_LIMIT))
            yield found

    def _ask(
        self, kind: int, points: NDArray[np.float32], labels: NDArray[np.float32], mask: Tensor | None
    ) -> tuple[Answers, Tensor]:
        """Return the answers and the logits of the single masks, (P, 1, S/4, S/4)."""
        count = len(points)
        with torch.no_grad(), _heard(self._model) as tokens:
            given = torch.from_numpy(points * self._scale), torch.from_numpy(labels)
            answer = network.decode(self._model, self._features.repeat(count), *given, mask, self._window)
            large = F.interpolate(answer.logits, size=self._regions.shape[1:], mode="bilinear", align_corners=False)
            iou = mask_iou(large, self._regions[:, None].expand_as(large))
        return Answers(tokens[0], iou, torch.full((count,), kind)), answer.logits[:, :1]


def answer_clip(model: nn.Module, clip: clips.MappedClip, rng: np.random.Generator) -> list[Answers]:
    """Let the model track the objects of a clip's first frame from boxes, and answer the frames that show them.

    Args:
        model: the SAM2Base of the clip's side, in eval mode.
        clip: the clip.
        rng: the source of randomness.

    Returns:
        An answer of kind TRACKED for each object and frame but the first; nothing if that frame has no object.
    """
    tracks = [clips.Track(clip, int(number), 0) for number in np.unique(clip.labels[0]) if number != 0]
    if not tracks:
        return []
    network.set_window(model, network.Window(clip.labels.shape[1], clip.labels.shape[1]))
    wanted = clips.targets(tracks, len(clip.labels))
    prompt = clips.first_prompt(rng, tracks, "box")
    parts = []
    with torch.no_grad():
        tracker = Tracker(model)
        tracker.start(clips.frame_maps(tracks, 0), prompt, None, None)
        for number in range(1, len(clip.labels)):
            with _heard(model) as tokens:
                answer: Answer = tracker.step(number, clips.frame_maps(tracks, number))
            seen = wanted[number].flatten(1).amax(1) > 0.5
            iou = mask_iou(answer.logits, wanted[number][:, None].expand_as(answer.logits))
            unknown = torch.full((len(tracks), 1), torch.nan)  # the tracker does not compute the single mask
            parts.append(Answers(tokens[0], torch.cat([unknown, iou], 1), torch.full((len(tracks),), TRACKED)))
            parts[-1] = parts[-1].chosen(seen)
    return parts


def score_loss(scores: Tensor, iou: Tensor) -> Tensor:
    """Return the loss (N,) of scores (N, 4) for true IoUs (N, 4): the error, and the order of the three candidates.

    The second part is the logistic loss of each pair of candidates, weighted with the difference of their IoUs (the
    loss of RankNet, Burges et al., 2005).
    """
    known = ~iou.isnan()
    error = torch.where(known, scores - iou.nan_to_num(), 0.0)
    order = scores.new_zeros(len(scores))
    for first, second in ((1, 2), (1, 3), (2, 3)):
        gap = iou[:, first] - iou[:, second]
        margin = _RANKING_SCALE * (scores[:, first] - scores[:, second]) * gap.sign()
        order = order + gap.abs() * F.softplus(-margin)
    return (error**2).sum(1) / known.sum(1) + _RANKING_WEIGHT * order


def train_head(head: nn.Module, answers: Answers, epochs: int, rate: float, seed: int = 0) -> None:
    """Train the head in place, with AdamW and a rate that rises and falls to zero.

    Args:
        head: the head, (N, 256) to (N, 4).
        answers: the answers to learn from.
        epochs: number of times that each answer is shown.
        rate: peak learning rate.
        seed: seed of the order.
    """
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(head.parameters(), rate, weight_decay=_WEIGHT_DECAY)
    steps = epochs * -(-len(answers.tokens) // _BATCH)
    falling = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)
    weights = torch.where(answers.kinds == TRACKED, _TRACKED_SHARE, 1.0)
    for _ in range(epochs):
        mixed = torch.randperm(len(answers.tokens), generator=order)
        for rows in torch.tensor_split(mixed, list(range(_BATCH, len(mixed), _BATCH))):
            part = answers.chosen(rows)
            optimizer.zero_grad()
            loss: Any = (weights[rows] * score_loss(head(part.tokens), part.iou)).mean()
            loss.backward()
            optimizer.step()
            falling.step()
