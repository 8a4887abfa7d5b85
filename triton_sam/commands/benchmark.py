"""Measure a server: latency, throughput, other runners, a moving mouse, load.

Examples:
  triton-sam benchmark --local --out results
  triton-sam benchmark sam2 --local --weights random:tiny --compare torch,inprocess,naive --out results
  triton-sam benchmark --url http://gpu-host:8000 --url grpc://gpu-host:8001 --only latency,load --users 16
  triton-sam benchmark --local --only speculative

The folder of --out receives result.json, table.txt and plot.png. After Ctrl-C, the finished measurements are still
reported. The server should have no other work during the benchmark.
docs/how-to/benchmark.md explains each metric.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._common import strict_json
from .._common.bundle import bundled
from .._common.files import atomic_write
from .._common.signals import signals_ignored
from ..benchmark.settings import ALTERNATIVES, DEFAULT_COMPARE, SECTIONS, BenchmarkSettings
from ..errors import ConfigurationError, ModelNotReadyError, SamError
from ..families import FAMILIES, get_family
from ..transport.url import parse_url, usual_metrics_url
from . import _options, _server

if TYPE_CHECKING:
    from ..benchmark.results import Results
    from ..benchmark.target import Target, Weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = BenchmarkSettings()
    parser.add_argument(
        "family", nargs="?", choices=tuple(FAMILIES), default="sam2", help="model family (default: sam2)"
    )
    parser.add_argument(
        "--url",
        action="append",
        help="server: host:port, http:// or grpc://; repeat for the other protocol (default: $TRITON_URL, else "
        "localhost:8000)",
    )
    _options.add_access(parser)
    _options.add_local(parser)
    _options.add_decoder_in_session(parser)  # with --local
    _options.add_repository(parser, _options.OF_LOCAL)
    _options.add_name(parser, "variant to measure, for example sam2.1_large")
    parser.add_argument(
        "--weights",
        metavar="micro|random:SIZE|FILE",
        help="weights of the models to measure (default: those in the repository, else random weights of the default "
        "size); with --url: the weights that the server's models have, for the comparison",
    )
    parser.add_argument("--image", type=Path, metavar="FILE", help="image to use (default: a bundled photo)")
    parser.add_argument(
        "--duration", type=float, default=default.duration, metavar="SECONDS",
        help=f"duration of each single measurement (default: {default.duration:g})",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=_numbers, default=default.concurrency, metavar="N,N,...",
        help="numbers of simultaneous users (default: 1,2,4,8,16)",
    )  # fmt: skip
    parser.add_argument(
        "--compare", type=_names, default=DEFAULT_COMPARE, metavar="NAME,...",
        help=f"other runners, or none: {', '.join(ALTERNATIVES)} (default: {','.join(DEFAULT_COMPARE)})",
    )  # fmt: skip
    parser.add_argument(
        "--only",
        type=_names,
        default=SECTIONS,
        metavar="SECTION,...",
        help=f"parts to run: {', '.join(SECTIONS)} (default: all)",
    )
    parser.add_argument(
        "--users", type=int, default=default.users, metavar="N", help="users of the load test (default: 8)"
    )
    parser.add_argument(
        "--think", type=float, default=default.think, metavar="SECONDS",
        help="mean pause of a user between clicks (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--load-duration", type=float, default=default.load_seconds, metavar="SECONDS",
        help=f"duration of the load test (default: {default.load_seconds:g})",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the result, the table and the plot")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. After an interruption or an error, still print and write the finished measurements."""
    from ..benchmark.results import table
    from ..benchmark.run import begin, measure

    settings = BenchmarkSettings(
        args.duration, _in_order(args.only), args.compare, args.concurrency, users=args.users, think=args.think,
        load_seconds=args.load_duration,
    )  # fmt: skip
    if args.out is not None:  # before the run, so that a wrong path or a missing package is reported immediately
        importlib.import_module("..benchmark.plot", __package__)
        args.out.mkdir(parents=True, exist_ok=True)
    stop: SamError | KeyboardInterrupt | None = None
    with contextlib.ExitStack() as stack:
        target = _target(args, stack)
        results = begin(target, settings, shlex.join(["triton-sam", *sys.argv[1:]]))
        try:
            measure(target, settings, results, quiet=args.quiet)
        except (SamError, KeyboardInterrupt) as error:
            stop = error
        with signals_ignored():  # a second Ctrl-C must not lose the results that the first one left
            if results.rows:
                print(strict_json.dumps(results.to_json()) if args.json else table(results))
                for path in _write(results, args.out) if args.out is not None else []:
                    _options.say(args, f"wrote {path}")
    if stop is not None:
        raise stop
    return 0


