"""Compare exported and served models with the official predictors.

`verify image FAMILY` compares masks of clicks and boxes, `verify video` of tracked objects, `verify everything` of all
objects, `verify words` instances of words, and `verify video-words` objects that words find in a video. They export the
weights anew, unless --exported names a repository. `verify openvino` compares an encoder on OpenVINO with ONNX Runtime
in fp32. The exit code is 1 if a difference exceeds a threshold.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common import strict_json
from .._common.bundle import bundled
from ..client.mask_generator import families_with_generators
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError, ModelNotReadyError
from ..families import FAMILIES, get_family, tracking_families
from ..inputs.images import open_image
from ..repository.accelerators import OPENVINO_PRECISIONS
from ..repository.folder import default_repository
from . import _families, _options, _server
from ._parser import Parser

if TYPE_CHECKING:
    from ..verify.report import Comparable
    from ._comparisons import Client, Comparison

_SUFFIXES = {"-video": "video", "-everything": "everything", "-concepts": "words"}
"""Suffixes of families in the first spelling of the command, for example `verify sam2-video`."""

_OF_VIDEOS = ("video", "video-words")
"""The comparisons of videos, which have no option --name."""


def add_arguments(parser: Parser) -> None:
    parser.rewrite = with_comparison
    group = parser.add_subparsers(metavar="COMPARISON", dest="comparison", required=True)
    add = partial(_add_comparison, parser, group)

    image = add("image", "masks of clicks and boxes", tuple(FAMILIES), ("fp32", "fp16", "int8"))
    _add_image(image)
    _add_exported(image)

    video = add("video", "masks of tracked objects in a drawn clip", tracking_families(), ("fp32", "fp16", "int8"))
    video.add_argument("--frames", type=int, default=8, metavar="N", help="frames of the clip (default: 8)")
    video.add_argument(
        "--image-size", type=int, metavar="PIXELS", help="side of the encoder's image (default: the official size)"
    )

    everything = add("everything", "masks of all objects", families_with_generators(), ("fp32",))
    _add_image(everything)
    everything.add_argument(
        "--points-per-side", type=int, default=32, metavar="N", help="points along one side of the image (default: 32)"
    )

    concepts = [name for name, family in FAMILIES.items() if family.concepts]
    words = add("words", "instances of words and example boxes", concepts, ("fp32", "fp16"))
    _add_image(words)
    _add_exported(words)

    followed = [name for name in concepts if name in tracking_families()]
    video_words = add("video-words", "objects that words find in a drawn clip", followed, ("fp32",))
    video_words.add_argument("--frames", type=int, default=12, metavar="N", help="frames of the clip (default: 12)")

    openvino = add("openvino", "an encoder on OpenVINO with ONNX Runtime in fp32", tuple(FAMILIES), OPENVINO_PRECISIONS)
    openvino.set_defaults(precision="bf16")
    _add_image(openvino)
    _add_exported(openvino)


def with_comparison(arguments: Sequence[str]) -> list[str]:
    """Insert the comparison that the first spelling of the command lacked.

    The first spelling was `verify sam2`, `verify sam2-video`, `verify sam3-concepts` or
    `verify sam2 --accelerator openvino`.
    """
    given = [part for word in arguments for part in (word.split("=") if word == "--accelerator=openvino" else [word])]
    comparisons = ("image", "video-words", "openvino", *_SUFFIXES.values())
    if not given or given[0] in (*comparisons, "-h", "--help"):
        return given
    is_option = given[0].startswith("-")
    if not is_option and difflib.get_close_matches(given[0], comparisons, 1) and _of_word(given[0])[0] not in FAMILIES:
        return given  # a misspelled comparison, which the parser names
    for index, word in enumerate(given):
        family, comparison = _of_word(word)
        if family not in FAMILIES:
            continue
        rest = given[:index] + given[index + 1 :]
        if "--accelerator" in rest and rest[rest.index("--accelerator") + 1 :][:1] == ["openvino"]:
            at = rest.index("--accelerator")
            return ["openvino", family, *rest[:at], *rest[at + 2 :]]
        return [comparison, family, *rest]
    return ["image", *given]  # its errors list the families


def _of_word(word: str) -> tuple[str, str]:
    """Return the family and the comparison of a word in the first spelling, for example "sam2-video"."""
    for ending, comparison in _SUFFIXES.items():
        if word.endswith(ending):
            return word.removesuffix(ending), comparison
    return word, "image"


def _add_comparison(
    command: Parser, group: Any, name: str, text: str, families: Sequence[str], precisions: Sequence[str]
) -> Parser:
    """Add a subcommand with the options common to all comparisons."""
    parser = command.add_task(group, name, text)
    parser.description = f"Compare {text}."
    parser.set_defaults(name=None, exported=None)
    parser.add_argument("family", choices=families, help="model family")
    is_openvino = name == "openvino"
    source = parser.add_mutually_exclusive_group(required=not is_openvino)
    source.add_argument("--checkpoint", type=Path, metavar="FILE", help="official checkpoint")
    source.add_argument("--random", action="store_true", help="use random weights, without a checkpoint")
    _families.add_size(parser, families)
    _families.add_options(parser, "verify", families, sizes_only=name != "words")
    parser.add_argument("--seed", type=int, metavar="N", help="seed for --random (default: 0)")
    parser.add_argument(
        "--precision", choices=precisions, default="fp32", help=f"default: {'bf16' if is_openvino else 'fp32'}"
    )
    if not is_openvino:
        server = parser.add_mutually_exclusive_group()
        server.add_argument("--url", help="also compare the models of this server; they must have the same weights")
        server.add_argument("--local", action="store_true", help="also serve the export by a local Triton and compare")
        _options.add_access(parser)
    if name not in _OF_VIDEOS:
        _options.add_name(parser, "variant of models that exist already (default: the family's name)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _options.add_quiet(parser)
    return parser


def _add_image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", metavar="FILE", help="image to compare on (default: a bundled photo)")


def _add_exported(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exported",
        type=Path,
        metavar="DIR",
        help="compare the models in this repository instead of a fresh export; they must have the same weights",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a difference exceeds a threshold."""
    if args.seed is not None and not args.random:
        raise ConfigurationError("--seed is for --random: a checkpoint's weights are not random")
    if args.comparison == "openvino":
        return _compare_openvino(args)
    if args.name and args.exported is None and args.url is None:
        raise ConfigurationError("--name is for models that exist already: also give --exported or --url")
    _server.check(args)
    from ..verify.report import report, report_json
    from ._comparisons import COMPARISONS

    comparison = COMPARISONS[args.comparison](args)
    if args.url is not None:  # before the export, so that a wrong URL is reported immediately
        with SamTritonClient(args.url, args.family, **_options.access(args)) as client:
            client.models()
    rows: list[Comparable] = []
    with contextlib.ExitStack() as stack:
        folder, files = _models(args, comparison.export_settings, stack)
        official = comparison.official()
        _options.say(args, f"comparing on {comparison.subject} ...")
        runners = _runners(args, comparison, folder, files, stack)
        for group in ([each] for each in runners) if comparison.one_at_a_time else [list(runners)]:
            with contextlib.ExitStack() as opened:
                clients = {name: opened.enter_context(open_client()) for name, open_client in group}
                rows += comparison.rows(official, clients)
    limits = comparison.limits
    threshold = asdict(limits) if is_dataclass(limits) and not isinstance(limits, type) else limits
    print(report_json(rows, limits, threshold) if args.json else report(rows, limits, comparison.limits_in_words))
    return 0 if all(row.passes(limits) for row in rows) else 1


