"""Command-line options that the families define, and the family's model that they select."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigurationError
from ..families import FAMILIES, Family, get_family
from ..families.tables import Option


def add_options(
    parser: argparse.ArgumentParser, command: str, families: Iterable[str], *, sizes_only: bool = False
) -> None:
    """Add the options that families define for a command. An option that several families share is added once.

    Args:
        families: names of the families: all of them for the command, a single one for a script.
    """
    for flag, owners in _owners(command, map(get_family, families)).items():
        option = next(iter(owners.values()))
        if sizes_only and not option.replaces_size:
            continue
        texts = dict.fromkeys(f"{family.label}: {option.help}" for family, option in owners.items())
        if option.is_switch:
            parser.add_argument(flag, action="store_true", default=None, help="; ".join(texts))
        else:
            choices = option.choices or None
            parser.add_argument(flag, choices=choices, metavar=option.metavar, help="; ".join(texts))


def add_size(parser: argparse.ArgumentParser, families: Iterable[str]) -> None:
    known = "; ".join(_sizes(get_family(name)) for name in families)
    parser.add_argument(
        "--size",
        help=f"size of the model: {known} (default: from the checkpoint; with --random, the first)",
    )


def model(args: argparse.Namespace, command: str, *, is_random: bool) -> str | None:
    """Return the model's name for the family's exporter; None if the checkpoint determines the model.

    Args:
        args: arguments with ``family``, ``size`` and the family's options.
        is_random: whether the weights are random. Without --size, they have the family's default size.
    """
    family = get_family(args.family)
    given = {"--size": args.size} if args.size else {}
    own = {option.flag: option for option in family.options if command in option.commands and option.replaces_size}
    given |= {flag: value for flag, option in own.items() if (value := getattr(args, option.destination, None))}
    if len(given) > 1:
        *first, last = ["--size", *own]
        raise ConfigurationError(f"{', '.join(first)} and {last} say the same: give one of them")
    if given and not is_random and not family.checkpoint_takes_size:
        raise ConfigurationError(f"{next(iter(given))} is for --random: {family.label}'s checkpoint contains its size")
    refuse_foreign(args, command)
    if not is_random and args.checkpoint is not None:
        _check_exists(Path(args.checkpoint), family, [str(value) for value in given.values()])
    for flag, value in given.items():
        if flag in own and own[flag].names_model:
            return str(value)
        return family.find_size(own[flag].size if flag in own else value).model
    return family.find_size().model if is_random else None


def weights(args: argparse.Namespace) -> dict[str, Any]:
    """Return the weights that `verify` compares, as arguments of registry.official() and of Settings."""
    seed = (args.seed or 0) if args.random else None
    chosen = model(args, "verify", is_random=args.random)
    return {"checkpoint": args.checkpoint, "model": chosen, "random_seed": seed}


def variant_name(args: argparse.Namespace, side: int | None) -> str | None:
    """Return --name, or a name with the image size, because another size would break the family's session model."""
    if args.name or side in (None, get_family(args.family).image_size):
        return args.name or None
    return f"{args.family}_{side}"


def _check_exists(checkpoint: Path, family: Family, given: Sequence[str]) -> None:
    """Check that a checkpoint (a folder for SAM3) exists, before PyTorch is imported, which takes seconds."""
    if checkpoint.exists():
        return
    names = sorted((size.name for size in family.sizes if size.official), key=len, reverse=True)
    size = next((name for name in names if name in given or name in checkpoint.name), "")
    command = " ".join(filter(None, ("triton-sam download", family.name, size)))
    raise CheckpointError(f"no checkpoint at {checkpoint}: get one with `{command}`")


def refuse_foreign(args: argparse.Namespace, command: str) -> None:
    """Refuse options that only other families have."""
    for flag, owners in _owners(command, FAMILIES.values()).items():
        is_given = getattr(args, next(iter(owners.values())).destination, None) is not None
        names = [family.name for family in owners]
        if is_given and args.family not in names:
            raise ConfigurationError(f"{flag} is for {', '.join(names)}, not for {args.family}")


def exporter_options(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """Return the given options of the family's exporter by name."""
    options = [option for option in get_family(args.family).options if command in option.commands]
    given = {option.destination: getattr(args, option.destination, None) for option in options}
    named = {option.destination for option in options if option.replaces_size}
    return {name: value for name, value in given.items() if value is not None and name not in named}


def check_before_download(args: argparse.Namespace, *, published: bool) -> None:
    """Check the options of the family's exporter before `setup` downloads gigabytes."""
    given = exporter_options(args, "setup")
    for option in get_family(args.family).options:
        value = given.get(option.destination)
        if value is not None and published:
            raise ConfigurationError(f"{option.flag} changes an export, and the published ONNX files need none")
        if value is not None and option.is_folder and not Path(value).is_dir():
            raise CheckpointError(f"{option.flag} {value}: there is no such folder")


def _owners(command: str, families: Iterable[Family]) -> dict[str, dict[Family, Option]]:
    """Return, for each flag of a command, the option of each family that has the flag."""
    owners: dict[str, dict[Family, Option]] = {}
    for family in families:
        for option in family.options:
            if command in option.commands:
                owners.setdefault(option.flag, {})[family] = option
    return owners


def _sizes(family: Family) -> str:
    """Return the help text about a family's sizes: the default size of random weights, then the official sizes."""
    names = [size.name for size in family.sizes if size.official or size.name == family.random_size]
    return f"{family.label} {', '.join(sorted(names, key=lambda name: name != family.random_size))}"
