"""Run the local server in the foreground until Ctrl-C, for `triton-sam serve`.

Before a server reads the model repository of an earlier version, `complete()` adds its missing files.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TextIO

from triton_sam._common.signals import ends_by_interrupt, signals_ignored
from triton_sam.errors import MissingDependencyError
from triton_sam.local_server.launcher import LocalServer
from triton_sam.local_server.ports import hosts_for_others, reachable_host, resolve_host
from triton_sam.local_server.probe import last_errors
from triton_sam.repository.folder import unguarded_graphs
from triton_sam.sessions.configs import complete_repository


def complete(repository: Path) -> None:
    """Write the missing files of an older repository, and print their models to stderr.

    A read-only repository, as in a container, is served unchanged, and one line of advice is printed.
    """
    if not repository.is_dir():
        return
    try:
        written = complete_repository(repository)
    except (OSError, MissingDependencyError) as error:
        print(
            f"triton-sam: {repository} lacks files, and they cannot be written here ({error}): "
            f"run `triton-sam doctor --fix --model-repository DIR` where it can be written",
            file=sys.stderr,
        )
        return
    if written:
        names = ", ".join(sorted({path.relative_to(repository).parts[0] for path in written}))
        print(f"triton-sam: {repository} lacked files of {names}; they are written", file=sys.stderr)


STATUS_AFTER_OWN_DEATH = 1


USUAL_PORTS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}


def serve(
    model_repository: str | Path,
    *,
    verbose: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> int:
    """Start a server, print its URLs, and block until Ctrl-C, SIGTERM or the end of the server.

    Args:
        model_repository: the folder with a folder for each model. Missing files of an earlier version are added.
        settings: fields of `ServerSettings`; the ports are 8000, 8001 and 8002 by default.

    Returns:
        The exit status: 0 after Ctrl-C or SIGTERM, 1 after the server ended unexpectedly and was not restarted.
    """
    repository = Path(model_repository)
    complete(repository)
    server = LocalServer(repository, **{**USUAL_PORTS, **settings})
    with (
        ends_by_interrupt() as interrupted,
        contextlib.suppress(KeyboardInterrupt),
        _log_to_stderr(server) if verbose else contextlib.nullcontext(),
        _started(server, quiet),
    ):
        _warn_of_unguarded(repository, {model.name for model in server.served_models()})
        _report_restarts(server, interrupted)
        if not interrupted.is_set():
            words = " / ".join(last_errors(server.log)) or "its log is empty"
            print(f"triton-sam: the server stopped: {words}", file=sys.stderr)
            return STATUS_AFTER_OWN_DEATH
    return 0


@contextlib.contextmanager
def _started(server: LocalServer, quiet: bool) -> Iterator[None]:
    """Start a server and print its summary; stop it at the end of the block."""
    started = False
    try:
        began = time.monotonic()
        server.start()
        started = True
        print(_summary(server, time.monotonic() - began, quiet), flush=True)
        yield
    finally:
        with signals_ignored():  # a second Ctrl-C must not interrupt the clean-up
            server.stop()
            if started and not quiet:
                print("Stopped.", flush=True)


def _summary(server: LocalServer, seconds: float, quiet: bool) -> str:
    if quiet:
        return server.http_url
    lines = [
        f"Triton {server.server_version()} is ready after {seconds:.1f} s",
        f"  HTTP     {server.http_url}",
        f"  gRPC     {server.grpc_url}",
        f"  metrics  {server.metrics_url}",
    ]
    address = resolve_host(server.host)
    urls = f"{server.http_url}  {server.grpc_url}"
    here = reachable_host(address)
    lines += [f"  others   {urls.replace(here, host)}" for host in hosts_for_others(address) if host != here]
    if not ip_address(address).is_loopback:
        lines.append("  warning  Triton has no authentication: everyone who reaches these ports may use it")
    models = server.served_models()
    width = max((len(model.name) for model in models), default=0)
    lines += [f"  READY    {model.name:<{width}}  {model.device or 'ensemble'}" for model in models]
    lines += [f"  warning  {text}" for text in cpu_fallbacks(server.log)]
    return "\n".join([*lines, "Ctrl-C stops it."])


def cpu_fallbacks(log: str) -> list[str]:
    """Return the backend's warnings about models that run on the CPU although Triton reports a GPU."""
    return list(dict.fromkeys(re.findall(r'[^\s"]+ runs on the CPU: [^\n"]+', log)))


def _report_restarts(server: LocalServer, interrupted: threading.Event) -> None:
    """Wait until the server ends or a signal arrives, and print the supervisor's line for each restart."""
    reported = 0
    while not interrupted.is_set() and server.wait(1.0) is None:
        if server.restarts > reported:
            reported = server.restarts
            lines = [line for line in server.log.splitlines() if line.endswith(f"(restart {reported})")]
            print(lines[-1] if lines else f"triton-sam: restart {reported}", file=sys.stderr, flush=True)


def _warn_of_unguarded(repository: Path, served: Collection[str]) -> None:
    """Warn about models that one request can crash, because their graphs accept tensors of wrong sizes."""
    names = sorted({path.parent.parent.name for path in unguarded_graphs(repository)}.intersection(served))
    if names:
        print(
            f"triton-sam: {', '.join(names)}: a request of a wrong size can end the server; stop it, and run "
            "`triton-sam doctor --fix` once",
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def _log_to_stderr(server: LocalServer) -> Iterator[None]:
    finished = threading.Event()
    thread = threading.Thread(target=_follow, args=(server, finished), name="triton-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _follow(server: LocalServer, finished: threading.Event) -> None:
    """Copy the log of this server to standard error, without the output of earlier servers.

    A start that is repeated on other ports has its own log, which is also copied.
    """
    path: Path | None = None
    ended = False
    with contextlib.ExitStack() as opened:
        log: TextIO = io.StringIO()
        while not ended:
            ended = finished.wait(0.1 if path else 0.02)
            sys.stderr.write(_new_text(log))  # also from an earlier attempt, whose open file may be deleted
            place = server.log_place
            if place is not None and place[0] != path:
                with contextlib.suppress(OSError):
                    log = opened.enter_context(_open_at(*place))
                    path = place[0]
                    sys.stderr.write(log.read())
            sys.stderr.flush()


def _new_text(log: TextIO) -> str:
    """Read the new text of a log. The supervisor empties a long log (output.py)."""
    text = log.read()
    if not text and isinstance(log, io.TextIOWrapper) and os.fstat(log.fileno()).st_size < log.buffer.tell():
        log.seek(0)
        text = log.read()
    return text


def _open_at(path: Path, start: int) -> TextIO:
    binary = path.open("rb")
    binary.seek(start)
    return io.TextIOWrapper(binary, encoding="utf-8", errors="replace")
