"""Run the SAM service: a web page for clicks, a REST API, and the REST API of 2024.

The service calls a Triton server; with --local, it starts one if none answers. Ctrl-C or SIGTERM stop it. It logs one
JSON line for each request on stderr. The page is at /, beside /metrics, /health and /docs.
"""

from __future__ import annotations

import argparse
import os

from ..transport.url import URL_VARIABLE
from . import _options

MEBI = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=5000, help="(default: 5000; 0: any free port)")
    parser.add_argument(
        "--url", help="URL of Triton, best with gRPC (default: $TRITON_URL, else grpc://localhost:8001)"
    )
    parser.add_argument(
        "--triton-token", metavar="TOKEN", help="bearer token for Triton (default: $TRITON_TOKEN, else none)"
    )
    parser.add_argument(
        "--ca-certs", metavar="FILE", help="file of PEM certificates to trust for https and grpcs to Triton"
    )
    parser.add_argument("--local", action="store_true", help="start a local Triton if none answers")
    _options.add_repository(parser)
    parser.add_argument(
        "--model", default="sam2", metavar="NAME", help="model for requests that name none (default: sam2)"
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="bearer token that callers must send (default: $TRITON_SAM_TOKEN, else none)",
    )
    parser.add_argument(
        "--cors",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="web origins that may call the service, * for all (default: none)",
    )
    parser.add_argument(
        "--max-body", type=int, default=64, metavar="MIB", help="maximum size of a request (default: 64)"
    )
    parser.add_argument(
        "--max-megapixels", type=float, default=100.0, metavar="N", help="maximum size of an image (default: 100)"
    )
    parser.add_argument(
        "--max-requests", type=int, default=256, metavar="N", help="maximum simultaneous requests (default: 256)"
    )
    parser.add_argument("--max-encodes", type=int, default=4, metavar="N", help="images encoded at a time (default: 4)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="time limit of a request (default: 60)"
    )
    parser.add_argument(
        "--memory", type=int, default=512, metavar="MIB", help="memory for uploaded images (default: 512)"
    )
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from ..service.run import serve
    from ..service.settings import DEFAULT_TRITON, TOKEN_VARIABLE, Settings

    protected = args.token is not None or os.environ.get(
        TOKEN_VARIABLE
    )  # docker compose sets it to "" if it is not given
    settings = Settings(
        url=args.url or os.environ.get(URL_VARIABLE) or DEFAULT_TRITON,
        model=args.model,
        triton_token=_options.bearer_token(args.triton_token, _options.TOKEN_VARIABLE) or None,
        ca_certs=args.ca_certs,
        token=_options.bearer_token(args.token, TOKEN_VARIABLE) if protected else None,
        origins=tuple(args.cors),
        max_body=args.max_body * MEBI,
        max_megapixels=args.max_megapixels,
        max_requests=args.max_requests,
        max_encodes=args.max_encodes,
        timeout=args.timeout,
        store_bytes=args.memory * MEBI,
    )
    repository = _options.repository(args) if args.local else None
    return serve(settings, args.host, args.port, repository=repository, quiet=args.quiet)
