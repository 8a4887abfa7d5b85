"""Give models of the repository second names, so that clients with other names need no change.

`triton-sam alias paintera` adds the names that the sam-link client of Paintera uses; `triton-sam alias NAME --of
VARIANT` adds NAME_encoder and NAME_decoder as names of VARIANT_encoder and VARIANT_decoder. `triton-sam alias NAME
--remove` removes them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..errors import ConfigurationError, RepositoryError
from ..families import FAMILIES
from ..repository.aliases import Alias, is_served, paintera, pair, remove_alias, write_alias
from ..repository.folder import FETCH_OFFICIAL_WEIGHTS, is_demo_model, list_models, subfolders
from ..repository.names import pair_names
from . import _options

_OFFICIAL = re.compile("|".join({size.name for family in FAMILIES.values() for size in family.sizes if size.official}))
"""Matches names that contain the name of an official size, such as sam2.1_large_encoder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("name", help="the new name, or paintera for the names that Paintera uses")
    parser.add_argument(
        "--of", metavar="VARIANT", help="model pair that gets the new name, for example sam2 or sam2.1_large"
    )
    parser.add_argument("--sam2", metavar="VARIANT", help="with paintera: the variant to use as SAM2 (default: sam2)")
    parser.add_argument("--sam3", metavar="VARIANT", help="with paintera: the variant to use as SAM3 (default: sam3)")
    parser.add_argument("--remove", action="store_true", help="remove the names again")
    _options.add_repository(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and print the names of the new models."""
    repository = _options.repository(args)
    if args.remove:
        return _remove(args, repository)
    aliases = _aliases(args)
    served = [alias for alias in aliases if is_served(repository, alias.target)]
    for alias in aliases:
        if alias not in served:
            _options.say(args, f"{alias.name} is left out: {alias.target} has no weights in {repository}")
    if not served:
        raise RepositoryError(
            f"{aliases[0].target} has no weights in {repository}: export it first, see `triton-sam setup`"
        )
    models = {model.name: model for model in list_models(repository)}
    for alias in served:
        write_alias(repository, alias)
        print(alias.name)
        if _OFFICIAL.search(alias.name) and is_demo_model(models[alias.target].metadata):
            _options.say(
                args,
                f"warning: {alias.name} is an official name, but {alias.target} has the weights of the demo model; "
                f"{FETCH_OFFICIAL_WEIGHTS}",
            )
    _options.say(args, "restart a running server to load them")
    return 0


def _remove(args: argparse.Namespace, repository: Path) -> int:
    given = [flag for flag in ("of", "sam2", "sam3") if getattr(args, flag) is not None]
    if given:
        raise ConfigurationError(f"--{given[0]} has no effect with --remove")
    known = {path.name for path in subfolders(repository)}
    named = {alias.name for alias in paintera()} if args.name == "paintera" else {args.name, *pair_names(args.name)}
    found = sorted(named & known)
    if not found:
        raise RepositoryError(f"no alias {args.name} in {repository}: `triton-sam models` lists the names")
    for name in found:
        remove_alias(repository, name)
        print(name)
    _options.say(args, "removed; restart a running server")
    return 0


def _aliases(args: argparse.Namespace) -> tuple[Alias, ...]:
    chosen = {family: getattr(args, family) for family in ("sam2", "sam3") if getattr(args, family) is not None}
    if args.of is not None:
        if chosen:
            raise ConfigurationError(f"--{min(chosen)} is for `triton-sam alias paintera`, not for --of")
        return pair(args.name, args.of)
    if args.name != "paintera":
        raise ConfigurationError(f"{args.name!r} needs a model pair: triton-sam alias {args.name} --of VARIANT")
    return paintera(**chosen)
