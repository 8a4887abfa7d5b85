"""Segment objects in large images, part by part: slides, aerial photographs, maps.

Examples:
  triton-sam large segment slide.svs --point 51200,30400 --out cell.geojson --overlay cell.png
  triton-sam large segment map.tif --map --box 500010,5399800,500090,5399900 --out house.geojson
  triton-sam large everything slide.svs --level 1 --out cells.geojson
  triton-sam large precompute slide.svs
  triton-sam large segment slide.svs --embeddings --point 51200,30400 --out cell.geojson

Images are TIFF, BigTIFF, GeoTIFF, SVS, OME-TIFF or OME-Zarr, as files or URLs.
docs/how-to/large-images.md describes the levels.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .._common import strict_json
from .._common.files import atomic_write
from .._common.signals import ends_by_interrupt
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError
from ..everything.parameters import parameters_of
from ..inputs.remote import is_remote, place_of
from ..masks.drawing import overlay_objects
from ..masks.polygons import trace_polygons
from ..tiles import LargeImage, LargeImageClient, LargeObject, open_large_image, precompute
from ..tiles.joining import to_geojson
from ..tiles.pyramid import Region
from ..tiles.stored import SUFFIX, default_path
from . import _options, _server, _task_options
from ._parser import Parser
from ._predict_files import IMAGES, check_suffix, check_targets
from ._task_options import box, point

SHOWN = 1600
"""Pixels of the longest side of an overlay."""
BESIDE = Path()
"""Marks the default folder of the embeddings, beside the image."""


def add_arguments(parser: Parser) -> None:
    parser.rewrite = _with_task
    tasks = parser.add_subparsers(metavar="TASK", dest="task", required=True)

    add = partial(parser.add_task, tasks)
    segment = add("segment", "segment one object")
    segment.add_argument(
        "--point",
        action="append",
        type=point,
        metavar="X,Y[,LABEL]",
        help="point of the object in pixels of the largest level; label 1: foreground (default), 0: background",
    )
    segment.add_argument("--box", type=box, metavar="X1,Y1,X2,Y2", help="box of the object in the same pixels")
    segment.add_argument(
        "--map", action="store_true", help="--point, --box and --view are coordinates of the map's reference system"
    )
    segment.add_argument(
        "--view", type=box, metavar="X1,Y1,X2,Y2", help="the part to look at (default: 1024 pixels around the prompt)"
    )
    everything = add("everything", "find all objects, tile by tile")
    everything.set_defaults(embeddings=None)
    _task_options.add_search_parameters(everything)
    precompute = add("precompute", "precompute tile embeddings for later clicks; rerun to resume")
    precompute.add_argument("--micro-sam", metavar="NAME", help="the model's name in micro-sam, for example vit_b_lm")
    for task in (segment, precompute):
        task.add_argument(
            "--embeddings",
            type=Path,
            nargs="?",
            const=BESIDE,
            metavar="DIR",
            help=f"folder of the precomputed embeddings (default of precompute: IMAGE.MODEL{SUFFIX})",
        )
    for task in (everything, precompute):
        _task_options.add_tiles(task)
    for task in (segment, everything):
        task.add_argument("--out", type=Path, metavar="GEOJSON", help="write the outlines (default: standard output)")
        task.add_argument("--overlay", type=Path, metavar="PNG", help="write the part with the objects drawn in")
        _options.add_all_parts(task)
    for task in (segment, everything, precompute):
        task.add_argument("image", metavar="IMAGE", help="TIFF file with a pyramid, or OME-Zarr folder; also a URL")
        _task_options.add_shown(task)
        _options.add_client(task)
        _options.add_quiet(task)


def _with_task(arguments: Sequence[str]) -> list[str]:
    """Insert the task, which first was an option: `large IMAGE --everything`, `large IMAGE --precompute`."""
    given = list(arguments)
    if not given or given[0] in ("segment", "everything", "precompute", "-h", "--help"):
        return given
    for task in ("everything", "precompute"):
        if f"--{task}" in given:
            given.remove(f"--{task}")
            return [task, *given]
    return ["segment", *given]


def run(args: argparse.Namespace) -> int:
    _check(args)
    shown = {"channels": args.channels, "index": dict(args.index), "stretch": args.stretch}
    with open_large_image(args.image, **shown) as image:
        if args.task == "precompute":
            return _precompute(args, image)
        prompts = _prompts(args, image) if args.task == "segment" else {}
        with ends_by_interrupt(), _connected(args) as client:
            large = LargeImageClient(client, image, embeddings=_embeddings(args))
            found = large.segment(**prompts) if args.task == "segment" else _search(args, large)
        outlines = to_geojson(found, image.georeference, trace=_options.trace_of(args))
        document = strict_json.dumps(outlines, separators=(",", ":"))
        if args.overlay:
            _draw(args.overlay, image, found)
    if args.out is None:
        print(document)
    else:
        atomic_write(args.out, document.encode() + b"\n")
    for each in found if args.task == "segment" else found[:1]:
        _options.say(args, f"{each!r}{' reaches the border of the part: give --view' if each.is_cut else ''}")
    _options.say(args, f"{len(found)} object{'' if len(found) == 1 else 's'}")
    return 0


@contextlib.contextmanager
def _connected(args: argparse.Namespace) -> Iterator[SamTritonClient]:
    """Yield a client of the server. It waits for a busy server."""
    options = {"model_name": args.name, "timeout": args.timeout, "busy": "wait", **_options.access(args)}
    with _server.server_urls(args) as urls, SamTritonClient(urls[-1], args.model, **options) as client:
        yield client


def _embeddings(args: argparse.Namespace) -> Path | None:
    found: Path | None = args.embeddings
    if found == BESIDE or (args.task == "precompute" and found is None):
        if is_remote(place_of(args.image)):
            raise ConfigurationError("the image is a URL: give --embeddings DIR with a folder on this machine")
        return default_path(args.image, args.name or args.model)
    return found


def _precompute(args: argparse.Namespace, image: LargeImage) -> int:
    path = _embeddings(args) or Path()
    with ends_by_interrupt(), _connected(args) as client, _shown(args) as show:
        cut = {"tile": args.tile, "overlap": args.overlap, "level": args.level}
        stored = precompute(client, image, path, **cut, micro_sam=args.micro_sam, progress=show)
    _options.say(args, f"{path}: the embeddings of {len(stored.blocks)} tiles")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check the options that argparse cannot."""
    if args.task == "segment" and not (args.point or args.box):
        raise ConfigurationError("give --point or --box, or `triton-sam large everything`")
    if args.task == "everything":
        parameters_of(args.model, _task_options.search_parameters(args))
    if args.task != "precompute":
        if args.overlay:
            check_suffix("--overlay", args.overlay, IMAGES)
        outlines, drawn = ([path] if path else [] for path in (args.out, args.overlay))
        check_targets(outlines, drawn, [args.image])
    trace_polygons([[1]])  # reports a missing contourpy early
    _server.check(args)


