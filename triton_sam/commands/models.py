"""List the models of a repository and those that a server has ready, or the catalogue of checkpoints."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict

from .._common import strict_json
from ..errors import ConfigurationError, ServerError
from ..everything.parameters import thresholds_of
from ..families import FAMILIES, Family
from ..families.tables import DECODER, Checkpoint
from ..repository.folder import RepositoryModel, is_demo_model, list_models
from ..repository.selection import read_repository, unloadable
from ..transport.triton import Transport
from ..transport.url import parse_url
from . import _options
from .download import CHECKPOINT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_url(parser)
    _options.add_access(parser)
    _options.add_repository(parser)
    parser.add_argument(
        "--catalogue", action="store_true", help="list the official files and known fine-tunes of `triton-sam setup`"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time limit for the server's answer (default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. An unreachable server is an error only with --url."""
    if args.catalogue:
        if args.url is not None or args.model_repository is not None:
            raise ConfigurationError("--catalogue lists what can be downloaded: leave out --url, --model-repository")
        _list_catalogue(as_json=args.json)
        return 0
    folder = _options.repository(args)
    models = list_models(folder)
    transport = Transport(parse_url(args.url), timeout=args.timeout, retries=0, **_options.access(args))
    ready: dict[str, str] | None
    try:
        ready = transport.ready_models()
    except ServerError:
        if args.url is not None:
            raise
        ready = None
    finally:
        transport.close()
    reasons = unloadable(read_repository(folder))
    if args.json:
        listed = [
            {
                "name": model.name,
                "role": model.role,
                "versions": model.versions,
                "has_weights": model.has_weights,
                "problem": model.problem,
                "metadata": model.metadata,
                "everything": _thresholds(model) if model.role == DECODER else {},
                "ensemble_of": _targets(model),
                "left_out": reasons.get(model.name, ""),
            }
            for model in models
        ]
        print(strict_json.dumps({"repository": str(folder), "models": listed, "ready": ready}, default=str))
        return 0
    print(f"repository {folder}")
    for model in models:
        print(f"  {model.name:28} {_state(model, reasons.get(model.name))}")
    if ready is None:
        print(f"server {transport.url}: no answer")
        return 0
    print(f"server {transport.url}: {len(ready)} ready")
    for name, version in sorted(ready.items()):
        print(f"  {name:28} READY, version {version}")
    return 0


def _list_catalogue(*, as_json: bool) -> None:
    rows = [row for family in FAMILIES.values() for row in (*family.checkpoints, *family.fine_tunes, *_on_hub(family))]
    if as_json:
        print(strict_json.dumps([{**asdict(row), "word": row.word} for row in rows]))
        return
    for row in rows:
        command = f"triton-sam setup {row.family} {row.word}"
        size = f"{row.bytes / 1e6:.0f} MB" if row.bytes else ""
        print(f"{command:46} {size:>8}  {row.licence:13}  {row.purpose}")


def _on_hub(family: Family) -> list[Checkpoint]:
    """Return rows for a family's files on the Hugging Face hub."""
    if family.hub is None:
        return []
    places = {**dict.fromkeys(family.hub.precisions, family.hub.onnx), CHECKPOINT: family.hub.checkpoint}
    return [
        Checkpoint(family.name, word, f"https://huggingface.co/{place}", None, "", licence=family.hub.licence)
        for word, place in places.items()
    ]


def _targets(model: RepositoryModel) -> list[str]:
    """Return the models that an ensemble calls, or the model that an alias calls."""
    if not (model.is_ensemble or model.alias_of):
        return []
    return [model.alias_of] if model.alias_of else sorted(model.dependencies(()))


def _thresholds(model: RepositoryModel) -> dict[str, float]:
    """Return a model's thresholds for searches for all objects, from its metadata."""
    with contextlib.suppress(ConfigurationError):
        return thresholds_of(model.metadata)
    return {}


def _state(model: RepositoryModel, reason: str | None) -> str:
    if model.problem:
        return model.problem
    if reason is not None:
        return f"left out: {reason}"
    facts = [model.metadata.get(f"triton_sam.{key}", "") for key in ("config", "checkpoint", "precision")]
    details = ", ".join(dict.fromkeys(fact for fact in facts if fact))
    if is_demo_model(model.metadata):
        details += ", demo model"
    if model.role == DECODER and (thresholds := _thresholds(model)):
        details += ", everything: " + ", ".join(f"{name} {value:g}" for name, value in thresholds.items())
    if targets := _targets(model):
        details = f"{'alias' if len(targets) == 1 else 'ensemble'} of {', '.join(targets)}"
    return f"version {', '.join(map(str, model.versions))}" + (f" ({details})" if details else "")
