"""Finds the objects of a video by words: SAM3 searches chosen frames, and a tracker shows which objects are new."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...concepts.instances import NEW_THRESHOLD, THRESHOLD, Instance, new_instances, without_doubles
from ...concepts.query import check_parameters
from ...errors import ConfigurationError, VideoError
from ...inputs.video.base import FrameSource
from ...inputs.video.opening import VideoSource, open_frames
from ...masks.rle import BoolArray
from ..sync import SamTritonClient
from .sync import SAM2VideoClient

OnSearch = Callable[[int, int], object]
"""Called after each searched frame with its index and the number of objects so far."""


@dataclass(frozen=True, eq=False)
class FoundInVideo:
    """An object of a video, in the frame where it was found.

    Args:
        object_id: its id, from 1.
        frame: index of the frame.
        text: the text that it is an instance of.
        score: the detector's score, 0..1.
        box: x1, y1, x2, y2 in pixels of the video, from the detector.
        mask: bool (H,W), the object in this frame: a prompt for Video.add().
    """

    object_id: int
    frame: int
    text: str
    score: float
    box: tuple[float, float, float, float]
    mask: BoolArray

    def __repr__(self) -> str:
        box = tuple(round(edge) for edge in self.box)
        return f"FoundInVideo({self.object_id}, {self.text!r}, frame={self.frame}, box={box}, score={self.score:.2f})"


def find_in_video(
    finder: SamTritonClient,
    tracker: SAM2VideoClient,
    source: VideoSource,
    text: str | Sequence[str],
    *,
    every: int | None = None,
    start: int = 0,
    stop: int | None = None,
    step: int = 1,
    quality: int | None = None,
    threshold: float = THRESHOLD,
    new_threshold: float = NEW_THRESHOLD,
    on_search: OnSearch | None = None,
    **details: Any,
) -> list[FoundInVideo]:
    """Find every instance of words in a video, as prompts for the tracker.

    The first frame is searched, and with ``every`` further frames. Between them, the tracker follows the known objects.
    An instance is a new object unless its mask overlaps that of a known object of its text (IoU of at least 0.1). The
    rules are those of Sam3VideoModel in transformers, but a search neither changes nor ends known objects.

    Args:
        finder: a client of SAM3, whose server has the models for words.
        tracker: a client of videos. It is used only with ``every``.
        source: see SAM2VideoClient.open(). Streams cannot be searched, because their frames cannot be read again.
        text: one text or several, see SAM2TritonClient.find().
        every: distance between searched frames, a multiple of ``step``; None: only the first frame.
        start: index of the first frame; with ``every``, a multiple of ``step``.
        stop: index after the last frame; None: the end of the video.
        step: distance between tracked frames, see ``every`` of SAM2VideoClient.open().
        quality: see SAM2VideoClient.open().
        threshold: an instance needs a higher score.
        new_threshold: minimum score of a new object in a frame with tracked objects.
        on_search: see OnSearch.
        details: ``mask_threshold``, ``nms`` and ``limit`` of SAM2TritonClient.find().

    Returns:
        The objects with ids from 1, in the order in which they were found.

    Raises:
        PromptError: a text or a parameter is invalid.
        ConfigurationError: the choice of frames is invalid.
        VideoError: the source cannot be read, or is a stream.
        ServerError: see triton_sam.errors.
    """
    wanted = {"threshold": threshold, **details}
    check_parameters(text, None, None, wanted)
    texts = [text] if isinstance(text, str) else list(text)
    with contextlib.ExitStack() as stack:
        frames = stack.enter_context(contextlib.closing(open_frames(source, quality)))
        chosen = chosen_frames(frames.num_frames, every, start, stop, step)
        objects: list[FoundInVideo] = []
        tracked: Mapping[int, BoolArray] = {}
        video: Any = None
        for frame, following in zip(chosen, [*chosen[1:], None], strict=True):
            found = without_doubles(finder.find(texts, image=_content(frames, frame), **wanted))
            known = [(texts.index(each.text), tracked[each.object_id]) for each in objects]
            new = [
                _object(number, frame, each)
                for number, each in enumerate(new_instances(found, known, new_threshold), len(objects) + 1)
            ]
            objects += new
            if on_search is not None:
                on_search(frame, len(objects))
            if following is None or not objects:
                continue
            if video is None:
                video = stack.enter_context(tracker.open(frames, quality=quality, every=step))
            for each in new:
                video.add(frame, each.object_id, mask=each.mask)
            tracked = _masks_at(video, frame, (following - frame) // step + 1)
    return objects


def chosen_frames(
    num_frames: int | None,
    every: int | None,
    start: int,
    stop: int | None,
    step: int,
    names: tuple[str, str, str] = ("every", "step", "start or stop"),
) -> range:
    """Return the frames to search; see find_in_video().

    Args:
        num_frames: None for a stream.
        every: distance between searched frames; None: only the first frame.
        start: index of the first frame.
        stop: index after the last frame; None: the end of the video.
        step: distance between tracked frames.
        names: the names of ``every``, of ``step`` and of the part of the video in messages.

    Raises:
        ConfigurationError: there is no frame, or the numbers are inconsistent.
        VideoError: the source is a stream.
    """
    if num_frames is None:
        raise VideoError("words cannot be searched in a stream: give a video file, a folder or a list of images")
    for name, distance in ((names[0], every), (names[1], step)):
        if distance is not None and distance < 1:
            raise ConfigurationError(f"{name} must be at least 1, not {distance}")
    if every is not None and every % step:
        raise ConfigurationError(f"{names[0]} must be a multiple of {names[1]} ({step}), not {every}")
    if every is not None and start % step:
        raise ConfigurationError(
            f"the first frame must be a multiple of {names[1]} ({step}), not {start}: give another {names[2]}"
        )
    end = min(num_frames, num_frames if stop is None else stop)
    if start < 0 or start >= end:
        span = f"from frame {start} {'on' if stop is None else f'to {stop}'}"
        raise ConfigurationError(
            f"there is no frame to search {span}: the video has the frames 0 to {num_frames - 1}; "
            f"give another {names[2]}"
        )
    return range(start, end if every is not None else start + 1, every or 1)


def _content(frames: FrameSource, index: int) -> bytes:
    frame = frames.frame(index)
    if frame is None:
        raise VideoError(f"frame {index} cannot be read: the video has fewer frames than its file says")
    return frame.content


def _object(object_id: int, frame: int, found: Instance) -> FoundInVideo:
    return FoundInVideo(object_id, frame, found.label, found.score, found.found_box, found.mask)


def _masks_at(video: Any, start: int, count: int) -> dict[int, BoolArray]:
    """Track all objects over frames; return their masks in the last one.

    Raises:
        VideoError: the video ends before it.
    """
    done, last = 0, {}
    for _, last in video.propagate(start=start, count=count, logits=False):  # noqa: B007 - the last one is wanted
        done += 1
    if done < count:
        raise VideoError(f"the video ends after {done} of {count} frames from frame {start} on")
    return {object_id: segment.mask for object_id, segment in last.items()}