def _compare_openvino(args: argparse.Namespace) -> int:
    is_fresh = args.checkpoint is not None or args.random
    if is_fresh and (args.exported is not None or args.name):
        raise ConfigurationError("--exported and --name are for models that exist: leave --checkpoint and --random out")
    options = [(option.flag, option.destination) for option in get_family(args.family).options]
    for flag, destination in (("--size", "size"), *options):
        if not is_fresh and getattr(args, destination, None) is not None:
            raise ConfigurationError(f"{flag} is for a fresh export: also give --checkpoint or --random")
    photos = [bundled("test/images") / name for name in ("coffee.jpg", "shapes.jpg")]
    images = [open_image(photo) for photo in ([args.image] if args.image else photos)]  # before the export
    with contextlib.ExitStack() as stack:
        if is_fresh:
            _, files = _export(args, {"precision": "fp32"}, stack)
        else:
            files = _exported(args, args.exported or default_repository())
        from ..verify.accelerated import LIMITS, compare_precision, crops

        _options.say(args, f"comparing {args.family} on OpenVINO in {args.precision} with fp32 ...")
        found = compare_precision(files, args.family, args.precision, crops(images))
    if args.json:
        threshold = {"iou": LIMITS[args.precision]}
        print(strict_json.dumps({"threshold": threshold, "ok": found.passed, **asdict(found)}, indent=1))
    else:
        print(found.describe())
    return 0 if found.passed else 1


def _models(
    args: argparse.Namespace, settings: Mapping[str, Any], stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Path]]:
    """Return a model repository and its ONNX files by role: from --exported, or a new export."""
    if args.exported is None:
        return _export(args, {"precision": args.precision, **settings}, stack)
    files = _exported(args, args.exported, concepts=settings.get("concepts", False))
    if args.comparison != "words":
        return args.exported, files
    # The session model runs the search, and the repository may lack one.
    from ..sessions.configs import write_programs

    folder, family = _temporary(stack), get_family(args.family)
    write_programs(folder, family, video=False)
    for role, file in files.items():
        (folder / family.model_name(role)).symlink_to(file.parents[1].absolute())
    return folder, files


def _exported(args: argparse.Namespace, repository: Path, *, concepts: bool = False) -> Mapping[str, Path]:
    from ..benchmark.target import find_weights

    found = find_weights(args.family, repository, args.name, concepts=concepts)
    if found is None:
        wanted, option = args.name or args.family, " --concepts" if concepts else ""
        raise ModelNotReadyError(
            f"{repository} holds no weights for {wanted}: see `triton-sam export {args.family}{option}`"
        )
    return found.files


def _export(
    args: argparse.Namespace, settings: Mapping[str, Any], stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Path]]:
    from ..export import registry
    from ..export.settings import Settings

    folder = _temporary(stack)
    wanted = Settings(folder, **_families.weights(args), progress=not args.quiet, **settings)
    return folder, registry.export(args.family, wanted).files


def _temporary(stack: contextlib.ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_verify_")))


def _runners(
    args: argparse.Namespace,
    comparison: Comparison,
    folder: Path,
    files: Mapping[str, Path],
    stack: contextlib.ExitStack,
) -> Iterator[tuple[str, Callable[[], Client]]]:
    """Yield functions that open a client in this process or of a server, by name."""
    yield "onnxruntime", partial(comparison.in_process, files)
    variant = {} if args.comparison in _OF_VIDEOS else {"model_name": args.name}
    if args.url is not None:
        yield "served", partial(comparison.client, args.url, **variant, **_options.access(args))
    elif args.local:
        server = stack.enter_context(_server.local_server(args, folder, [comparison.served_model]))
        if args.comparison == "words":  # the models have their default names
            variant = {}
        yield "served over http", partial(comparison.client, server.http_url, **variant)
        yield "served over grpc", partial(comparison.client, server.grpc_url, **variant)
