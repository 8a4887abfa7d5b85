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
from ..errors import ModelNotReadyError, SamError
from ..families import get_family
from ..families.tracking import MEMORY_ATTENTION
from ..masks.segment import VideoSegment
from ..repository.folder import version_folders
from ..repository.onnx_header import read_metadata
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

    with _found_or_local(args) as url, _video.make_client(url, None, 120.0, _options.access(args)) as client:
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
    if not args.quiet and _memory_is_untrained(_options.repository(args)):
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
def _found_or_local(args: argparse.Namespace) -> Iterator[str | None]:
    """Yield the URL of the given server, a running server with a video model, or a new local server."""
    if args.url is not None or (not args.model_repository and _runs(args)):
        yield args.url
        return
    repository = _options.repository(args)
    model = video_model(get_family("sam2"))
    if _weights(repository) is None:
        raise ModelNotReadyError(f"{repository} has no weights for {model}: {_video.HOW_TO_GET_MODELS}")
    with _server.local_server(args, repository, [model]) as server:
        yield server.http_url


def _runs(args: argparse.Namespace) -> bool:
    """Return whether a server with a video model runs at the default URL."""
    with _video.make_client(None, None, 5.0, _options.access(args)) as client, contextlib.suppress(SamError):
        return bool(client.is_ready())
    return False


def _weights(repository: Path) -> Path | None:
    """Return the newest version of the memory attention's file, which Triton serves; None if there is none."""
    folder = repository / get_family("sam2").model_name(MEMORY_ATTENTION)
    if not folder.is_dir():
        return None
    files = [version / "model.onnx" for version in version_folders(folder)]
    return next((path for path in reversed(files) if path.is_file()), None)


def _memory_is_untrained(repository: Path) -> bool:
    """Return whether the metadata of the weights marks their memory as untrained."""
    path = _weights(repository)
    if path is None:
        return False
    try:
        values = read_metadata(path).values()
    except (ValueError, OSError):
        return False
    return any(word in value for value in values for word in _UNTRAINED)
