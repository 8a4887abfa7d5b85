"""The command line `triton-sam`. Each command is a module in `commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__
from ._common import reports
from .commands import (
    alias,
    benchmark,
    config,
    container,
    demo,
    doctor,
    download,
    evaluate,
    everything,
    export,
    health,
    models,
    predict,
    reload,
    repair,
    serve,
    service,
    setup,
    speculative,
    track,
    verify,
)
from .errors import SamError

COMMANDS = (
    demo,
    serve,
    service,
    predict,
    everything,
    track,
    models,
    doctor,
    health,
    setup,
    download,
    export,
    alias,
    verify,
    evaluate,
    speculative,
    benchmark,
    config,
    repair,
    reload,
    container,
)

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``triton-sam`` with all commands."""
    parser = argparse.ArgumentParser(
        prog="triton-sam",
        description="Segment Anything on NVIDIA Triton: serve it, click, get a mask.",
        epilog="Start with `triton-sam demo`. Exit codes: 0 success, 1 failure, 2 wrong options, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"triton-sam {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``triton-sam`` and return its exit code. Print an error of the package as one line, without a traceback."""
    args = build_parser().parse_args(arguments)
    reports.turn_off()
    try:
        return int(args.run(args))
    except SamError as error:
        print(f"triton-sam: error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:  # a result file cannot be written; errors of servers and inputs are SamErrors
        print(f"triton-sam: error: {error.filename or 'cannot write'}: {error.strerror or error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("triton-sam: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
