"""Segments objects in a large image. Each request sends one part of the image."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .._common.lru import ByteLru
from ..client.server_models import FIXED_IMAGE, EncoderIdentity
from ..client.sync import SamTritonClient
from ..errors import PromptError
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.prompts import PromptArray
from ..masks.segment import Segment
from .joining import Joiner, LargeObject, Placed, tiles, to_objects
from .parts import SIDE, check_tiles, is_cut, length_for, part_around
from .pyramid import LargeImage, Region, Window
from .stored import StoredTiles

KEPT_PARTS = 8
"""Number of parts whose pixels and embeddings are kept for further prompts."""


class LargeImageClient:
    """A client for one large image. Threads may share it.

    Example:
        >>> with open_large_image("slide.svs") as image, SamTritonClient() as client:
        ...     (found,) = LargeImageClient(client, image).segment([[51_200, 30_400]])
        ...     print(found.box, found.polygons())

    Args:
        embeddings: a folder filled by precompute() or micro-sam. A prompt then uses the stored tile around it without
            an encode, or a larger part if the mask reaches the border of the tile.
    """

    def __init__(
        self,
        client: SamTritonClient,
        image: LargeImage,
        *,
        embeddings: str | os.PathLike[str] | None = None,
    ) -> None:
        self._client = client
        self.image = image
        self._parts: ByteLru[Region, tuple[Window, ImageEmbeddings]] = ByteLru(KEPT_PARTS)
        self._stored = None if embeddings is None else StoredTiles(embeddings, image)
        self._encoder = "" if self._stored is None else self._checked(self._stored)

    def segment(
        self,
        point_coords: PromptArray = None,
        point_labels: PromptArray = None,
        box: PromptArray = None,
        multimask_output: bool = False,
        *,
        view: Region | None = None,
        enlarge: int = 2,
    ) -> list[LargeObject]:
        """Segment one object.

        Args:
            point_coords: (N,2) points, x and y in pixels of the whole image.
            point_labels: (N,): 1 foreground, 0 background; None: all foreground.
            box: (4,) x1, y1, x2, y2 in pixels of the whole image.
            view: the visible part as x1, y1, x2, y2. None: the tile of the embeddings, or 1,024 pixels around the
                prompts, or more if the prompts are farther apart.
            enlarge: without ``view``, how many times the part is doubled in length if the mask reaches its border.

        Returns:
            One object, or three with multimask_output.
        """
        points = _array("point_coords", point_coords, 2)
        corners = _array("box", box, 4)
        around = np.concatenate([points.reshape(-1, 2), corners.reshape(-1, 2)])
        self._check(around, view)
        length = length_for(around, SIDE if self._stored is None else self._stored.length)
        while True:
            region = self.image.clip(view or self._around(around, length))
            window, embeddings = self._part(region)
            segments = self._client.segment(
                window.inside(points) if len(points) else None,
                point_labels,
                window.inside(corners.reshape(2, 2)).ravel() if corners.size else None,
                multimask_output=multimask_output,
                image=embeddings,
                logits=False,
            )
            found = [self._object(each, window) for each in segments]
            best = max(found, key=lambda each: each.score)
            if view or not best.is_cut or enlarge < 1 or length >= max(self.image.size):
                return found
            length, enlarge = 2 * length, enlarge - 1

    def everything(
        self,
        *,
        tile: int = SIDE,
        overlap: int = 256,
        level: int = 0,
        progress: Callable[[int, int], None] | None = None,
        **parameters: Any,
    ) -> list[LargeObject]:
        """Find all objects of the image, tile by tile. Objects that two tiles show are joined."""
        chosen = self.image.level_at(level)
        check_tiles(tile, overlap)
        regions = list(tiles(chosen.size, tile, overlap))
        joiner = Joiner()
        for number, region in enumerate(regions, 1):
            pixels = chosen.read(*region)
            found = self._client.everything(pixels, **parameters)
            joiner.forget(region[1])
            joiner.add(region, [one for each in found if (one := Placed.of(each.mask, region, each.score))])
            if progress is not None:
                progress(number, len(regions))
        return list(to_objects(joiner.joined(), chosen.size, self.image.size))

    def _check(self, around: np.ndarray[Any, Any], view: Region | None) -> None:
        if not len(around):
            raise PromptError("the prompt is empty: give point_coords or box")
        x1, y1, x2, y2 = view or (0, 0, *self.image.size)
        outside = ~((around >= [x1, y1]) & (around <= [x2, y2])).all(axis=1)  # also true for NaN
        if outside.any():
            x, y = around[outside][0]
            place = f"the view {x1}, {y1}, {x2}, {y2}" if view else f"the image, which has {x2} x {y2} pixels"
            raise PromptError(f"the point or corner {x:g}, {y:g} lies outside {place}")

    def _around(self, around: np.ndarray[Any, Any], length: int) -> Region:
        """Return the part for prompts: a tile with stored embeddings, else a part to encode."""
        if self._stored is not None and length == self._stored.length:
            tile = self._stored.around(around)
            if tile is not None:
                return tile
        return part_around(around, length, self.image.size)

    def _checked(self, stored: StoredTiles) -> str:
        """Check that the client's encoder computed the embeddings, and return its name."""
        encoder = EncoderIdentity.of(self._client.encode(FIXED_IMAGE))
        if not stored.check_encoder(encoder) and (sample := stored.sample()) is not None:
            number, pixels = sample
            stored.check_sample(number, self._client.encode_here(pixels), encoder.encoder)
        return encoder.encoder

    def _part(self, region: Region) -> tuple[Window, ImageEmbeddings]:
        part = self._parts.get(region)
        if part is None:
            part = self._read(region) or self._encoded(region)
            self._parts.put(region, part)
        return part

    def _read(self, region: Region) -> tuple[Window, ImageEmbeddings] | None:
        number = None if self._stored is None else self._stored.number_of(region)
        if self._stored is None or number is None:
            return None
        return self._stored.window(number), self._stored.embeddings(number, self._encoder)

    def _encoded(self, region: Region) -> tuple[Window, ImageEmbeddings]:
        window = self.image.window(region, SIDE)
        return window, self._client.encode(window.pixels)

    def _object(self, segment: Segment, window: Window) -> LargeObject:
        return LargeObject(
            segment.mask,
            window.region,
            segment.score,
            is_cut(segment.mask, window.region, self.image.size),
            segment.object_index,
            segment.candidate,
        )


def _array(name: str, values: PromptArray, columns: int) -> np.ndarray[Any, Any]:
    """Return points (N,2) or a box (1,4) as float64; without values, zero rows."""
    if values is None:
        return np.empty((0, columns))
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise PromptError(f"{name} must be numbers of one object") from error
    if array.ndim == 1 and array.shape == (columns,):
        array = array[None]
    if array.ndim != 2 or array.shape[1] != columns or (name == "box" and len(array) > 1):
        raise PromptError(f"{name} must be of one object, with {columns} columns, not of shape {array.shape}")
    return array
