#!/usr/bin/env python
"""Let many users click on a running service, and print its answers, their latency, and the memory of the service.

The exit code is 1 after a failure, or when the memory grows.

Start the service in another terminal: triton-sam service --local
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from triton_sam._common.bundle import bundled
from triton_sam.benchmark.service_load import run_load
from triton_sam.commands._options import bearer_token
from triton_sam.errors import SamError
from triton_sam.service.settings import TOKEN_VARIABLE


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", default="http://localhost:5000", help="URL of the service (default: http://localhost:5000)"
    )
    parser.add_argument("--users", type=int, default=32, help="number of concurrent users (default: 32)")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the clicks (default: 30)")
    parser.add_argument(
        "--image", type=Path, action="append", help="image to click on (default: images of this project)"
    )
    parser.add_argument("--token", help=f"bearer token of the service (default: ${TOKEN_VARIABLE})")
    args = parser.parse_args()
    images = args.image or [bundled("test/images") / name for name in ("shapes.jpg", "coffee.jpg")]
    token = bearer_token(args.token, TOKEN_VARIABLE) or None
    try:
        report = run_load(args.url, images, users=args.users, seconds=args.seconds, token=token)
    except SamError as error:
        print(f"service_load: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(report.lines()))
    return 1 if report.failures or not report.click_ms or not report.is_flat else 0


if __name__ == "__main__":
    raise SystemExit(main())