def _prompts(args: argparse.Namespace, image: LargeImage) -> dict[str, Any]:
    """Return the arguments of LargeImageClient.segment()."""
    if args.map and image.georeference is None:
        raise ConfigurationError(f"{image.name} is not georeferenced: leave out --map")

    def pixels(values: Sequence[float]) -> list[float]:
        points = np.asarray(values, np.float64).reshape(-1, 2)
        if args.map and image.georeference is not None:
            points = image.georeference.to_pixels(points)
        placed: list[float] = points.ravel().tolist()
        return placed

    def corners(values: Sequence[float]) -> list[float]:
        x1, y1, x2, y2 = pixels(values)
        return [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)]  # y points upwards on a map

    prompts: dict[str, Any] = {}
    if args.point:
        prompts["point_coords"] = [pixels(each[:2]) for each in args.point]
        prompts["point_labels"] = [each[2] for each in args.point]
    if args.box:
        prompts["box"] = corners(args.box)
    if args.view:
        view = corners(args.view)
        if not np.isfinite(view).all():
            raise ConfigurationError("--view holds NaN or infinity: give finite numbers")
        prompts["view"] = tuple(round(value) for value in view)
    return prompts


def _search(args: argparse.Namespace, large: LargeImageClient) -> list[LargeObject]:
    with _shown(args) as show:
        parameters = _task_options.search_parameters(args)
        return large.everything(tile=args.tile, overlap=args.overlap, level=args.level, progress=show, **parameters)


@contextlib.contextmanager
def _shown(args: argparse.Namespace) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the number of finished tiles."""
    with tqdm(unit="tile", disable=args.quiet) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def _draw(path: Path, image: LargeImage, found: Sequence[LargeObject]) -> None:
    """Draw the objects into the part around them."""
    window = image.window(_around(image, found), SHOWN)
    masks = [each.within(window) for each in found]
    _options.write_png(path, overlay_objects(window.pixels, masks))


def _around(image: LargeImage, found: Sequence[LargeObject]) -> Region:
    boxes = np.array([each.box for each in found if each.box is not None] or [(0, 0, *image.size)])
    x1, y1 = boxes[:, :2].min(axis=0)
    x2, y2 = boxes[:, 2:].max(axis=0)
    room = max(x2 - x1, y2 - y1) / 4
    return image.clip((int(x1 - room), int(y1 - room), int(x2 + room) + 1, int(y2 + room) + 1))
