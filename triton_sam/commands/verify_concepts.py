"""`triton-sam verify sam3-concepts`: compare instances of words and boxes with those of the official detector."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .._common import strict_json
from .._common.bundle import bundled
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError, ModelNotReadyError
from ..export import registry
from ..export.settings import Settings
from ..families import FAMILIES, get_family
from ..inputs.images import open_image
from ..repository.folder import models_to_load
from ..sessions.configs import write_programs
from . import _families, _options, _server

if TYPE_CHECKING:
    from ..verify.concepts import ConceptRow, Limits

SUFFIX = "-concepts"
"""`verify FAMILY-concepts` compares the instances that a family finds."""
_PATIENCE = 3600.0  # seconds; the full size takes minutes on a busy processor


def names() -> list[str]:
    """Return the names of the comparisons of concepts, for example "sam3-concepts"."""
    return [f"{name}{SUFFIX}" for name, family in FAMILIES.items() if family.concepts]


def refuse_options(args: argparse.Namespace) -> None:
    """Refuse the options of families that only the comparison of words has.

    Raises:
        ConfigurationError: such an option is given.
    """
    flags = [option.flag for family in FAMILIES.values() for option in family.options if not option.replaces_size]
    for flag in flags:
        if getattr(args, flag.lstrip("-").replace("-", "_"), None) is not None:
            raise ConfigurationError(f"{flag} is for words: {', '.join(names())}")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a row misses the thresholds."""
    from ..verify.concepts import LIMITS, answered_cases, verify_concepts

    args.family = args.family.removesuffix(SUFFIX)
    _check(args)
    image = args.image or bundled("test/images") / "coffee.jpg"
    opened = open_image(image)
    model = _families.model(args, "verify", is_random=args.random)
    seed = (args.seed or 0) if args.random else None
    with contextlib.ExitStack() as stack:
        folder, files = _models(args, model, seed, stack)
        options = _families.exporter_options(args, "verify")
        _options.say(args, f"asking the official detector about {image} ...")
        # The full size has 3.4 GB of weights: the detector, this process and a server hold them one after the other.
        reference = registry.concept_reference(args.family, args.checkpoint, model, seed, options)
        answered = answered_cases(reference, opened)
        del reference
        rows: list[ConceptRow] = []
        for name, client in _clients(args, folder, files):
            _options.say(args, f"comparing {name} ...")
            rows += verify_concepts(answered, name, client, opened)
    limits = LIMITS[args.precision]
    print(_json(rows, limits) if args.json else _report(rows, limits))
    return 0 if all(row.passes(limits) for row in rows) else 1


def _check(args: argparse.Namespace) -> None:
    """Check the options before the export.

    Raises:
        ConfigurationError: an option has no effect.
        SamError: --local is given, but no Triton can start here.
    """
    if args.seed is not None and not args.random:
        raise ConfigurationError("--seed is for --random: a checkpoint's weights are not random")
    if args.frames is not None or args.image_size is not None or args.points_per_side is not None:
        raise ConfigurationError("--frames, --image-size and --points-per-side are not for words")
    if args.name and args.exported is None and args.url is None:
        raise ConfigurationError("--name is for models that exist already: give --exported or --url, too")
    if args.precision == "int8":
        raise ConfigurationError("an int8 export leaves the models for words in fp32: compare with --precision fp32")
    _server.check(args)


def _models(
    args: argparse.Namespace, model: str | None, seed: int | None, stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Path]]:
    """Return a model repository with a session model, and its ONNX files by role.

    Raises:
        ModelNotReadyError: the repository of --exported lacks weights.
        SamError: see export.registry.export().
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_verify_")))
    write_programs(folder, get_family(args.family), video=False)  # the session model searches
    if args.exported is not None:
        return folder, _link_exported(args, folder)
    settings = Settings(
        folder,
        args.checkpoint,
        model,
        random_seed=seed,
        precision=args.precision,
        concepts=True,
        progress=not args.quiet,
        options=_families.exporter_options(args, "verify"),
    )
    return folder, registry.export(args.family, settings).files


def _link_exported(args: argparse.Namespace, folder: Path) -> Mapping[str, Path]:
    """Link the models of --exported into a folder, under the names that the session model calls."""
    from ..benchmark.weights import find_weights

    found = find_weights(args.family, args.exported, args.name, concepts=True)
    if found is None:
        wanted = args.name or args.family
        raise ModelNotReadyError(
            f"{args.exported} lacks models of {wanted} for words: see `triton-sam export {args.family} --concepts`"
        )
    for role, file in found.files.items():
        (folder / get_family(args.family).model_name(role)).symlink_to(file.parents[1].absolute())
    return found.files


def _clients(
    args: argparse.Namespace, folder: Path, files: Mapping[str, Path]
) -> Iterator[tuple[str, SamTritonClient]]:
    """Yield a client in this process, and clients of servers over HTTP and gRPC, by their names, one after the other.

    A client and its models are closed before the next one comes.
    """
    from ..verify.concept_transport import ConceptTransport

    transport = ConceptTransport(get_family(args.family), files)
    with SamTritonClient("localhost", args.family, transport=transport) as client:
        yield "onnxruntime", client
    if args.url is not None:
        options = {"model_name": args.name, "timeout": _PATIENCE, **_options.access(args)}
        with SamTritonClient(args.url, args.family, **options) as client:
            yield "served", client
    elif args.local:
        with _server.local_server(args, folder, models_to_load(folder, args.family)) as server:
            for name, url in (("http", server.http_url), ("grpc", server.grpc_url)):
                with SamTritonClient(url, args.family, timeout=_PATIENCE) as client:
                    yield f"served over {name}", client


def _report(rows: list[ConceptRow], limits: Limits) -> str:
    from ..verify.concepts import format_table

    failed = sum(not row.passes(limits) for row in rows)
    verdict = "all within" if not failed else f"{failed} of {len(rows)} outside"
    words = f"scores and boxes within {limits.difference:g}, IoU of masks > {limits.iou:g} or one pixel"
    return f"{format_table(rows, limits)}\n{verdict} the thresholds: {words}"


def _json(rows: list[ConceptRow], limits: Limits) -> str:
    listed = [{**asdict(row), "ok": row.passes(limits)} for row in rows]
    passed = all(row.passes(limits) for row in rows)
    return strict_json.dumps({"threshold": asdict(limits), "ok": passed, "rows": listed}, indent=1)
