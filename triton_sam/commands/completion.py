"""Print the completion of `triton-sam` for a shell.

triton-sam completion bash > ~/.local/share/bash-completion/completions/triton-sam
triton-sam completion zsh > "${fpath[1]}/_triton-sam"
triton-sam completion fish > ~/.config/fish/completions/triton-sam.fish
"""

from __future__ import annotations

import argparse

from .._common.extras import missing
from . import _fish

SHELLS = ("bash", "zsh", "tcsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        MissingDependencyError: shtab is missing, which writes the completions of all shells but fish.
    """
    if args.shell == "fish":
        print(_fish.script(args.root))
        return 0
    try:
        import shtab
    except ImportError as error:
        raise missing("`triton-sam completion` needs", "completion", error) from error
    print(shtab.complete(args.root, shell=args.shell))
    return 0
