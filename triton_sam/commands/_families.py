"""The options that families bring along, and the model of a family that options name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ..errors import ConfigurationError
from ..families import FAMILIES, Family, get_family
from ..families.tables import Option


def add_options(parser: argparse.ArgumentParser, command: str, families: Iterable[str]) -> None:
    """Add the options that families have for a command; one that several families have is added once.

    Args:
        parser: changed in place.
        command: name of the command.
        families: names of the families: all for the command, one for its script.
    """
    for flag, owners in _owners(command, map(get_family, families)).items():
        option = next(iter(owners.values()))
        texts = dict.fromkeys(_help(family, option) for family, option in owners.items())
        if option.is_switch:
            parser.add_argument(flag, action="store_true", default=None, help="; ".join(texts))
        else:
            choices = option.choices or None
            parser.add_argument(flag, choices=choices, metavar=option.metavar, help="; ".join(texts))


def add_size(parser: argparse.ArgumentParser, families: Iterable[str]) -> None:
    """Add --size, the size of the official model."""
    known = "; ".join(_sizes(get_family(name)) for name in families)
    parser.add_argument(
        "--size",
        help=f"size of the model: {known} (default: that of the checkpoint's file name; with --random, the first)",
    )


def model(args: argparse.Namespace, command: str, *, is_random: bool) -> str | None:
    """Return the model as the family's exporter names it; None: by the checkpoint's file name.

    Args:
        args: with ``family``, ``size`` and the family's options.
        command: name of the command.
        is_random: random weights are wanted, which need a size: the family's default where none is named.

    Raises:
        ConfigurationError: an option of another family, several options that say the same, one that has no effect, or
            a size that the family does not have.
    """
    family = get_family(args.family)
    given = {"--size": args.size} if args.size else {}
    own = {option.flag: option for option in family.options if command in option.commands and option.replaces_size}
    given |= {flag: value for flag, option in own.items() if (value := getattr(args, option.destination, None))}
    if len(given) > 1:
        *first, last = ["--size", *own]
        raise ConfigurationError(f"{', '.join(first)} and {last} say the same: give one of them")
    if given and not is_random and not family.checkpoint_takes_size:
        raise ConfigurationError(
            f"{next(iter(given))} is for --random: {family.label}'s checkpoint says its size itself"
        )
    refuse_foreign(args, command)
    for flag, value in given.items():
        if flag in own and own[flag].names_model:
            return str(value)
        return family.find_size(own[flag].size if flag in own else value).model
    return family.find_size().model if is_random else None


def refuse_foreign(args: argparse.Namespace, command: str) -> None:
    """Refuse an option that other families have for a command, but not this one.

    Raises:
        ConfigurationError: there is one.
    """
    for flag, owners in _owners(command, FAMILIES.values()).items():
        is_given = getattr(args, next(iter(owners.values())).destination, None) is not None
        names = [family.name for family in owners]
        if is_given and args.family not in names:
            raise ConfigurationError(f"{flag} is for {', '.join(names)}, not for {args.family}")


def exporter_options(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """Return the given options of a command that the family's exporter takes, by name."""
    options = [option for option in get_family(args.family).options if command in option.commands]
    given = {option.destination: getattr(args, option.destination, None) for option in options}
    named = {option.destination for option in options if option.replaces_size}
    return {name: value for name, value in given.items() if value is not None and name not in named}


def _owners(command: str, families: Iterable[Family]) -> dict[str, dict[Family, Option]]:
    """Return the families that have an option for a command, by the option's flag."""
    owners: dict[str, dict[Family, Option]] = {}
    for family in families:
        for option in family.options:
            if command in option.commands:
                owners.setdefault(option.flag, {})[family] = option
    return owners


def _help(family: Family, option: Option) -> str:
    return f"{family.label}: {option.help}"


def _sizes(family: Family) -> str:
    """Return a family's sizes for people: the official ones, and the one that random weights have by default."""
    names = [size.name for size in family.sizes if size.official or size.name == family.random_size]
    return f"{family.label} {', '.join(sorted(names, key=lambda name: name != family.random_size))}"
