"""Options and small steps that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import SamError
from ..families import FAMILIES
from ..repository.folder import default_repository

TOKEN_VARIABLE = "TRITON_TOKEN"  # noqa: S105 - a name, not a token


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add --url."""
    parser.add_argument(
        "--url",
        help="server: host:port, http://, https://, grpc:// or grpcs:// (default: $TRITON_URL, else localhost:8000)",
    )


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add what a proxy in front of the server may ask for: --token and --ca-certs."""
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=f"send `Authorization: Bearer TOKEN` (default: ${TOKEN_VARIABLE}, which no ps shows)",
    )
    parser.add_argument("--ca-certs", type=Path, metavar="FILE", help="PEM certificates to trust, for https and grpcs")


def access(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a client or transport that --token and --ca-certs stand for."""
    token = bearer_token(args.token, TOKEN_VARIABLE)
    return {"headers": {"Authorization": f"Bearer {token}"} if token else None, "ca_certs": args.ca_certs}


def bearer_token(given: str | None, variable: str) -> str:
    """Return the token of an option, or of an environment variable where the option was left out; "" for none."""
    token = given if given is not None else os.environ.get(variable, "")
    return token.strip()  # a file that it was read from may end in a line break


def add_local(parser: argparse.ArgumentParser) -> None:
    """Add --local."""
    parser.add_argument("--local", action="store_true", help="start a local Triton for this command and stop it after")


def add_repository(parser: argparse.ArgumentParser) -> None:
    """Add --model-repository, also spelled --output-dir."""
    add_spellings(
        parser,
        "--model-repository",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="model repository (default: $TRITON_SAM_REPOSITORY, ./model_repository, or the one of this installation)",
    )


def add_name(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --name, also spelled --model-name: a variant's name.

    Args:
        parser: changed in place.
        text: the line for --help.
    """
    add_spellings(parser, "--name", "--model-name", metavar="VARIANT", help=text)


def add_spellings(parser: argparse.ArgumentParser, flag: str, *others: str, **settings: Any) -> None:
    """Add an option with further spellings, which --help does not show."""
    action = parser.add_argument(flag, *others, **settings)
    action.option_strings = [flag]


def add_family(parser: argparse.ArgumentParser) -> None:
    """Add the positional family."""
    parser.add_argument("family", choices=tuple(FAMILIES), help="model family")


def add_client(parser: argparse.ArgumentParser) -> None:
    """Add what says which model answers, and where: --model, --name, --timeout, --url, --token, --local, and so on."""
    parser.add_argument("--model", choices=tuple(FAMILIES), default="sam2", help="model family (default: sam2)")
    add_name(parser, "variant to use, for example sam2.1_large")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for each call (default: 60)")
    add_url(parser)
    add_access(parser)
    add_local(parser)
    add_repository(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add --quiet."""
    parser.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")


def repository(args: argparse.Namespace) -> Path:
    """Return the model repository that the command works on."""
    return args.model_repository if args.model_repository is not None else default_repository()


def say(args: argparse.Namespace, text: str) -> None:
    """Print progress for a person, on stderr, unless --quiet."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def run_script(run: Callable[[], int]) -> int:
    """Run a script; an error of ours, or of the disk, is one line."""
    try:
        return run()
    except SamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # as the command line has it
        print(f"error: {error.filename or 'cannot write'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
