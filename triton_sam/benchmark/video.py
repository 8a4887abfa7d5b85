"""Measures how fast objects are tracked: the official video predictor, this process and a server, in turns."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..client.video.sync import SAM2VideoClient
from ..export import registry
from ..export.settings import Settings
from ..families import get_family
from ..local_server import LocalServer
from ..scenes.clip import generate_clip
from ..transport.onnx import OnnxTransport
from ..verify.video import ClientRunner, ReferenceRunner, VideoRunner
from ..verify.video_transport import VideoTransport

FAMILY = "sam2"
FIRST_COUNTED = 8
"""From this frame on, each frame attends to all seven memories. Earlier frames are not counted."""
_OFFICIAL, _IN_PROCESS = "official predictor", "in process"
_SEED = 10_000_100
_PATIENCE = 600.0  # seconds; a frame of a large model on a busy processor takes long

Frames = Sequence[npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class VideoSpeed:
    """The time of one frame, from the request for it until its masks are there.

    Args:
        runner: name of the runner.
        objects: number of objects that are tracked at the same time.
        frames: number of frames that were measured.
        median: median of the times, seconds.
        p90: 90th percentile of the times, seconds.
    """

    runner: str
    objects: int
    frames: int
    median: float
    p90: float

    @property
    def frames_per_second(self) -> float:
        """Frames a second, by the median."""
        return 1 / self.median


@dataclass(frozen=True)
class VideoBenchmark:
    """The choices of a measurement.

    Args:
        checkpoint: official checkpoint; None for random weights.
        model: see export.settings.Settings.model.
        image_size: side of the encoder's image in pixels.
        frames: number of frames of each clip, more than FIRST_COUNTED.
        rounds: number of clips; every runner tracks each of them, one after the other.
        objects: numbers of objects.
    """

    checkpoint: Path | None
    model: str | None
    image_size: int
    frames: int = 20
    rounds: int = 2
    objects: tuple[int, ...] = (1, 4)


def measure_video(settings: VideoBenchmark, *, progress: bool = True) -> list[VideoSpeed]:
    """Export the models, serve them with a local Triton, and measure all runners in turns.

    Raises:
        SamError: the export failed, or no Triton can start here.
    """
    seed = None if settings.checkpoint else 0
    family = get_family(FAMILY).at(settings.image_size)
    times: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_video_")))
        exported = registry.export(
            FAMILY,
            Settings(
                folder,
                settings.checkpoint,
                settings.model,
                image_size=settings.image_size,
                random_seed=seed,
                progress=progress,
                video=True,
            ),
        )
        models = OnnxTransport({family.model_name(role): file for role, file in exported.files.items()})
        server = stack.enter_context(LocalServer(folder))
        clients = {
            _IN_PROCESS: SAM2VideoClient(transport=VideoTransport(family, models)),
            "served over http": SAM2VideoClient(server.http_url, timeout=_PATIENCE),
            "served over grpc": SAM2VideoClient(server.grpc_url, timeout=_PATIENCE),
        }
        for client in clients.values():
            stack.enter_context(client)
        for number in range(settings.rounds):
            # Every round has a clip of its own: the server would know the frames of an earlier one.
            clip = list(generate_clip(_SEED + number, settings.frames).images)
            official = registry.video_reference(
                FAMILY, settings.checkpoint, settings.model, seed, settings.image_size, clip
            )
            for count in settings.objects:
                for name, runner in _runners(clients, official, clip):
                    times.setdefault((name, count), []).extend(_time(runner, clip, count))
    return [_speed(name, count, seconds) for (name, count), seconds in times.items()]


def format_speeds(speeds: Sequence[VideoSpeed]) -> str:
    """Return the speeds as aligned plain text, with the ratio to the official predictor."""
    official = {speed.objects: speed.median for speed in speeds if speed.runner == _OFFICIAL}
    lines = [("runner", "objects", "frames", "median", "90 %", "frames/s", "official = 1")]
    for speed in speeds:
        numbers = f"{speed.median * 1000:.0f} ms", f"{speed.p90 * 1000:.0f} ms", f"{speed.frames_per_second:.2f}"
        ratio = f"{official[speed.objects] / speed.median:.2f}"
        lines.append((speed.runner, str(speed.objects), str(speed.frames), *numbers, ratio))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _runners(clients: Mapping[str, SAM2VideoClient], official: Any, clip: Frames) -> Iterator[tuple[str, VideoRunner]]:
    """Yield each runner while it is the only one that has the clip open."""
    yield _OFFICIAL, ReferenceRunner(official)
    for name, client in clients.items():
        # JPEG files are what people have. The seed of the noise differs in each runner, so no runner finds embeddings.
        with client.open([_marked(frame, len(name)) for frame in clip], quality=95) as video:
            yield name, ClientRunner(video)


def _marked(frame: npt.NDArray[np.uint8], mark: int) -> npt.NDArray[np.uint8]:
    """Return a frame with one other pixel, so that it is another image for a server that has seen the first one."""
    marked = frame.copy()
    marked[0, 0] = time.monotonic_ns() % 251, mark, 0
    return marked


def _time(runner: VideoRunner, clip: Frames, objects: int) -> list[float]:
    """Track objects through a clip; return the seconds of each counted frame."""
    runner.reset()
    height, width = clip[0].shape[:2]
    rng = np.random.default_rng(objects)
    for object_id in range(1, objects + 1):
        point = rng.uniform(0.2, 0.8, 2) * (width, height)
        runner.add(0, object_id, points=[point.tolist()], labels=[1])
    seconds = []
    began = time.perf_counter()
    for frame, _ in runner.propagate(None, reverse=False):
        now = time.perf_counter()
        if frame >= FIRST_COUNTED:
            seconds.append(now - began)
        began = now
    return seconds


def _speed(name: str, objects: int, seconds: Sequence[float]) -> VideoSpeed:
    p90 = float(np.percentile(seconds, 90))
    return VideoSpeed(name, objects, len(seconds), statistics.median(seconds), p90)
