"""A notebook widget: click objects in an image, and use their Segments in the next cell."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._common.extras import missing
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError
from ..inputs.images import ImageSource, open_image, plain_source
from ..masks.drawing import PALETTE, Color, overlay
from ..masks.segment import Segment
from .clicking import Clicking, View

try:
    import anywidget
    import traitlets
except ImportError as error:
    raise missing("the widget for notebooks needs", "notebook", error) from error

PREVIEW_ALPHA = 0.25
JPEG_QUALITY = 85


class Clicker(anywidget.AnyWidget):
    """An image in a notebook. Clicks mark objects, and the mask under the mouse is previewed.

    The left button marks the object; the right button, or Shift, marks the background. The buttons below the image
    undo a click, begin another object, and remove all objects.

    Examples:
        >>> clicker = Clicker("image.jpg")
        >>> clicker                                    # click in the image, then, in the next cell:
        >>> clicker.segments[0].cutout("image.jpg")

    Args:
        image: the image in any form that the client accepts.
        client: a client of any family; None: one for $TRITON_URL, or else localhost:8000.
        max_side: longest side of the shown image in pixels, at least 64. Clicks are exact to a pixel of the shown
            image; masks have the size of the original image.

    Raises:
        ConfigurationError: ``max_side`` is too small.
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """

    _esm = Path(__file__).with_name("notebook.js")
    shown = traitlets.Bytes(b"", help="the image with masks and points, as JPEG").tag(sync=True)
    size = traitlets.List([1, 1], help="width and height of the original image").tag(sync=True)
    status = traitlets.Unicode("", help="a line below the image").tag(sync=True)

    def __init__(self, image: ImageSource, client: SamTritonClient | None = None, *, max_side: int = 900) -> None:
        if max_side < 64:
            raise ConfigurationError(f"max_side must be at least 64, not {max_side}")
        source = plain_source(image)
        self._canvas = open_image(source)
        self._clicking = Clicking(client if client is not None else SamTritonClient(), source, self._show)
        self._canvas.thumbnail((max_side, max_side))
        super().__init__(size=list(self._clicking.size))
        self.on_msg(self._receive)
        self._clicking.leave()  # shows the image

    @property
    def segments(self) -> list[Segment]:
        """The segments in the order of the objects. Waits for the answers to all clicks."""
        return self._clicking.segments()

    def click(self, x: float, y: float, label: int = 1) -> None:
        """Click at x, y in pixels of the original image; label 1 is inside the object, 0 outside.

        Raises:
            ConfigurationError: the label is neither 0 nor 1.
        """
        self._clicking.click(x, y, label)

    def undo(self) -> None:
        """Remove the last point. If the last object has no points, return to the previous object."""
        self._clicking.undo()

    def next_object(self) -> None:
        """Begin another object."""
        self._clicking.next_object()

    def clear(self) -> None:
        """Remove all objects."""
        self._clicking.clear()

    def _receive(self, _: object, message: dict[str, Any], __: object) -> None:
        """Handle a message of the browser; notebook.js has the messages."""
        kind = message.get("kind")
        if kind == "click":
            self._clicking.click(message["x"], message["y"], message["label"])
        elif kind == "hover":
            self._clicking.hover(message["x"], message["y"])
        elif kind in ("leave", "undo", "next_object", "clear"):
            getattr(self._clicking, kind)()

    def _show(self, view: View) -> None:
        drawn, count = self._canvas, len(view.masks)
        if view.preview is not None:
            drawn = self._drawn(drawn, [(view.preview, _color(count - 1))], alpha=PREVIEW_ALPHA)
        known = [(segment, _color(index)) for index, segment in enumerate(view.masks) if segment is not None]
        scale_x, scale_y = (new / old for new, old in zip(self._canvas.size, self._clicking.size, strict=True))
        points = [(x * scale_x, y * scale_y) for x, y in view.points]
        drawn = self._drawn(drawn, known, points=points or None, labels=view.labels or None)
        buffer = io.BytesIO()
        drawn.save(buffer, "JPEG", quality=JPEG_QUALITY)
        self.shown = buffer.getvalue()
        last = view.masks[-1]
        about = f"object {count}" + (f": score {last.score:.2f}, {last.area} pixels" if last is not None else "")
        self.status = view.error or about

    @staticmethod
    def _drawn(canvas: Image.Image, found: list[tuple[Segment, Color]], **options: Any) -> Image.Image:
        small = [Image.fromarray(segment.mask).resize(canvas.size, Image.Resampling.NEAREST) for segment, _ in found]
        return overlay(canvas, [np.asarray(mask) for mask in small], colors=[color for _, color in found], **options)


def _color(index: int) -> Color:
    return PALETTE[index % len(PALETTE)]