def _write(results: Results, folder: Path) -> Iterator[Path]:
    from ..benchmark.plot import write_plot
    from ..benchmark.results import table

    text = strict_json.dumps(results.to_json(), indent=1) + "\n"
    for name, content in (("result.json", text), ("table.txt", table(results) + "\n")):
        atomic_write(folder / name, content.encode())
        yield folder / name
    if write_plot(results, folder / "plot.png"):
        yield folder / "plot.png"


def _target(args: argparse.Namespace, stack: contextlib.ExitStack) -> Target:
    """Return the server to measure: a running server, or a new local server."""
    from ..benchmark.target import Target

    _server.check(args)
    if not args.image:
        source = bundled("test/images") / "coffee.jpg"
    elif args.image.is_file():
        source = args.image
    else:
        raise ConfigurationError(f"no image at {args.image}")
    if args.decoder_in_session is not None and not args.local:
        raise ConfigurationError("--decoder-in-session is for --local: a running server has its own settings")
    urls = {} if args.local else _urls(args.url or [None])
    weights = _weights(args, stack)
    if args.local:
        assert weights is not None  # noqa: S101 - made for a local server
        models = [weights.name or args.family]
        server = stack.enter_context(
            _server.local_server(
                args, weights.repository, models, admin=True, decoder_in_session=args.decoder_in_session
            )
        )
        urls = {"http": server.http_url, "grpc": server.grpc_url}
        target = Target(args.family, weights.name, urls, source, weights, server.pid, metrics_url=server.metrics_url)
    else:
        (first, *_) = urls.values()
        metrics_url = usual_metrics_url(parse_url(first))
        target = Target(
            args.family, args.name, urls, source, weights, access=_options.access(args), metrics_url=metrics_url
        )
    stack.callback(target.close)
    return target


def _urls(given: Sequence[str | None]) -> dict[str, str]:
    """Return the server's URLs by protocol. None means the default URL."""
    urls: dict[str, str] = {}
    for url in map(parse_url, given):
        protocol = "grpc" if url.is_grpc else "http"
        if protocol in urls:
            raise ConfigurationError(f"one server is measured: {url} and {urls[protocol]} use the same protocol")
        urls[protocol] = str(url)
    return urls


def _weights(args: argparse.Namespace, stack: contextlib.ExitStack) -> Weights | None:
    """Return the files of the models; None for a running server without --weights."""
    from ..benchmark.target import find_weights, make_weights

    text = args.weights
    if text is None and not args.local:
        return None
    if text is None:
        repository = _options.repository(args)
        found = find_weights(args.family, repository, args.name)
        if found is not None:
            return found
        if args.name:
            raise ModelNotReadyError(f"{repository} holds no weights for {args.name!r}: see `triton-sam models`")
        _options.say(args, f"{repository} holds no weights for {args.family}: measuring random ones")
        text = "random:"
    elif args.name and args.local:
        raise ConfigurationError("--name is for models in a repository: leave out --name or --weights")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_benchmark_")))
    concepts = bool(get_family(args.family).concepts) and "words" in args.only
    return make_weights(args.family, text, folder, not args.quiet, concepts=concepts)


def _in_order(sections: tuple[str, ...]) -> tuple[str, ...]:
    known = [section for section in SECTIONS if section in sections]
    return (*known, *(section for section in sections if section not in known))


def _names(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers with commas, for example 1,2,4") from None
