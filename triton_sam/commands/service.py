"""Run the SAM service: a web page for clicks, a REST API, and the REST API of 2024.

The service calls a Triton server; with --local, it starts one if none answers. The page is at /, the documentation of
the REST API at /docs; /health and /metrics are for monitoring. Each request is logged as one JSON line on stderr.
Ctrl-C or SIGTERM stops the service.
"""

from __future__ import annotations

import argparse
import os

from ..transport.url import URL_VARIABLE
from . import _options

TOOLS = ("cvat", "label-studio", "x-anylabeling", "qupath", "roboflow", "osam")
"""The adapters of triton_sam/service/adapters/registry.py, listed here so that `--help` works without FastAPI."""
ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=5000, help="(default: 5000; 0: any free port)")
    parser.add_argument("--url", help="Triton, best with gRPC (default: $TRITON_URL, else grpc://localhost:8001)")
    parser.add_argument("--triton-token", metavar="TOKEN", help="token for Triton (default: $TRITON_TOKEN, else none)")
    parser.add_argument("--ca-certs", metavar="FILE", help="PEM certificates to trust for https and grpcs to Triton")
    parser.add_argument("--local", action="store_true", help="start a local Triton if none answers")
    _options.add_repository(parser, _options.OF_LOCAL)
    parser.add_argument("--model", default="sam2", metavar="NAME", help="default model (default: sam2)")
    parser.add_argument("--token", help="token that callers must send (default: $TRITON_SAM_TOKEN, else none)")
    parser.add_argument("--tokens", metavar="FILE", help="JSON file of further tokens, with names and quotas")
    parser.add_argument(
        "--limits", metavar="FILE", help="JSON file of limits, or the JSON itself (defaults: docs/reference/rest.md)"
    )
    parser.add_argument(
        "--cors", nargs="+", default=[], metavar="ORIGIN", help="web origins that may call, * for all (default: none)"
    )
    parser.add_argument(
        "--allowed-host",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="further names of this service, * for all (default: localhost and this machine's; with a token, all)",
    )
    parser.add_argument("--root-path", default="", metavar="PATH", help="path that a reverse proxy adds, such as /sam")
    parser.add_argument(
        "--adapter",
        nargs="+",
        action="extend",
        default=[],
        choices=(*TOOLS, ALL),
        metavar="TOOL",
        help=f"offer the protocols of other tools: {', '.join(TOOLS)}, {ALL}",
    )
    parser.add_argument(
        "--label-studio-url",
        metavar="URL",
        help="Label Studio whose images the service may fetch (default: $LABEL_STUDIO_URL)",
    )
    parser.add_argument("--large-images", metavar="DIR", help="folder of slides and maps for the page /large")
    parser.add_argument("--image-urls", action="store_true", help="fetch images from public URLs that callers send")
    parser.add_argument("--log-format", choices=("json", "text"), default="json", help="log on stderr (default: json)")
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    from ..service.run import serve
    from ..service.settings import DEFAULT_TRITON, NO_QUOTA, TOKEN_VARIABLE, ServiceSettings, read_limits, read_tokens

    # docker compose sets the variable to "" by default
    protected = args.token is not None or os.environ.get(TOKEN_VARIABLE)
    limits = read_limits(args.limits) if args.limits else {}
    settings = ServiceSettings(
        url=args.url or os.environ.get(URL_VARIABLE) or DEFAULT_TRITON,
        model=args.model,
        triton_token=_options.bearer_token(args.triton_token, _options.TOKEN_VARIABLE) or None,
        ca_certs=args.ca_certs,
        token=_options.bearer_token(args.token, TOKEN_VARIABLE) if protected else None,
        tokens=read_tokens(args.tokens, limits.get("quota", NO_QUOTA)) if args.tokens else (),
        origins=tuple(args.cors),
        allowed_hosts=tuple(args.allowed_host),
        image_urls=args.image_urls,
        root_path=args.root_path.rstrip("/"),
        log_format=args.log_format,
        large_images=args.large_images,
        adapters=TOOLS if ALL in args.adapter else tuple(args.adapter),
        label_studio_url=args.label_studio_url or os.environ.get("LABEL_STUDIO_URL") or None,
        label_studio_token=os.environ.get("LABEL_STUDIO_API_KEY") or None,
        **limits,
    )
    _options.refuse_idle_repository(args)
    repository = _options.repository(args) if args.local else None
    return serve(settings, args.host, args.port, repository=repository, quiet=args.quiet)
