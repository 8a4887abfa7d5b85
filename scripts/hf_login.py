#!/usr/bin/env python3
"""Log in to the Hugging Face hub, for the gated SAM3 checkpoint.

Make a token with read access at https://huggingface.co/settings/tokens. It is asked for here, or read from $HF_TOKEN.
"""

import argparse
import getpass
import os
import sys


def main() -> int:
    """Parse the command line, ask for the token and keep it where huggingface_hub looks."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        import huggingface_hub
    except ImportError:
        print('error: huggingface_hub is missing: pip install "triton-sam[export]"', file=sys.stderr)
        return 1
    try:
        token = os.environ.get("HF_TOKEN") or getpass.getpass("Hugging Face token (not shown): ").strip()
        if not token:
            print("error: no token given", file=sys.stderr)
            return 1
        huggingface_hub.login(token, skip_if_logged_in=False)
    except (KeyboardInterrupt, EOFError):
        return 130
    except Exception as error:  # noqa: BLE001 - wrong token (ValueError), or no connection: httpx's errors share no base with it
        print(f"error: the hub does not accept the login: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    print("logged in")
    return 0


if __name__ == "__main__":
    sys.exit(main())
