"""Writes video files of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DEFAULTS = {"width": 64, "height": 48, "pix_fmt": "yuv420p", "gop_size": 6, "max_b_frames": 0, "bit_rate": 2_000_000}


def add_stream(container: Any, codec: str = "mpeg4", rate: Any = 10, **attributes: Any) -> Any:
    if codec not in pytest.importorskip("av").codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    return container.add_stream(codec, rate=rate, **{**DEFAULTS, **attributes})


def encode(container: Any, stream: Any, frames: Iterable[np.ndarray], times: Sequence[int] | None = None) -> None:
    """Encode RGB frames, whose times are in milliseconds, or at the rate of the stream."""
    if times is not None:
        stream.codec_context.time_base = Fraction(1, 1000)
    container.start_encoding()
    for index, pixels in enumerate(frames):
        frame = pytest.importorskip("av").VideoFrame.from_ndarray(pixels, format="rgb24")
        if times is not None:
            frame.pts, frame.time_base = times[index], Fraction(1, 1000)
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def write_video(path: Path, frames: Iterable[np.ndarray], times: Sequence[int] | None = None, **stream: Any) -> Path:
    """Write a file in the format of its suffix, which a player can read from its beginning."""
    with pytest.importorskip("av").open(str(path), "w", options={"movflags": "faststart"}) as container:
        encode(container, add_stream(container, **stream), frames, times)
    return path
