"""Measure tracking, and show the results: prompt each object where it appears, track all, compare each frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..client.video import Video
from ..errors import ConfigurationError, InputError
from ..inputs.images import ImageSource
from ..masks.boxes import intersection_over_union
from ..masks.segment import VideoSegment
from ..tracks.formats import label_map
from .clicks import first_click, tight_box
from .datasets import KnownVideo, VideoDataset
from .metrics import TrackResult, TrackSummary, contour_accuracy, summarize_tracks

PromptKind = Literal["mask", "box", "click"]

OpenVideo = Callable[[Sequence[ImageSource]], AbstractContextManager[Video]]
"""Opens the frames of a video in a client, for example ``SAM2VideoClient.open``."""


@dataclass(frozen=True)
class VideoSettings:
    """The settings of a measurement of videos.

    Args:
        prompt: the only prompt of an object, in the first frame that shows it: its true mask, its tight box, or a click
            on the pixel that is farthest from its border.
    """

    prompt: PromptKind = "mask"
    most_objects: int = 32

    def __post_init__(self) -> None:
        if self.most_objects < 1:
            raise ConfigurationError("the number of objects must be at least 1")


def measure_video(
    opens: OpenVideo,
    known: KnownVideo,
    settings: VideoSettings,
    progress: Callable[[int, Mapping[int, VideoSegment]], None] = lambda _frame, _masks: None,
) -> list[TrackResult]:
    """Track all objects of a video and compare each frame with a label map.

    As in the toolkit of DAVIS (semi-supervised), masks do not overlap (see tracks.label_map), the frame of the prompt
    and the last frame of the video do not count, and an object is tracked from its first frame on.

    Returns:
        One result for each object with a measured frame.
    """
    first = _first_frames(known, settings.most_objects)
    if not first:
        raise InputError(f"{known.name} contains no objects: its label maps are 0 everywhere")
    measured: dict[int, list[tuple[int, float, float]]] = {number: [] for number in first}
    with opens(known.images) as video:
        for frame, masks in _tracked(video, known, first, settings.prompt):
            progress(frame, masks)
            if frame in known.truth and frame != len(known.images) - 1:
                for number, j, f in _compare(known.truth[frame](), masks, first, frame):
                    measured[number].append((frame, j, f))
    results = [_result(known.name, number, rows) for number, rows in measured.items() if rows]
    if not results:
        raise InputError(f"{known.name} has no frame to measure: label maps are needed after the first frame")
    return results


def _tracked(
    video: Video, known: KnownVideo, first: Mapping[int, int], prompt: PromptKind
) -> Iterator[tuple[int, Mapping[int, VideoSegment]]]:
    """Track the video in parts, each from a frame in which objects appear to the next such frame."""
    starts = sorted(set(first.values()))
    for start, stop in zip(starts, [*starts[1:], len(known.images)], strict=True):
        truth = known.truth[start]()
        for number, frame in first.items():
            if frame == start:
                _prompt(video, number, frame, truth == number, prompt)
        yield from video.propagate(start=start, count=stop - start)


def _first_frames(known: KnownVideo, most: int) -> dict[int, int]:
    """Return the first visible frame of each object."""
    first: dict[int, int] = {}
    for frame, load in sorted(known.truth.items()):
        for number in np.unique(load()):
            if number != 0 and len(first) < most:
                first.setdefault(int(number), frame)
    return dict(sorted(first.items()))


def _prompt(video: Video, number: int, frame: int, truth: NDArray[np.bool_], kind: PromptKind) -> None:
    if kind == "mask":
        video.add(frame, number, mask=truth)
    elif kind == "box":
        video.add(frame, number, box=tight_box(truth).tolist())
    else:
        click = first_click(truth)
        video.add(frame, number, points=[[click.x, click.y]], labels=[click.label])


def _compare(
    truth: NDArray[np.integer[Any]], masks: Mapping[int, VideoSegment], first: Mapping[int, int], frame: int
) -> Iterator[tuple[int, float, float]]:
    labels = label_map(masks)
    if labels.shape != truth.shape:
        raise InputError(f"frame {frame}: the label map has {truth.shape} rows and columns, the video {labels.shape}")
    for number, prompted in first.items():
        if frame > prompted:
            mask, wanted = labels == number, np.asarray(truth == number)
            yield number, intersection_over_union(mask, wanted), contour_accuracy(mask, wanted)


def _result(name: str, number: int, rows: Sequence[tuple[int, float, float]]) -> TrackResult:
    frames, j, f = zip(*rows, strict=True)
    return TrackResult(name, number, frames, j, f)


@dataclass(frozen=True)
class VideoReport:
    """The measurements on one data set of videos."""

    dataset: VideoDataset
    results: tuple[TrackResult, ...]
    complete: bool = True

    @property
    def by_video(self) -> dict[str, TrackSummary]:
        names = dict.fromkeys(each.video for each in self.results)
        return {name: summarize_tracks([each for each in self.results if each.video == name]) for name in names}


def videos_to_json(reports: Sequence[VideoReport], settings: VideoSettings) -> dict[str, Any]:
    """Return all measurements as plain Python types, ready for JSON."""
    return {
        "settings": asdict(settings),
        "datasets": [
            {
                "name": report.dataset.name,
                "about": report.dataset.about,
                "complete": report.complete,
                "summary": _summary(summarize_tracks(report.results)),
                "videos": {name: _summary(each) for name, each in report.by_video.items()},
                "objects": [asdict(result) for result in report.results],
            }
            for report in reports
        ],
    }


def video_table(reports: Sequence[VideoReport]) -> str:
    """Return the metrics as plain text, with a row per video and a row for the mean over all objects."""
    width = max(24, *(2 + len(name) for report in reports for name in report.by_video))
    lines = []
    for report in reports:
        title = report.dataset.name + ("" if report.complete else " (partial)")
        lines.append(f"{title:{width}}{'objects':>9}{'frames':>8}{'J&F':>8}{'J':>8}{'F':>8}{'J>0.5':>8}{'F>0.5':>8}")
        lines += [_row(f"  {name}", each, width) for name, each in report.by_video.items()]
        lines.append(_row("  mean over objects", summarize_tracks(report.results), width))
    return "\n".join(lines)


def _summary(summary: TrackSummary) -> dict[str, Any]:
    return {**asdict(summary), "j_and_f": summary.j_and_f}


def _row(name: str, each: TrackSummary, width: int) -> str:
    values = (each.j_and_f, each.j, each.f, each.j_recall, each.f_recall)
    return f"{name:{width}}{each.objects:9}{each.frames:8}" + "".join(f"{value:8.3f}" for value in values)
