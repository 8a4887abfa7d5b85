"""A fake client whose masks show the requested points. A test controls when it answers."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np

from triton_sam.inputs.images import open_image
from triton_sam.masks.segment import Segment


class ClickedClient:
    """Returns a mask whose pixels are set at the points inside the object. `asked` has the points of each request.

    The small logits of a network cannot show single pixels.
    """

    def __init__(self):
        self.asked = []
        self.errors = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def encode(self, image):
        return SimpleNamespace(image_size=open_image(image).size)

    def segment(self, points, labels, *, image):
        self.asked.append((list(points), list(labels)))
        assert self.goes_on.wait(60)
        if self.errors:
            raise self.errors.pop()
        mask = np.zeros(image.image_size[::-1], bool)
        for (x, y), label in zip(points, labels, strict=True):
            mask[int(y), int(x)] = label
        return [Segment(mask, 0.5, None)]
