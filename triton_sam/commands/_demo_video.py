"""The video demo: tracks objects through a drawn clip and compares them with the ground truth."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from .._common import strict_json
from ..errors import ModelNotReadyError
from ..families import get_family
from ..families.tracking import MEMORY_ATTENTION
from ..masks.segment import VideoSegment
from ..repository.folder import read_model
from ..tracks.formats import draw_records, has_av, write_gif, write_mp4
from ..tracks.records import MaskRecord
from ..wire.video import video_model
from . import _options, _server, _video

if TYPE_CHECKING:
    from ..scenes.clip import Clip

SEED = 0
RATE = Fraction(12)
"""Frames per second of the overlay."""

_UNTRAINED = ("random seed", "untrained")
"""Text in the metadata of a model with an untrained memory."""
_SMALL_GIF = 256
"""Side of the GIF in pixels. The GIF is written if PyAV is missing."""


def run(args: argparse.Namespace, out: Path) -> int:
    """Track each object of the clip from one click, write an overlay, and print J and F."""
    from ..evaluation.datasets import VideoDataset, open_videos
    from ..evaluation.video_runner import VideoReport, VideoSettings, measure_video, video_table
    from ..scenes.clip import generate_clip

    known = open_videos("clips", 1, SEED).loaders[0][1]()
    records: dict[int, list[MaskRecord]] = {}

    def keep(frame: int, masks: Mapping[int, VideoSegment]) -> None:
        records[frame] = [MaskRecord.of(frame, object_id, found) for object_id, found in masks.items()]

    with (
        _found_or_local(args) as (url, is_untrained),
        _video.make_client(url, None, 120.0, _options.access(args)) as client,
    ):
        start = time.perf_counter()
        results = measure_video(lambda images: _video.opened(client, images), known, VideoSettings("click"), keep)
        seconds = time.perf_counter() - start
    path = _write_overlay(generate_clip(SEED), records, out)
    report = VideoReport(VideoDataset("drawn clip, one click", "", ()), tuple(results))
    if args.json:
        objects = [{"object_id": each.object_id, "j": each.j, "f": each.f} for each in results]
        print(strict_json.dumps({"objects": objects, "overlay": str(path), "seconds": round(seconds, 2)}))
        return 0
    print(video_table([report]))
    print(f"{len(records)} frames with {len(results)} objects in {seconds:.1f} s\nwrote {path}")
    if not args.quiet and is_untrained:
        print(
            "The memory of this model is untrained, so its masks do not follow the objects. The official weights do: "
            "triton-sam setup sam2 --video"
        )
    return 0


def _write_overlay(clip: Clip, records: Mapping[int, list[MaskRecord]], out: Path) -> Path:
    drawn = [draw_records(Image.fromarray(clip.images[frame]), records[frame]) for frame in sorted(records)]
    if has_av():
        path = out / "clip_overlay.mp4"
        write_mp4(path, drawn, RATE)
    else:
        path = out / "clip_overlay.gif"
        write_gif(path, [image.resize((_SMALL_GIF, _SMALL_GIF)) for image in drawn], RATE)
    return path


@contextlib.contextmanager
def _found_or_local(args: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Yield (URL, whether its memory is known to be untrained) of a given, running or new local server."""
    url = _server.running_url(args, lambda: _video.make_client(None, None, 5.0, _options.access(args)))
    if url is not None:
        yield url, False
        return
    repository, family = _options.repository(args), get_family("sam2")
    memory = repository / family.model_name(MEMORY_ATTENTION)
    model = read_model(memory)
    if not (memory.is_dir() and model.has_weights):
        raise ModelNotReadyError(f"{repository} has no weights for {video_model(family)}: {_video.HOW_TO_GET_MODELS}")
    is_untrained = any(word in value for value in model.metadata.values() for word in _UNTRAINED)
    with _server.local_server(args, repository, [video_model(family)]) as server:
        yield server.http_url, is_untrained
