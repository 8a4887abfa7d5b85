"""Serve a model repository with a real Triton on this machine, without Docker.

Runs the Triton of the nvidia-pytriton wheel, or with --tritonserver another installation. If Triton or the process of a
model dies, Triton is restarted. Ctrl-C stops the server.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from . import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_repository(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--http-port", type=int, default=8000, metavar="PORT", help="(default: 8000; 0: any free port)")
    parser.add_argument("--grpc-port", type=int, default=8001, metavar="PORT", help="(default: 8001; 0: any free port)")
    parser.add_argument(
        "--metrics-port", type=int, default=8002, metavar="PORT", help="(default: 8002; 0: any free port)"
    )
    _options.add_models(parser)
    parser.add_argument(
        "--tritonserver", type=Path, metavar="DIR", help="another Triton installation, for example /opt/tritonserver"
    )
    parser.add_argument(
        "--backend-directory",
        type=Path,
        metavar="DIR",
        help="backends of that Triton (default: DIR/backends of --tritonserver)",
    )
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="append Triton's log to this file")
    _options.add_admin(parser)
    _options.add_no_verify(parser)
    _options.add_decoder_in_session(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show Triton's own log")
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    from ..local_server.serve import serve
    from ..local_server.settings import ServerSettings

    args.models = _options.wanted_models(args)
    settings = {each.name: getattr(args, each.name) for each in fields(ServerSettings) if each.name in args}
    return serve(_options.repository(args), verbose=args.verbose, quiet=args.quiet, **settings)
