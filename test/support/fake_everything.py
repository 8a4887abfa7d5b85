"""A search for everything without a Triton, which finds the objects of test/images/shapes.jpg one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import numpy as np
from PIL import Image

from triton_sam._common.bundle import bundled
from triton_sam.everything.parts import FoundMask, last_pixels
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.service.engine import Engine, Pair
from triton_sam.service.everything import FinderUpdate

POINTS_EACH = 16


def shapes() -> list[np.ndarray]:
    """Return the masks of the drawn objects, bool (600,800) each."""
    labels = np.asarray(Image.open(bundled("test/images") / "shapes_labels.png"))
    return [labels == number for number in np.unique(labels) if number]


def found(number: int, mask: np.ndarray) -> FoundMask:
    """Return an object as a result of a search."""
    y, x = np.argwhere(mask)[mask.sum() // 2]
    height, width = mask.shape
    return FoundMask(
        bits=np.packbits(mask),
        score=0.9 - number / 100,
        stability=0.97,
        point=(float(x), float(y)),
        box=last_pixels(mask),
        crop=(0, 0, width, height),
        size=(width, height),
    )


class FakeFinder:
    """The finder of a service.

    Attributes:
        asked: options and clean-up of each search.
        steps: number of computed steps.
        closed: number of searches that have ended in any way.
        failure: error that is raised after the first step.
        removes: whether the last object replaces the first one.
        finds: whether objects are found.
        limit: a search waits after so many steps until the limit is raised or None.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], Any]] = []
        self.steps = self.closed = 0
        self.reset()

    def reset(self) -> None:
        self.limit: int | None = None
        self.failure: Exception | None = None
        self.removes = False
        self.finds = True

    async def __call__(self, client, image, content, options, cleanup) -> AsyncGenerator[FinderUpdate, None]:
        self.asked.append((dict(options), cleanup))
        masks = shapes() if self.finds else []
        total = POINTS_EACH * max(1, len(masks))
        try:
            for number, mask in enumerate(masks):
                while self.limit is not None and number >= self.limit:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # the test is in another thread
                self.steps += 1
                if self.failure is not None and number:
                    raise self.failure
                removed = [0] if self.removes and number == len(masks) - 1 else []
                yield FinderUpdate(POINTS_EACH * (number + 1), total, {number: found(number, mask)}, removed)
            if not masks:
                yield FinderUpdate(total, total, detail="no mask has a predicted IoU of 0.88: lower pred_iou_thresh")
        finally:
            self.closed += 1


async def _embed(engine: Engine, image: Any, pair: Pair) -> ImageEmbeddings:
    """Return unused embeddings: clicks fail, as without a Triton."""
    family = pair.family
    tensors = {
        spec.name: np.zeros([side if isinstance(side, int) else 1 for side in spec.shape], np.float32)
        for spec in family.encoder.outputs
    }
    return ImageEmbeddings(family.name, f"{family.name}_encoder", image.size, tensors)


@contextlib.contextmanager
def service_with_everything(**options: Any) -> Iterator[Any]:
    """Run a service without a Triton and with fake searches; yields the service and the finder."""
    from support.running_service import NOBODY, made_up_models, running_service

    with running_service(NOBODY, {"_pairs": made_up_models(), "embed": _embed}, **options) as service:
        service.app.state.searches.find = FakeFinder()
        yield service, service.app.state.searches.find
