"""Start Triton inside the Docker image, with every model that has weights.

A small supervisor replaces this process. It passes SIGTERM and the exit status on, and restarts tritonserver if it or
the process of a model dies. Options after `--` are passed on unchanged.

Requests to load models are refused, because they can contain programs. After changing the repository, run
`triton-sam reload NAME` inside the container. TRITON_SAM_ADMIN=1 allows these requests.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from ..errors import MissingDependencyError
from ..repository.hashes import intact_models
from ..repository.selection import select_models
from . import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_models(parser)
    _options.add_admin(parser)
    _options.add_no_verify(parser)
    _options.add_repository(parser)
    parser.add_argument(
        "options", nargs="*", metavar="-- OPTION", help="option for tritonserver, such as --log-verbose=1"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. On success it never returns: the process becomes the supervisor of tritonserver."""
    from ..local_server.contained import become_supervisor
    from ..local_server.serve import complete

    program = shutil.which("tritonserver")
    if program is None:
        raise MissingDependencyError(
            "no tritonserver on the PATH: this command is for NVIDIA's container; use `triton-sam serve` instead"
        )
    repository: Path = _options.repository(args)
    complete(repository)
    folders = intact_models(select_models(repository, _options.wanted_models(args)), verify=args.verify)
    become_supervisor(program, repository, folders, args.options, admin=args.admin, verify=args.verify)
