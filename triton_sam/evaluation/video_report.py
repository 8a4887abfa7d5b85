"""The results of videos as a plain-text table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .video_metrics import TrackResult, TrackSummary, summarize_tracks
from .video_runner import VideoSettings
from .videos import VideoDataset


@dataclass(frozen=True)
class VideoReport:
    """The measurements on one data set of videos."""

    dataset: VideoDataset
    results: tuple[TrackResult, ...]
    complete: bool = True

    @property
    def by_video(self) -> dict[str, TrackSummary]:
        """The metrics of each video."""
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
