"""Segment one image by points and boxes; write masks, an overlay or JSON.

Example:
  triton-sam predict photo.jpg --point 512,300 --point 40,40,0 --out mask.png --overlay overlay.png
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from .._common.files import atomic_path
from ..client.sync import SAM2TritonClient
from ..errors import ConfigurationError, PromptError
from ..families import get_family
from ..inputs.images import open_image
from ..inputs.prompts import check_prompts
from ..masks.compare import best_of
from ..masks.drawing import overlay
from ..masks.segment import Segment
from . import _cleanup, _options, _server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("image", type=Path, help="image file: JPEG, PNG, WebP, TIFF, BMP, ...")
    parser.add_argument(
        "--point",
        action="append",
        type=_point,
        metavar="X,Y[,LABEL]",
        help="point in image pixels; label 1: foreground (default), 0: background; repeat for more points",
    )
    parser.add_argument(
        "--box", action="append", type=_box, metavar="X1,Y1,X2,Y2", help="box in image pixels; repeat for more objects"
    )
    parser.add_argument(
        "--multimask", action="store_true", help="return three candidates for each object instead of one"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PNG", help="write the best mask of each object, with 255 inside and 0 outside"
    )
    parser.add_argument("--overlay", type=Path, metavar="PNG", help="write the image with masks and prompts drawn in")
    parser.add_argument("--json", action="store_true", help="print scores, boxes, COCO RLE and timings as JSON")
    _cleanup.add_options(parser)
    _options.add_client(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.point and not args.box:
        raise PromptError("the prompt is missing: give --point X,Y or --box X1,Y1,X2,Y2")
    if args.box and len(args.box) > 1 and args.point:
        raise PromptError("several boxes are several objects: points are possible with one box at most")
    if not (args.out or args.overlay or args.json):
        args.json = True
    image = open_image(args.image)
    coords = [point[:2] for point in args.point] if args.point else None
    labels = [point[2] for point in args.point] if args.point else None
    boxes = args.box or None
    cleanup = _cleanup.from_options(args)
    # Check the prompts before the server encodes the image, which may take a minute.
    mask_size = get_family(args.model).mask_size
    objects = len(check_prompts(coords, labels, boxes, None, image_size=image.size, mask_size=mask_size))
    masks = _mask_paths(args.out, objects)
    _check_files(masks, args.overlay)
    with (
        _server.server_urls(args) as urls,
        SAM2TritonClient(
            urls[0], args.model, model_name=args.name, timeout=args.timeout, **_options.access(args)
        ) as client,
    ):
        start = time.perf_counter()
        client.set_image(args.image)  # the original bytes of the file
        encoded = time.perf_counter()
        segments = client.segment(coords, labels, boxes, multimask_output=args.multimask, cleanup=cleanup)
        done = time.perf_counter()
    timings = {"set_image_ms": round(1000 * (encoded - start), 1), "segment_ms": round(1000 * (done - encoded), 1)}
    best = best_of(segments)
    if masks:
        for segment, path in zip(best, masks, strict=True):
            segment.to_png(path)
    written = [*masks]
    if args.overlay:
        picture = overlay(image, [segment.mask for segment in best], points=coords, labels=labels, boxes=boxes)
        with atomic_path(args.overlay) as temporary:
            picture.save(temporary, format="PNG")
        written.append(args.overlay)
    if args.json:
        print(json.dumps({"image": _size(image), "objects": [_describe(s) for s in segments], **timings}))
    else:
        for segment in best:
            print(f"object {segment.object_index}: score {segment.score:.3f}, {segment.area} pixels, box {segment.box}")
    for path in written:
        _options.say(args, f"wrote {path}")
    return 0


def _mask_paths(out: Path | None, objects: int) -> list[Path]:
    """Return one path for each object; from the second object on, the name contains the number."""
    if out is None:
        return []
    return [out if index == 0 else out.with_stem(f"{out.stem}_{index}") for index in range(objects)]


def _check_files(masks: list[Path], drawn: Path | None) -> None:
    """Check that all results can be written and do not overwrite each other.

    Raises:
        ConfigurationError: a folder does not exist, a path is a folder, or two results have the same path.
    """
    for path in [*masks, *([drawn] if drawn is not None else [])]:
        if path.is_dir() or not path.parent.is_dir():
            why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise ConfigurationError(f"cannot write {path}: {why}")
    if drawn is not None and drawn.resolve() in {mask.resolve() for mask in masks}:
        raise ConfigurationError(f"--out and --overlay both write {drawn}: name another file")


def _describe(segment: Segment) -> dict[str, Any]:
    return {
        "object": segment.object_index,
        "candidate": segment.candidate,
        "score": round(segment.score, 5),
        "area": segment.area,
        "box": segment.box,
        "rle": segment.to_rle(),
    }


def _size(image: Any) -> dict[str, int]:
    return {"width": image.width, "height": image.height}


def _numbers(text: str, counts: tuple[int, ...], form: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in counts:
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return values


def _point(text: str) -> tuple[float, float, int]:
    values = _numbers(text, (2, 3), "X,Y or X,Y,LABEL")
    label = values[2] if len(values) == 3 else 1
    if label not in (0, 1):
        raise argparse.ArgumentTypeError(f"{text!r}: the label must be 1 (foreground) or 0 (background)")
    return values[0], values[1], int(label)


def _box(text: str) -> list[float]:
    return _numbers(text, (4,), "X1,Y1,X2,Y2")
