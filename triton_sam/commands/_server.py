"""The server of a command: the server at --url, or a local server that stops when the command ends."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.sync import SAM2TritonClient
from ..errors import ConfigurationError, SamError
from ..repository.folder import FETCH_OFFICIAL_WEIGHTS
from ..transport.url import parse_url
from . import _options

if TYPE_CHECKING:
    from ..local_server import LocalServer


def check(args: argparse.Namespace) -> None:
    """Check --url, --local and --model-repository early, for commands that run long before they use the server."""
    _options.refuse_idle_repository(args)
    if not args.local:
        return
    if args.url is not None:
        raise ConfigurationError("give --url or --local, not both")
    from ..local_server.installation import find_wheel

    find_wheel()


def say_if_demo_model(args: argparse.Namespace, client: SAM2TritonClient) -> None:
    """Print on stderr, unless --quiet is given, that the masks come from the demo model.

    The model's configuration identifies the demo model, so this also works with a remote server.
    """
    if getattr(args, "quiet", False):
        return
    with contextlib.suppress(SamError):  # the masks are valid even if the server does not list its models
        if (args.name or args.model) in client.models().demo:
            _options.say(args, f"the masks come from the weights of the demo model; {FETCH_OFFICIAL_WEIGHTS}")


def running_url(args: argparse.Namespace, make_client: Callable[[], Any]) -> str | None:
    """Return the URL of the given server, or of a ready one at the default URL; None if a local one must start."""
    if args.url is None and not args.model_repository:
        with make_client() as client, contextlib.suppress(SamError):
            if client.is_ready():
                return str(parse_url(None))
    url: str | None = args.url
    return url


@contextlib.contextmanager
def local_server(
    args: argparse.Namespace,
    repository: Path,
    models: Sequence[str] | None = None,
    *,
    admin: bool = False,
    decoder_in_session: bool | None = None,
) -> Iterator[LocalServer]:
    """Start a Triton on free local ports and stop it at the end of the block."""
    from ..local_server import LocalServer

    _options.say(args, "starting a local Triton ...")
    with LocalServer(repository, models=models, admin=admin, decoder_in_session=decoder_in_session) as server:
        yield server


@contextlib.contextmanager
def connected(args: argparse.Namespace) -> Iterator[SAM2TritonClient]:
    """Yield a client of the command's server with the options of `_options.add_client`."""
    with (
        server_urls(args) as urls,
        SAM2TritonClient(
            urls[0], args.model, model_name=args.name, timeout=args.timeout, **_options.access(args)
        ) as client,
    ):
        yield client


@contextlib.contextmanager
def server_urls(args: argparse.Namespace) -> Iterator[tuple[str | None, ...]]:
    """Yield the URLs of the command's server.

    Yields:
        The given URL, or None for the default one; with --local, the HTTP and the gRPC URL of the local server.
    """
    check(args)
    if not args.local:
        yield (args.url,)
        return
    with local_server(args, _options.repository(args)) as server:
        yield server.http_url, server.grpc_url
