#!/usr/bin/env python3
"""Log in to the Hugging Face hub, for the gated SAM3 checkpoint.

Create a token with read access at https://huggingface.co/settings/tokens. The script reads it from $HF_TOKEN or from a
pipe, or asks for it.
"""

import argparse
import getpass
import os
import sys

from triton_sam.commands import _options
from triton_sam.errors import ConfigurationError


def main() -> int:
    """Parse the command line, ask for the token and store it where huggingface_hub finds it."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    return _options.run_script(run)


def run() -> int:
    """Log in."""
    from triton_sam.download.hub import login

    token = os.environ.get("HF_TOKEN") or ask()
    if not token:
        raise ConfigurationError("no token given: type one, pipe one in, or set HF_TOKEN")
    login(token)
    print("logged in")
    return 0


def ask() -> str:
    """Read the token from the terminal, or from a pipe."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    try:
        return getpass.getpass("Hugging Face token (not shown): ").strip()
    except EOFError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
