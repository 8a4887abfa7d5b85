"""Runs the service until a signal stops it, and optionally starts a local Triton."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from .._common.extras import missing
from ..errors import PortInUseError, SamError
from ..families import pair_names
from ..local_server.ports import ALL_ADDRESSES, choose_ports, hosts_for_others, resolve_host
from ..transport import probe
from ..transport.failures import START_ADVICE
from ..transport.triton import Transport
from ..transport.url import parse_url
from .settings import TOKEN_VARIABLE, ServiceSettings
from .tracing import add_traces

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

SECONDS_TO_STOP = 5
SECONDS_FOR_SPANS = 3
BACKLOG = 512
SECONDS_OF_IDLE_CONNECTIONS = 75
"""Clients close theirs before, so that no request meets a closing connection: httpx after 5 s, aiohttp after 15 s."""


def serve(
    settings: ServiceSettings, host: str, port: int, *, repository: Path | None = None, quiet: bool = False
) -> int:
    """Serve until SIGINT or SIGTERM; running requests get SECONDS_TO_STOP seconds.

    Args:
        repository: if Triton is not available at ``settings.url``, start a local one with this model repository.
    """
    try:
        import uvicorn

        from .app import create_app
        from .connections import Lingering, limited
    except ImportError as error:
        raise missing("the service needs", "service", error, "local,service") from error
    from . import logs

    address = resolve_host(host)
    port = choose_ports(address, {"service": port})["service"]
    logs.set_up(settings.log_format)
    folder = os.environ.get("TMPDIR")
    if folder and Path(folder).is_dir() and os.access(folder, os.W_OK):
        # If its disk is full, Python would use /tmp instead, which is memory in the container.
        tempfile.tempdir = folder
    # Our own limit rejects large images with a clear error, so a warning in the log would not help.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    with _triton(settings, repository, quiet=quiet) as url:
        app = create_app(replace(settings, url=url))
        send_spans = add_traces(app)
        config = uvicorn.Config(
            Lingering(app),
            host=host,
            port=port,
            access_log=False,
            log_config=None,
            http=limited(settings.timeout + settings.body_seconds),
            backlog=BACKLOG,
            timeout_keep_alive=SECONDS_OF_IDLE_CONNECTIONS,
            timeout_graceful_shutdown=SECONDS_TO_STOP,
            ws="websockets-sansio",
            ws_max_size=1 << 17,
            server_header=False,
        )
        server = _server(config, app, send_spans)
        if not quiet:
            shown = "localhost" if host in ("127.0.0.1", ALL_ADDRESSES) else host
            for line in (
                f"the page: http://{shown}:{port}/   Triton: {url}   Ctrl-C stops",
                *for_others(settings, address, port, show_token=sys.stderr.isatty()),
            ):
                print(line, file=sys.stderr, flush=True)
        try:
            server.run()
        except KeyboardInterrupt:
            pass  # after stopping, uvicorn raises the signal that stopped it
        except SystemExit:
            message = f"the service could not listen on {host}, port {port}: give another --port or --host"
            raise PortInUseError(message, port=port) from None
    return 0


def _server(config: uvicorn.Config, app: FastAPI, send_spans: Callable[[], object]) -> uvicorn.Server:
    """Return a server that rejects work that has not begun when it stops, and then sends its last spans."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.searches.stop()
            app.state.videos.refuse()
            app.state.engine.budgets.workers.refuse()
            await super().shutdown(sockets)
            sending = threading.Thread(target=send_spans, daemon=True)  # the collector may be unavailable
            sending.start()
            await asyncio.to_thread(sending.join, SECONDS_FOR_SPANS)

    return Server(config)


@contextlib.contextmanager
def _triton(settings: ServiceSettings, repository: Path | None, *, quiet: bool) -> Iterator[str]:
    """Yield the URL of Triton. If Triton is not available there, start a local server, and yield its URL."""
    if repository is None and not quiet:
        for line in advice(settings):
            print(f"triton-sam service: warning: {line}", file=sys.stderr, flush=True)
    if repository is None or _answers(settings):
        yield settings.url
        return
    from ..local_server import LocalServer

    if not quiet:
        print(f"no Triton is ready at {settings.url}: starting a local one ...", file=sys.stderr, flush=True)
    with LocalServer(repository) as server:
        yield server.grpc_url


def advice(settings: ServiceSettings) -> Iterator[str]:
    """Yield the current problems of Triton. The service starts anyway, because Triton may start later."""
    transport = _transport(settings)
    try:
        transport.check_ready()
        ready = transport.ready_models()
    except SamError as error:
        text = str(error).removesuffix(START_ADVICE)
        local = "" if text == str(error) else "; `triton-sam service --local` starts a Triton here"
        yield f"{text}{probe.hint(parse_url(settings.url), error)}{local}. Until this is solved, requests fail"
        return
    finally:
        transport.close()
    if not {settings.model, *pair_names(settings.model)} & ready.keys():
        yield f"--model {settings.model}: Triton has no such model ready, but {', '.join(sorted(ready)) or 'none'}"


def for_others(settings: ServiceSettings, address: str, port: int, *, show_token: bool) -> Iterator[str]:
    """Yield what people on other computers need: URLs and the token. Without a token, yield a warning.

    Args:
        address: IPv4 address that the service listens on; a loopback address yields nothing.
        show_token: print the token itself. It must not be written to a log.
    """
    urls = " or ".join(f"http://{each}:{port}/" for each in hosts_for_others(address))
    if not urls:
        return
    if not settings.all_tokens:
        yield f"for other computers: {urls}"
        yield (
            f"triton-sam service: warning: everyone who reaches port {port} may use the service: "
            f"set --token or ${TOKEN_VARIABLE}, for example to $(openssl rand -hex 16)"
        )
    elif settings.token is None:
        yield f"for other computers: {urls}   token: one of --tokens for each caller"
    else:
        token = settings.token.strip() if show_token else f"that of --token or ${TOKEN_VARIABLE}"
        yield f"for other computers: {urls}   token: {token}"


def _answers(settings: ServiceSettings) -> bool:
    transport = _transport(settings)
    try:
        return transport.is_ready()
    finally:
        transport.close()


def _transport(settings: ServiceSettings) -> Transport:
    return Transport(
        parse_url(settings.url), timeout=3.0, retries=0, headers=settings.triton_headers, ca_certs=settings.ca_certs
    )
