"""Add alternative model names for existing clients.

`triton-sam alias paintera` adds the encoders that the sam-link client of Paintera asks for, under its names and for its
released and its newer versions; docs/how-to/paintera.md explains them. `triton-sam alias NAME --of VARIANT` adds
NAME_encoder and NAME_decoder as names of VARIANT_encoder and VARIANT_decoder. `triton-sam alias NAME --remove` removes
them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigurationError, RepositoryError
from ..families import FAMILIES, model_name
from ..families.tables import ENCODER
from ..repository.aliases import (
    PAINTERA_SAM1,
    Alias,
    check_place,
    is_alias,
    is_served,
    paintera,
    pair,
    read_config,
    remove_alias,
    write_alias,
)
from ..repository.folder import FETCH_OFFICIAL_WEIGHTS, is_demo_model, list_models, subfolders
from ..repository.names import pair_names
from ..sessions.encoder_front.install import front_config, write_front
from ..wire.encoder_front import PIXEL_MODES
from . import _options

_OFFICIAL = re.compile("|".join({size.name for family in FAMILIES.values() for size in family.sizes if size.official}))
"""Matches names that contain the name of an official size, such as sam2.1_large_encoder."""
_PAINTERA_OPTIONS = ("sam1", "sam2", "sam3", "pixels")
_PAINTERA = "paintera"
"""The name that stands for several front ends, one for each family."""
_SAM1 = model_name("sam1", ENCODER)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("name", help="the new name; paintera for the names that Paintera uses")
    parser.add_argument(
        "--of", metavar="VARIANT", help="model pair that gets the new name, for example sam2 or sam2.1_large"
    )
    for family, name in (("sam1", "SAM1"), ("sam2", "SAM2"), ("sam3", "SAM3")):
        text = f"with paintera: the variant to use as {name} (default: {family})"
        parser.add_argument(f"--{family}", metavar="VARIANT", help=text)
    parser.add_argument(
        "--pixels",
        choices=PIXEL_MODES,
        help="with paintera: the contents of raw tensors, unless a request tells them: RGB in 0..1 (unit), RGB "
        "normalised by mean and standard deviation (normalised), or one of them as their values tell (auto, the "
        "default)",
    )
    parser.add_argument("--remove", action="store_true", help="remove the names again")
    _options.add_repository(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and print the names of the new models."""
    repository = _options.repository(args, writes=True)
    if args.remove:
        return _remove(args, repository)
    aliases = _aliases(args)
    served = _served(args, repository, aliases)
    models = {model.name: model for model in list_models(repository)}
    for alias, family in served:
        if family:
            write_front(repository, alias, family, args.pixels or PIXEL_MODES[0])
        else:
            write_alias(repository, alias)
        print(alias.name)
        _warn(args, alias, models[alias.target].metadata)
    _options.say(args, "restart a running server to load them")
    return 0


def _served(args: argparse.Namespace, repository: Path, aliases: list[tuple[Alias, str]]) -> list[tuple[Alias, str]]:
    """Return the aliases whose models have weights, and say which have none. All of them can be written."""
    served = [(alias, family) for alias, family in aliases if is_served(repository, alias.target)]
    for alias, family in aliases:
        if (alias, family) not in served:
            _options.say(args, f"{alias.name} is left out: {alias.target} has no weights in {repository}")
    if not served:
        raise RepositoryError(
            f"{aliases[0][0].target} has no weights in {repository}: export it first, see `triton-sam setup`"
        )
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
    given = [flag for flag in ("of", *_PAINTERA_OPTIONS) if getattr(args, flag) is not None]
    if given:
        raise ConfigurationError(f"--{given[0]} has no effect with --remove")
    known = {path.name for path in subfolders(repository)}
    if args.name == _PAINTERA:
        named = {alias.name for alias in paintera().values()}
        if is_alias(repository, _SAM1):  # without --sam1, this is the encoder itself
            named.add(_SAM1)
    else:
        named = {args.name, *pair_names(args.name)}
    found = sorted(named & known)
    if not found:
        raise RepositoryError(f"no alias {args.name} in {repository}: `triton-sam models` lists the names")
    for name in found:
        remove_alias(repository, name)
        print(name)
    _options.say(args, "removed; restart a running server")
    return 0


def _aliases(args: argparse.Namespace) -> list[tuple[Alias, str]]:
    """Return the aliases to write, each with the family of its front end; without a family, it is an ensemble."""
    chosen = {flag: getattr(args, flag) for flag in _PAINTERA_OPTIONS if getattr(args, flag) is not None}
    if args.of is not None:
        if chosen:
            raise ConfigurationError(f"--{min(chosen)} is for `triton-sam alias {_PAINTERA}`, not for --of")
        return [(alias, "") for alias in pair(args.name, args.of)]
    if args.name != _PAINTERA:
        raise ConfigurationError(f"{args.name!r} needs a model pair: triton-sam alias {args.name} --of VARIANT")
    chosen.pop("pixels", None)
    return [(alias, family) for family, alias in paintera(**chosen).items()]
