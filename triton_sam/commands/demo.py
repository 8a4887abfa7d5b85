"""Segment two images on a real Triton and show the masks.

The command uses the server at --url, else a running server at the default URL; if there is none, it starts a local
server for the demo. `triton-sam demo --video` tracks objects through a drawn clip.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from .._common import strict_json
from .._common.bundle import bundled, checkout
from ..client.sync import SAM2TritonClient
from ..errors import ConfigurationError
from ..inputs.images import encoder_input, open_image
from ..masks.boxes import intersection_over_union
from ..masks.drawing import overlay
from . import _options, _server

Result = TypeVar("Result")

CLICKS = 5
"""Repetitions of each click. The shown time is the median without the first one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_url(parser)
    _options.add_access(parser)
    _options.add_repository(parser)
    parser.add_argument(
        "--video",
        action="store_true",
        help="track three objects through a drawn clip instead, each from one click; needs the extra evaluate",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the overlays (default: test/output of the checkout, otherwise ./triton-sam-demo)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    _options.add_quiet(parser)


@dataclass
class Report:
    """The objects found, the overlays written, and the times in milliseconds."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)

    def timed(self, stage: str, call: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Run ``call``, record its duration under ``stage`` and return its result."""
        start = time.perf_counter()
        result = call(*args, **options)
        self.times.setdefault(stage, []).append(1000 * (time.perf_counter() - start))
        return result


def run(args: argparse.Namespace) -> int:
    if args.url is not None and args.model_repository is not None:
        raise ConfigurationError("--model-repository is for a local server: leave it out, or --url")
    out = args.out or _default_output()
    report = Report()
    out.mkdir(parents=True, exist_ok=True)  # before the server starts, so that a wrong path is reported immediately
    if args.video:
        from . import _demo_video

        return _demo_video.run(args, out)
    with _found_or_local(args) as (url, about), SAM2TritonClient(url, **_options.access(args)) as client:
        _options.say(args, about)
        folder = bundled("test/images")
        for entry in json.loads((folder / "demo.json").read_text(encoding="utf-8")):
            _segment_image(client, folder, entry, out, report)
    if args.json:
        medians = {stage: round(statistics.median(times), 1) for stage, times in report.times.items()}
        print(strict_json.dumps({"objects": report.rows, "overlays": report.overlays, "median_ms": medians}))
        return 0
    _print_report(report)
    if not args.quiet:
        _print_next_steps()
    return 0


def _segment_image(client: SAM2TritonClient, folder: Path, entry: dict[str, Any], out: Path, report: Report) -> None:
    path = folder / entry["image"]
    image = report.timed("read", open_image, path)
    # encode() also resizes the image. This extra call measures the time of resizing.
    report.timed("resize", encoder_input, image, client.family)
    embeddings = report.timed("encode (resize + server)", client.encode, image)
    truth = np.asarray(Image.open(folder / entry["truth"])) if "truth" in entry else None
    segments, points, boxes = [], [], []
    for item in entry["objects"]:
        prompt: dict[str, Any] = {"box": item["box"]} if "box" in item else {"point_coords": [item["point"]]}
        prompt["image"] = embeddings
        report.timed("first click", client.predict, **prompt)
        for _ in range(CLICKS - 1):
            report.timed("later clicks", client.predict, **prompt)
        (segment,) = report.timed("click + full-size mask", client.segment, **prompt)
        segments.append(segment)
        points.extend([item["point"]] if "point" in item else [])
        boxes.extend([item["box"]] if "box" in item else [])
        row = {"image": entry["image"], "object": item["name"], "prompt": "box" if "box" in item else "point"}
        row |= {"score": round(segment.score, 3), "area": segment.area}
        if truth is not None:
            row["iou"] = round(intersection_over_union(segment.mask, truth == item["label"]), 3)
        report.rows.append(row)
    drawn = overlay(image, [segment.mask for segment in segments], points=points or None, boxes=boxes or None)
    target = out / f"{path.stem}_overlay.png"
    _options.write_png(target, drawn)
    report.overlays.append(str(target))


@contextlib.contextmanager
def _found_or_local(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield (URL, message about the server) of the given server, a running server, or a new local server."""
    url = _server.running_url(args, lambda: SAM2TritonClient(timeout=5, retries=0, **_options.access(args)))
    if url is not None:
        yield url, f"using the server {'that runs ' if args.url is None else ''}at {url}"
        return
    start = time.perf_counter()
    repository = _options.repository(args)
    with _server.local_server(args, repository, ["sam2"]) as server:
        yield server.http_url, f"Triton ready at {server.http_url} after {time.perf_counter() - start:.1f} s"


def _default_output() -> Path:
    root = checkout()
    return root / "test" / "output" if root is not None else Path("triton-sam-demo")


def _print_report(report: Report) -> None:
    print(f"\n{'image':14} {'object':11} {'prompt':7} {'score':>6} {'pixels':>8}   IoU against the truth")
    for row in report.rows:
        iou = f"{row['iou']:.3f}" if "iou" in row else "(no truth available)"
        print(f"{row['image']:14} {row['object']:11} {row['prompt']:7} {row['score']:6.3f} {row['area']:8}   {iou}")
    known = [row["iou"] for row in report.rows if "iou" in row]
    print(f"{'':50}   {statistics.mean(known):.3f} mean")
    print(f"\n{'stage':26} {'median ms':>9} {'min':>8} {'max':>8} {'n':>4}")
    for stage, times in report.times.items():
        print(f"{stage:26} {statistics.median(times):9.1f} {min(times):8.1f} {max(times):8.1f} {len(times):4}")
    print()
    for path in report.overlays:
        print(f"wrote {path}")


def _print_next_steps() -> None:
    print(
        "\nThe demo model is small: it finds objects, but draws coarse outlines. For exact masks, set up official\n"
        "weights. Next steps:\n"
        "  triton-sam serve                          keep a server running on this machine\n"
        "  triton-sam predict photo.jpg --point 300,200 --overlay overlay.png\n"
        "  triton-sam setup sam2                     official weights, 324 MB: served as sam2\n"
        "  triton-sam setup mobilesam                for a CPU, 41 MB: served as mobilesam\n"
        "  docker compose up -d                      on a host with an NVIDIA GPU"
    )
