"""Training from a teacher in two phases: first its embeddings, then its masks beside scenes with exact masks.

In the first phase, only the image encoder learns: its embeddings must be as close to the teacher's as possible (Zhang
et al., "Faster Segment Anything", 2023, section 3.2). In the second, everything learns: half of the steps ask for the
teacher's masks of lessons, and half for the exact masks of scenes, so that outlines, scores and the object score fit
the embeddings as they are now.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from . import network
from .lessons import LessonPool, Lessons
from .prompts import ImagePrompts, click_inside, shrink
from .stages import View
from .teacher import VARIANCE, Teacher
from .trainer import Batch, DrawExample, Settings, Trainer

_EMBEDDING_IMAGES = 2  # times the images of a step with masks, which cost more
_EMBEDDING_WEIGHT = 0.3  # of the embeddings in a step with the teacher's masks
_LESSON_SHARE = 0.5  # of the steps of the second phase
_TRIES = 3  # points for each prompt that is wanted, as not every point lies on an object
_TRUSTED = 0.8  # lower scores of the teacher are not believed
_AREAS = (0.001, 0.6)  # of the masks that are trained on, as shares of the frame
_MIN_PIXELS = 256  # of a mask inside a window
_TINT = 0.2  # largest change of the contrast


def embedding_loss(embedding: Tensor, lessons: Lessons) -> Tensor:
    """Return the mean square error of embeddings (B, 256, S/16, S/16), relative to the teacher's mean square."""
    return F.mse_loss(embedding, lessons.embeddings.to(embedding.device)) / VARIANCE


class EmbeddingTrainer(Trainer):
    """Trains the image encoder to give the teacher's embeddings.

    Args:
        model: the SAM2Base, trained in place.
        settings: the settings of the run.
        pool: the lessons.
    """

    def __init__(self, model: nn.Module, settings: Settings, pool: LessonPool) -> None:
        super().__init__(model, settings, _no_scene)
        self._pool = pool

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns "loss", the relative error, and "cosine", the similarity of the embeddings."""
        rng = np.random.default_rng([self.settings.seed, self.progress.step])
        view = self.draw_view(rng)
        window = view.window(rng)
        lessons = self._pool.draw(rng, window, _EMBEDDING_IMAGES * view.images)
        features = network.encode(self.model, tinted(rng, lessons.images, self.settings.device), window)
        loss = embedding_loss(features.embedding, lessons)
        self.learn(loss)
        wanted = lessons.embeddings.to(features.embedding.device)
        cosine = F.cosine_similarity(features.embedding.detach(), wanted, dim=1).mean()
        return {"loss": float(loss.detach()), "cosine": float(cosine)}


class MaskTrainer(Trainer):
    """Trains all of the model on the teacher's masks and on scenes.

    Args:
        model: the SAM2Base, trained in place.
        settings: the settings of the run.
        draw: draws examples of scenes.
        pool: the lessons.
        teacher: the teacher.
    """

    def __init__(
        self, model: nn.Module, settings: Settings, draw: DrawExample, pool: LessonPool, teacher: Teacher
    ) -> None:
        super().__init__(model, settings, draw)
        self._pool, self._teacher = pool, teacher

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns "loss" and the IoUs, those of lessons with a name that ends with "_taught"."""
        rng = np.random.default_rng([self.settings.seed, self.progress.step])
        if rng.random() >= _LESSON_SHARE:
            return super().step()
        view = self.draw_view(rng)
        lessons, batch = self._draw_lessons(rng, view)
        network.set_window(self.model, batch.window)
        features = network.encode(self.model, tinted(rng, batch.images, self.settings.device), batch.window)
        loss, measured = self.run_rounds(rng, features, batch)
        error = embedding_loss(features.embedding, lessons)
        self.learn(loss + _EMBEDDING_WEIGHT * error)
        found = {f"{name}_taught": value for name, value in measured.items()}
        return {"loss": float(loss.detach()), "error": float(error.detach()), **found}

    def _draw_lessons(self, rng: np.random.Generator, view: View) -> tuple[Lessons, Batch]:
        """Draw lessons until each image of them has masks that can be trained on."""
        while True:
            window = view.window(rng)
            lessons = self._pool.draw(rng, window, view.images)
            prompts = [taught_prompts(rng, self._teacher, whole, window, view.prompts) for whole in lessons.whole]
            found = [item for item in prompts if item is not None]
            if len(found) == len(prompts):
                return lessons, Batch(window, lessons.images, None, found)


def taught_prompts(
    rng: np.random.Generator, teacher: Teacher, embedding: Tensor, window: network.Window, count: int
) -> ImagePrompts | None:
    """Ask the teacher for masks at random points of a window, and return prompts for some of them.

    Args:
        rng: the source of randomness.
        teacher: the teacher.
        embedding: the teacher's embedding of the whole frame, (256, F/16, F/16).
        window: the part of the frame.
        count: number of prompts P; masks are repeated if there are fewer.

    Returns:
        The prompts of the window, or None if the teacher is sure of no mask.
    """
    corner = np.array([window.left, window.top])
    points = torch.from_numpy((rng.uniform(0, window.side, (_TRIES * count, 2)) + corner).astype(np.float32))
    logits, scores = teacher.answer(embedding, points)
    shares = (logits > 0).float().mean((2, 3))
    fits = (scores >= _TRUSTED) & (shares >= _AREAS[0]) & (shares <= _AREAS[1])
    regions: list[Any] = []
    for masks, fitting in zip(logits, fits.numpy(), strict=True):
        if fitting.any() and len(regions) < count:
            mask = masks[int(rng.choice(np.flatnonzero(fitting)))]
            whole = F.interpolate(mask[None, None], (window.frame, window.frame), mode="bilinear")[0, 0] > 0
            region = whole.numpy()[window.top : window.top + window.side, window.left : window.left + window.side]
            if region.sum() >= _MIN_PIXELS:
                regions.append(region)
    if not regions:
        return None
    chosen = np.stack([regions[index % len(regions)] for index in range(count)])
    return ImagePrompts(chosen, shrink(chosen), np.stack([click_inside(rng, region) for region in chosen]))


def tinted(rng: np.random.Generator, images: Tensor, device: str) -> Tensor:
    """Normalise images, uint8 (B, S, S, 3), and change their contrast and colour a little, since masks survive that."""
    pixels = network.normalise(images.to(device))
    if rng.random() < 0.5:
        return pixels
    shift = torch.from_numpy(rng.normal(0, _TINT, (1, 3, 1, 1)).astype(np.float32)).to(device)
    return pixels * float(rng.uniform(1 - _TINT, 1 + _TINT)) + shift


def _no_scene(_rng: np.random.Generator, _view: View) -> Any:
    raise AssertionError("the phase of the embeddings draws no scenes")


__all__ = ["EmbeddingTrainer", "MaskTrainer", "embedding_loss", "taught_prompts", "tinted"]
