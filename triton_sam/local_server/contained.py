"""Run the tritonserver of a container under the supervisor, for `triton-sam container`."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from triton_sam._common import strict_json
from triton_sam.errors import ConfigurationError
from triton_sam.local_server import supervisor
from triton_sam.local_server.closed import (
    CONTROL_MODE,
    LINKS,
    closed_options,
    hide_key,
    make_run_directory,
    open_options,
    shared_memory_options,
    shm_prefix,
)
from triton_sam.local_server.ports import ALL_ADDRESSES, reachable_host
from triton_sam.local_server.settings import completion_options, server_options, thread_options, values_of
from triton_sam.repository.folder import RepositoryModel

GRACE_SECONDS = 35.0
"""Seconds that Triton gets to finish its requests. Triton stops after 30 s by default."""
DEFAULT_PORTS = {"http": 8000, "grpc": 8001}


def become_supervisor(
    program: str,
    repository: Path,
    folders: Sequence[RepositoryModel],
    options: Sequence[str],
    *,
    admin: bool = False,
    verify: bool | None = None,
) -> NoReturn:
    """Replace this process with the supervisor, which starts tritonserver and restarts it when a model dies.

    Args:
        options: further options of tritonserver. If they set a control mode, the user decides about requests to load
            models.
    """
    run_directory = make_run_directory()
    try:
        identity = secrets.token_hex(4)
        is_open = admin or bool(values_of(options, CONTROL_MODE))
        if is_open:
            control = open_options(repository.absolute(), folders, options, run_directory)
        else:
            control = [*closed_options(folders, options, run_directory), *completion_options(folders, options)]
        defaults = [*server_options(folders, options), *thread_options(folders, options)]
        ports = {name: port_of(options, f"--{name}-port", port) for name, port in DEFAULT_PORTS.items()}
        host = option(options, "--http-address") or ALL_ADDRESSES
        job = supervisor.Job(
            command=[program, *control, *shared_memory_options(identity), *defaults, *options],
            log_file="",
            run_directory=str(run_directory),
            shm_prefix=shm_prefix(identity),
            grace_seconds=GRACE_SECONDS,
            parent_pid=0,
            address=[reachable_host(host), ports["http"]],
            heal=True,
            facts={
                "repository": str(repository.absolute()),
                "links": "" if is_open else str(run_directory / LINKS),
                "ports": ports,
                "verify": verify,
            },
        )
        sys.stderr.write(" ".join(map(hide_key, job.command)) + "\n")
        sys.stderr.flush()
        # A new interpreter without site-packages, to save memory.
        os.execv(sys.executable, [sys.executable, "-I", "-S", supervisor.__file__, strict_json.dumps(vars(job))])  # noqa: S606
    except BaseException:
        shutil.rmtree(run_directory, ignore_errors=True)
        raise


def port_of(options: Sequence[str], name: str, default: int) -> int:
    text = option(options, name) or str(default)
    if not text.isdecimal():
        raise ConfigurationError(f"{name} must be a port, not {text!r}")
    return int(text)


def option(options: Sequence[str], name: str) -> str | None:
    """Return the last value of an option; None without it."""
    values = values_of(options, name)
    return values[-1] if values else None
