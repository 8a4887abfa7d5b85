"""Start tritonserver with every model that has weights; the container of the Dockerfile runs this command.

The process becomes `tritonserver`, so that signals reach the server. Options after `--` are passed on unchanged. The
default control mode is explicit, so that a folder with only a config.pbtxt does not stop the server and so that
`triton-sam reload` works.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from ..errors import MissingDependencyError
from ..repository.selection import select_models
from . import _options

MODELS_VARIABLE = "TRITON_SAM_MODELS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help=f"load only these models and those they call (default: ${MODELS_VARIABLE}, separated by spaces, else all)",
    )
    _options.add_repository(parser)
    parser.add_argument(
        "options", nargs="*", metavar="-- OPTION", help="option for tritonserver, such as --log-verbose=1"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. On success it does not return: the process becomes tritonserver."""
    program = shutil.which("tritonserver")
    if program is None:
        raise MissingDependencyError(
            "no tritonserver on the PATH: this command is for NVIDIA's container; use `triton-sam serve` instead"
        )
    command = [program, *server_options(_options.repository(args), args.models), *args.options]
    print(" ".join(command), file=sys.stderr, flush=True)
    os.execv(program, command)  # noqa: S606 - no shell is needed


def server_options(repository: Path, models: list[str] | None) -> list[str]:
    """Return tritonserver's options for a repository.

    Raises:
        RepositoryError: the repository or a model does not exist, or no model has weights.
    """
    wanted = models or os.environ.get(MODELS_VARIABLE, "").split() or None
    chosen = select_models(repository, wanted)
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={folder.name}" for folder in chosen),
    ]
