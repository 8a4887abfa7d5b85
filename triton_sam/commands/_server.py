"""A server for one command: the one at --url, or a local one that starts for the command and stops after it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from . import _options

if TYPE_CHECKING:
    from ..local_server import LocalServer


def check(args: argparse.Namespace) -> None:
    """Refuse --url beside --local, and --local where no Triton can start; for commands that work long before they ask.

    Raises:
        ConfigurationError: both options are given.
        MissingDependencyError: the nvidia-pytriton wheel is not installed.
        LocalServerError: there is no such wheel for this system or Python.
    """
    if not args.local:
        return
    if args.url is not None:
        raise ConfigurationError("give --url or --local, not both")
    from ..local_server.installation import find_wheel

    find_wheel()


@contextlib.contextmanager
def local_server(
    args: argparse.Namespace, repository: Path, models: Sequence[str] | None = None, *, admin: bool = False
) -> Iterator[LocalServer]:
    """Start a Triton on free ports of this machine, and stop it when the block ends.

    Args:
        args: of the command; with --quiet nothing is said.
        repository: the model repository.
        models: names of the models to load; None: all that have weights.
        admin: let clients load models and share memory.

    Raises:
        SamError: see LocalServer.start().
    """
    from ..local_server import LocalServer

    _options.say(args, "starting a local Triton ...")
    with LocalServer(repository, models=models, admin=admin) as server:
        yield server


@contextlib.contextmanager
def server_urls(args: argparse.Namespace, models: Sequence[str] | None = None) -> Iterator[tuple[str | None, ...]]:
    """Yield where the command finds its server.

    Args:
        args: of a command with --url, --local and --model-repository.
        models: names of the models that a local server loads; None: all that have weights.

    Yields:
        The URL that was given, None for the default one; with --local the HTTP and the gRPC URL of a local server.

    Raises:
        ConfigurationError: --url and --local are both given.
        SamError: see LocalServer.start().
    """
    check(args)
    if not args.local:
        yield (args.url,)
        return
    with local_server(args, _options.repository(args), models) as server:
        yield server.http_url, server.grpc_url
