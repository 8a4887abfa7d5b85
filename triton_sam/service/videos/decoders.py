"""A few open decoders for all videos. Each keeps decoded frames in memory; the least recently used one is closed."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Literal

from ...errors import VideoError
from ...families.base import Size
from ...inputs.video.base import Frame, FrameSource
from .files import VideoFile
from .tracking import gone

MAX_DECODERS = 8
"""Each keeps up to 128 MiB of decoded frames."""
PREVIEW_QUALITY = 90

Purpose = Literal["preview", "tracking"]
"""Previews need random frames and tracking needs consecutive ones, so each has its own decoder."""


class Decoders:
    """The open decoders, for use by several threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[VideoFile, Purpose], FrameSource] = OrderedDict()
        self._forgotten: weakref.WeakSet[VideoFile] = weakref.WeakSet()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def frame(self, video: VideoFile, index: int, purpose: Purpose) -> Frame:
        """Return a frame. This blocks."""
        found = self._source(video, purpose).frame(index)
        if found is None:
            raise VideoError(f"the video ends before frame {index}: it is damaged")
        return found

    def forget(self, video: VideoFile) -> None:
        """Close the decoders of a video, and open no more; this may block while one of them decodes."""
        with self._lock:
            self._forgotten.add(video)
            closed = [self._open.pop(key) for key in list(self._open) if key[0] == video]
        for source in closed:
            source.close()

    def _source(self, video: VideoFile, purpose: Purpose) -> FrameSource:
        key = (video, purpose)
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
        made = video.open(PREVIEW_QUALITY if purpose == "preview" else None)
        dropped = []
        with self._lock:
            if video in self._forgotten:  # its file is deleted, and an open one would still fill the disk
                made.close()
                raise gone()
            source = self._open.setdefault(key, made)
            self._open.move_to_end(key)
            if source is not made:
                dropped.append(made)
            while len(self._open) > MAX_DECODERS:
                dropped.append(self._open.popitem(last=False)[1])
        for old in dropped:
            old.close()
        return source


class StoredFrames(FrameSource):
    """The frames of an uploaded video for the client: the decoder may be closed and reopened between two frames."""

    def __init__(self, video: VideoFile, decoders: Decoders) -> None:
        super().__init__("the video")
        self.num_frames = video.num_frames
        self.size = video.size
        self._video = video
        self._decoders = decoders

    def _read(self, index: int) -> tuple[bytes, Size] | None:
        if index >= self._video.num_frames:
            return None
        frame = self._decoders.frame(self._video, index, "tracking")
        return frame.content, frame.size
