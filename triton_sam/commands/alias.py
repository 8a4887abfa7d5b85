"""Add alternative model names for existing clients.

`triton-sam alias add NAME VARIANT` gives all models of a variant a second name: NAME_encoder, NAME_decoder, the session
model NAME, and the models for videos and words. `triton-sam alias paintera` adds the encoders that the sam-link client
of Paintera expects, for its released and its newer versions; docs/how-to/paintera.md explains them. `triton-sam alias
remove NAME` removes the names again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ..errors import RepositoryError
from ..families import FAMILIES, model_name, variant_models
from ..families.tables import ENCODER
from ..repository.aliases import (
    PAINTERA_SAM1,
    Alias,
    check_place,
    check_removal,
    is_alias,
    is_served,
    left_over,
    of_variant,
    paintera,
    read_config,
    remove_alias,
    write_alias,
)
from ..repository.config import CONFIG_NAME
from ..repository.folder import FETCH_OFFICIAL_WEIGHTS, is_demo_model, list_models, subfolders
from ..sessions.encoder_front.install import front_config, rewrite_aliases, write_front
from ..wire.encoder_front import PIXEL_MODES
from . import _options
from ._parser import Parser

_OFFICIAL = re.compile("|".join({size.name for family in FAMILIES.values() for size in family.sizes if size.official}))
"""Matches names that contain the name of an official size, such as sam2.1_large_encoder."""
_PAINTERA = "paintera"
"""The alias that stands for several encoders, one for each family."""
_SAM1 = model_name("sam1", ENCODER)


def add_arguments(parser: Parser) -> None:
    parser.rewrite = _with_task
    tasks = parser.add_subparsers(metavar="TASK", dest="task", required=True)

    add = partial(parser.add_task, tasks)
    named = add("add", "give the models of a variant another name")
    named.add_argument("name", help="the new name")
    named.add_argument("variant", metavar="VARIANT", help="the variant, for example sam2 or sam2.1_large")
    front = add(_PAINTERA, "add the encoders that Paintera expects")
    for family, label in (("sam1", "SAM1"), ("sam2", "SAM2"), ("sam3", "SAM3")):
        front.add_argument(f"--{family}", metavar="VARIANT", help=f"the variant to use as {label} (default: {family})")
    front.add_argument(
        "--pixels",
        choices=PIXEL_MODES,
        default=PIXEL_MODES[0],
        help="the contents of raw tensors, unless a request says so: RGB in 0..1 (unit), RGB normalised by mean and "
        "standard deviation (normalised), or either, by their values (auto, the default)",
    )
    remove = add("remove", "remove names again")
    remove.add_argument("name", help=f"the name; {_PAINTERA} for its encoders")
    for task in (named, front, remove):
        _options.add_repository(task)
        _options.add_quiet(task)


def _with_task(arguments: Sequence[str]) -> list[str]:
    """Insert the task that the first spelling of the command lacked.

    The first spelling was `alias NAME --of VARIANT`, `alias paintera` and `alias NAME --remove`.
    """
    given = list(arguments)
    if "--remove" in given:
        given.remove("--remove")
        return ["remove", *given]
    if "--of" in given:
        at = given.index("--of")
        return ["add", *given[:at], *given[at + 1 :]]
    return given


def run(args: argparse.Namespace) -> int:
    """Run the command and print the names of the new models."""
    repository = _options.repository(args, writes=True)
    if args.task == "remove":
        return _remove(args, repository)
    if args.task == "add":
        aliases = [(alias, "") for alias in of_variant(repository, args.name, args.variant)]
    else:
        variants = {family: getattr(args, family) for family in ("sam1", "sam2", "sam3")}
        chosen = {family: variant for family, variant in variants.items() if variant is not None}
        aliases = [(alias, family) for family, alias in paintera(**chosen).items()]
    served = _served(args, repository, aliases)
    models = {model.name: model for model in list_models(repository)}
    gone = left_over(repository, args.name, [alias for alias, _ in served]) if args.task == "add" else []
    check_removal(repository, gone)
    for alias, family in served:
        if family:
            write_front(repository, alias, family, args.pixels)
        else:
            write_alias(repository, alias)
        print(alias.name)
        for line in rewrite_aliases(repository, [alias.name]):
            _options.say(args, line)
        _warn(args, alias, models[alias.target].metadata)
    for name in gone:
        remove_alias(repository, name)
        _options.say(args, f"{name} is removed: {args.variant} has no such model")
    if args.task == "add" and args.name not in {alias.name for alias, _ in served}:
        _options.say(
            args,
            f"{args.variant} has no session model, so clients of {args.name} send embeddings with each click; if "
            "`triton-sam doctor --fix` writes one, repeat this command",
        )
    _options.say(args, "restart a running server to load them")
    return 0


def _served(args: argparse.Namespace, repository: Path, aliases: list[tuple[Alias, str]]) -> list[tuple[Alias, str]]:
    """Return the aliases whose models have weights, and print which models lack weights. All can be written."""
    served = [(alias, family) for alias, family in aliases if is_served(repository, alias.target)]
    for alias, family in aliases:
        if (alias, family) not in served:
            _options.say(args, f"{alias.name} is left out: {alias.target} has no weights in {repository}")
    if not served:
        missing = aliases[0][0].target if aliases else model_name(args.variant, ENCODER)
        if (repository / missing).is_dir() and not (repository / missing / CONFIG_NAME).exists():
            raise RepositoryError(f"{repository / missing} has no {CONFIG_NAME}: `triton-sam doctor --fix` writes it")
        raise RepositoryError(f"{missing} has no weights in {repository}: export it first, see `triton-sam setup`")
    for alias, family in served:
        check_place(repository, alias, takes_empty=bool(family))
        if family:
            front_config(read_config(repository / alias.target), alias, family)
    return served


def _warn(args: argparse.Namespace, alias: Alias, metadata: Mapping[str, str]) -> None:
    if _OFFICIAL.search(alias.name) and is_demo_model(metadata):
        _options.say(
            args,
            f"warning: {alias.name} is an official name, but {alias.target} has the weights of the demo model; "
            f"{FETCH_OFFICIAL_WEIGHTS}",
        )
    if alias.name == PAINTERA_SAM1:
        _options.say(
            args,
            f"warning: {alias.target} itself serves Paintera's released clients alone; write {alias.name} into the "
            "settings of newer ones, or see --sam1 in docs/how-to/paintera.md",
        )


def _remove(args: argparse.Namespace, repository: Path) -> int:
    known = {path.name for path in subfolders(repository)}
    if args.name == _PAINTERA:
        named = {alias.name for alias in paintera().values()}
        if is_alias(repository, _SAM1):  # without --sam1, this name is the encoder itself
            named.add(_SAM1)
    else:
        named = {args.name, *variant_models(args.name)}
    found = sorted(named & known)
    if not found:
        raise RepositoryError(f"no alias {args.name} in {repository}: `triton-sam models` lists the names")
    if args.name != _PAINTERA:
        check_removal(repository, found)
    for name in found:
        remove_alias(repository, name)
        print(name)
    _options.say(args, "removed; restart a running server")
    return 0
