"""The common parts of the requests and answers of all session models."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from .._common import strict_json
from .._common.checks import json_kind
from ..errors import InputError, PromptError
from ..families.base import Size
from ..wire import contract

Tensors = dict[str, npt.NDArray[Any]]
OUTPUT_FORMATS = contract.output_formats()
"""The formats of masks in an answer. The first is the default."""
MAX_JSON = 8 << 20
"""Maximum bytes of a JSON input, which takes about 20 times as much memory as an object of Python."""
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 1 << 27)
"""Maximum number of pixels of an image that Pillow opens."""


@dataclass
class Reply:
    """The answer to one request, with the counts for its metrics.

    Args:
        tensors: outputs by name; after an error only ``result_json``, if the request expects its answer there.
        undo: reverts the request, for example closes its new session, if its client does not receive the answer.
    """

    tensors: Tensors = field(default_factory=dict)
    error: Exception | None = None
    counts: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    seconds: dict[str, float] = field(default_factory=dict)
    undo: Callable[[], None] | None = None

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = time.perf_counter() - began

    def fail(self, error: Exception, tensors: Tensors | None = None) -> Reply:
        """Make this the answer to a request that failed, and return it."""
        self.counts["failures"] += 1
        self.error = error.with_traceback(None)  # the traceback refers to this reply, and to images
        self.tensors = tensors or {}
        return self


def read_bytes(tensors: Mapping[str, npt.NDArray[Any]], name: str, most: int | None = None) -> bytes | None:
    """Return the content of a BYTES input with one element; None if the request does not have it.

    Args:
        most: maximum number of bytes.
    """
    array = tensors.get(name)
    if array is None:
        return None
    if not array.size:
        raise InputError(f"{name} is empty")
    value = array.ravel()[0]
    content = value if isinstance(value, bytes) else bytes(value)
    if most is not None and len(content) > most:
        raise InputError(f"{name} has {len(content)} bytes, and may have {most}")
    return content


def read_object(
    tensors: Mapping[str, npt.NDArray[Any]], name: str, example: str, error: type[InputError] = InputError
) -> dict[str, Any]:
    content = read_bytes(tensors, name, MAX_JSON) or b""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as reason:  # ValueError includes text that is not UTF-8
        raise error(f"{name}: invalid JSON: {reason}") from reason
    if not isinstance(value, dict):
        raise error(f"{name} must be an object such as {example}, not {json_kind(value)}")
    return value


def check_pixels(name: str, size: Size) -> None:
    """Refuse a width and height that Pillow would not open."""
    if size[0] * size[1] > MAX_PIXELS:
        raise InputError(f"{name} may have at most {MAX_PIXELS} pixels")


def check_points(*lists: Any) -> None:
    """Refuse too many points before they become arrays.

    Args:
        lists: nested lists or arrays of coordinates, or None.
    """
    count = sum(map(_leaves, lists)) // 2
    if count > contract.MAX_POINTS:
        raise PromptError(f"{count} points: a request may have at most {contract.MAX_POINTS}, and a box counts as two")


def _leaves(value: Any) -> int:
    """Count the numbers and the empty lists in nested lists or an array, without trusting their shape."""
    if value is None:
        return 0
    if isinstance(value, np.ndarray):
        return value.size
    pending, count = [value], 0
    while pending:
        item = pending.pop()
        if isinstance(item, list) and item:
            pending.extend(item)
        else:
            count += item is not None
    return count


def read_format(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the requested format of masks, one of OUTPUT_FORMATS."""
    content = read_bytes(tensors, contract.OUTPUT_FORMAT)
    if content is None:
        return contract.LOGITS
    name = content.decode(errors="replace")
    if name not in OUTPUT_FORMATS:
        raise InputError(f"output_format must be one of {', '.join(OUTPUT_FORMATS)}, not {name[:40]!r}")
    return name


def json_tensor(value: Mapping[str, Any]) -> npt.NDArray[np.object_]:
    """Return a JSON object as a BYTES tensor of one element."""
    return np.array([strict_json.dumps(value).encode()], np.object_)
