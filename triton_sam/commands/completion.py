"""Print the completion of `triton-sam` for a shell.

triton-sam completion bash > ~/.local/share/bash-completion/completions/triton-sam
triton-sam completion zsh > "${fpath[1]}/_triton-sam"
"""

from __future__ import annotations

import argparse

from .._common.extras import missing

SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise missing("`triton-sam completion` needs", "completion", error) from error
    print(shtab.complete(args.root.with_commands(), shell=args.shell))
    return 0
