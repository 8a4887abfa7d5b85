#!/usr/bin/env python3
"""Measure how fast SAM2 tracks objects: the official video predictor, this process and a local Triton, in turns.

Without --checkpoint, the weights are random: they take as long as trained ones. Example:

    python tools/lab/benchmark_sam2_video.py --size tiny --image-size 512 --objects 1 4
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triton_sam._common.process import run_program
from triton_sam._common.text import aligned
from triton_sam.client.video.sync import SAM2VideoClient
from triton_sam.export import registry
from triton_sam.export.reference import VideoReference
from triton_sam.export.settings import Settings
from triton_sam.families import get_family, tracking_families
from triton_sam.local_server import LocalServer
from triton_sam.scenes.clip import generate_clip
from triton_sam.transport.onnx import OnnxTransport
from triton_sam.verify.video import ClientRunner, VideoTransport

FIRST_COUNTED = 8
"""From this frame on, each frame attends to all seven memories. Earlier frames are not measured."""
_OFFICIAL = "official predictor"
_SEED = 10_000_100
_JPEG_QUALITY = 95  # frames are usually JPEG files
_PATIENCE = 600.0  # seconds; a frame of a large model takes long on a busy CPU

Frames = Sequence[npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class VideoSpeed:
    """The time of one frame, from the request until the masks are available."""

    runner: str
    objects: int
    frames: int
    median: float
    p90: float

    @property
    def frames_per_second(self) -> float:
        """Median frames per second."""
        return 1 / self.median


@dataclass(frozen=True)
class VideoBenchmark:
    """The settings of a measurement.

    Args:
        checkpoint: official checkpoint; None for random weights.
    """

    checkpoint: Path | None
    model: str | None
    image_size: int
    frames: int = 20
    rounds: int = 2
    objects: tuple[int, ...] = (1, 4)
    family: str = "sam2"

    @property
    def random_seed(self) -> int | None:
        """The seed of random weights; None with a checkpoint."""
        return None if self.checkpoint else 0


def measure_video(settings: VideoBenchmark, *, progress: bool = True) -> list[VideoSpeed]:
    """Export the models, serve them with a local Triton and measure all runners in turns."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_video_")))
        files = _export(settings, folder, progress)
        family = get_family(settings.family).at(settings.image_size)
        models = OnnxTransport({family.model_name(role): file for role, file in files.items()})
        server = stack.enter_context(LocalServer(folder))
        clients = {
            "in process": SAM2VideoClient(model_type=family.name, transport=VideoTransport(family, models)),
            "served over http": SAM2VideoClient(server.http_url, model_type=family.name, timeout=_PATIENCE),
            "served over grpc": SAM2VideoClient(server.grpc_url, model_type=family.name, timeout=_PATIENCE),
        }
        for client in clients.values():
            stack.enter_context(client)
        times = _measure(settings, clients)
    return [_speed(name, count, seconds) for (name, count), seconds in times.items()]


def format_speeds(speeds: Sequence[VideoSpeed]) -> str:
    """Return the speeds as aligned plain text, with the ratio to the official predictor."""
    official = {speed.objects: speed.median for speed in speeds if speed.runner == _OFFICIAL}
    head = ("runner", "objects", "frames", "median", "90 %", "frames/s", "official = 1")
    lines: list[tuple[str, ...]] = []
    for speed in speeds:
        numbers = f"{speed.median * 1000:.0f} ms", f"{speed.p90 * 1000:.0f} ms", f"{speed.frames_per_second:.2f}"
        ratio = f"{official[speed.objects] / speed.median:.2f}"
        lines.append((speed.runner, str(speed.objects), str(speed.frames), *numbers, ratio))
    return aligned(head, lines)


def _export(settings: VideoBenchmark, folder: Path, progress: bool) -> Mapping[str, Path]:
    """Export the models and return their files by role."""
    chosen = Settings(
        folder,
        settings.checkpoint,
        settings.model,
        image_size=settings.image_size,
        random_seed=settings.random_seed,
        progress=progress,
        video=True,
    )
    return registry.export(settings.family, chosen).files


def _measure(settings: VideoBenchmark, clients: Mapping[str, SAM2VideoClient]) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of the counted frames by runner and number of objects."""
    # Every pass has its own clip, because a server caches the frames of earlier passes.
    clips = (list(generate_clip(number, settings.frames).images) for number in itertools.count(_SEED))
    times: dict[tuple[str, int], list[float]] = {}
    for _, count in itertools.product(range(settings.rounds), settings.objects):
        clip = next(clips)
        weights = settings.checkpoint, settings.model, settings.random_seed
        exporter, model = registry.official(settings.family, *weights, settings.image_size)
        exporter.add_video(model, Settings(Path(), *weights[:2], random_seed=weights[2], video=True))
        official = exporter.video_reference(model, clip)
        times.setdefault((_OFFICIAL, count), []).extend(_time(official, clip, count))
        for name, client in clients.items():
            clip = next(clips)
            with client.open(clip, quality=_JPEG_QUALITY) as video:
                times.setdefault((name, count), []).extend(_time(ClientRunner(video), clip, count))
    return times


def _time(runner: VideoReference, clip: Frames, objects: int) -> list[float]:
    """Track objects through a clip; return the seconds of each counted frame."""
    runner.reset()
    height, width = clip[0].shape[:2]
    rng = np.random.default_rng(objects)
    for object_id in range(1, objects + 1):
        point = rng.uniform(0.2, 0.8, 2) * (width, height)
        runner.add(0, object_id, points=[point.tolist()], labels=[1])
    seconds = []
    began = time.perf_counter()
    for frame, _ in runner.propagate():
        now = time.perf_counter()
        if frame >= FIRST_COUNTED:
            seconds.append(now - began)
        began = now
    return seconds


def _speed(name: str, objects: int, seconds: Sequence[float]) -> VideoSpeed:
    p90 = float(np.percentile(seconds, 90))
    return VideoSpeed(name, objects, len(seconds), statistics.median(seconds), p90)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tracking_families(), default="sam2", help="model family (default: sam2)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="official checkpoint")
    parser.add_argument(
        "--size", help="size of the model (default: from the checkpoint's name, else the family's for random weights)"
    )
    parser.add_argument("--image-size", type=int, default=1024, metavar="PIXELS", help="default: 1024")
    parser.add_argument("--objects", type=int, nargs="+", default=[1, 4], metavar="N", help="default: 1 4")
    parser.add_argument("--frames", type=int, default=20, metavar="N", help="frames of each clip (default: 20)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="clips (default: 2)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the result alone")
    args = parser.parse_args()
    if args.frames <= FIRST_COUNTED or args.rounds < 1:
        parser.error(
            f"--frames must be above {FIRST_COUNTED}, since the first frames do not count; --rounds at least 1"
        )
    family = get_family(args.model)
    model = family.find_size(args.size).model if args.size or args.checkpoint is None else None
    settings = VideoBenchmark(
        args.checkpoint, model, args.image_size, args.frames, args.rounds, tuple(args.objects), family.name
    )
    print(format_speeds(measure_video(settings, progress=not args.quiet)))
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
