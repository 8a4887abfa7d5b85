"""The command line `triton-sam`. Each command is a module in `commands`, imported when the command is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import chain

from ._common.process import print_every_text, run_program, turn_off_telemetry
from ._version import __version__
from .commands._parser import Parser
from .commands._table import GROUPS, list_of_commands
from .errors import InferenceError, SamError, ServerUnreachableError

USAGE = "triton-sam [-h] [--version] COMMAND ..."
EXIT_USAGE = 2


def build_parser() -> Parser:
    """Return the parser of ``triton-sam``. A command is imported when its parser is used."""
    parser = _without_commands(Parser(prog="triton-sam", usage=USAGE))
    parser.page = _without_commands(
        Parser(
            prog="triton-sam",
            usage=USAGE,
            description=f"Segment Anything on NVIDIA Triton: serve it, click, get a mask.\n{list_of_commands()}",
            epilog="Start with `triton-sam demo`. `triton-sam COMMAND --help` explains a command.\n"
            "Exit codes: 0 success, 1 failure, 2 wrong options, 130 interrupted.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True, prog=parser.prog)
    for name, text in chain.from_iterable(group.items() for group in GROUPS.values()):
        command = subparsers.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        command.complete = partial(_complete, command, name, parser)
        parser.commands[name] = command
    return parser


def _complete(command: Parser, name: str, root: Parser) -> None:
    """Import the module of a command and add its options to the parser."""
    module = import_module(f".commands.{name}", __package__)
    command.description = module.__doc__
    module.add_arguments(command)
    command.set_defaults(run=module.run, parser=command, root=root)


def _hint(args: argparse.Namespace, error: SamError) -> str:
    """Return a hint if --url is another port of a server; see probe.hint()."""
    from .transport import probe
    from .transport.url import parse_url

    is_unclear = isinstance(error, (ServerUnreachableError, InferenceError))
    url = getattr(args, "url", None)
    return probe.hint(parse_url(url), error) if is_unclear and isinstance(url, str) else ""


def _without_commands(parser: Parser) -> Parser:
    parser.add_argument("--version", action="version", version=f"triton-sam {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``triton-sam`` and return its exit code. Print an error of the package as one line, without a traceback."""
    print_every_text()
    parser = build_parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        args.parser.refuse(unknown)
    turn_off_telemetry()
    return run_program(partial(args.run, args), "triton-sam: ", partial(_hint, args))
