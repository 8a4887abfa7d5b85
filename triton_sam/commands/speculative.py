"""Stress the speculative client: count requests and time the last mask.

A mouse path is queued at once, then position by position, then in many lanes at a time. The number of computed masks
comes from the server's own counters; every final mask is compared with the sync client's, bit for bit. The exit code is
1 if a limit is missed. The server should have no other work during the test.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from .._common import strict_json
from .._common.bundle import bundled
from ..benchmark.mouse import Row, stress
from ..errors import ConfigurationError
from ..repository.names import pair_names
from ..transport.url import parse_url, usual_metrics_url
from . import _options, _server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_url(parser)
    _options.add_access(parser)
    _options.add_local(parser)
    _options.add_repository(parser)
    _options.add_name(parser, "variant to use, for example sam2.1_tiny")
    parser.add_argument(
        "--positions", type=int, default=50, metavar="N", help="positions on the mouse path (default: 50)"
    )
    parser.add_argument("--sessions", type=int, default=20, metavar="N", help="concurrent lanes (default: 20)")
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="runs of each scenario; the median counts (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if min(args.positions, args.sessions, args.repeat) < 1:
        raise ConfigurationError("--positions, --sessions and --repeat must be at least 1")
    picture = bundled("test/images") / "shapes.jpg"
    amount = {"positions": args.positions, "sessions": args.sessions, "repeat": args.repeat}
    rows: list[Row] = []
    with _server.server_urls(args, pair_names(args.name or "sam2")) as urls:
        for url in urls:
            _options.say(args, f"{url or 'the default server'} ...")
            metrics_url = usual_metrics_url(parse_url(url))
            access = _options.access(args)
            rows += asyncio.run(stress(url, args.name, picture, access=access, metrics_url=metrics_url, **amount))
    if args.json:
        print(strict_json.dumps([row.as_dict() for row in rows]))
    else:
        _print(rows)
    return 1 if any(row.missed for row in rows) else 0


def _print(rows: Sequence[Row]) -> None:
    print(
        f"{'protocol':8} {'positions':26} {'asked':>6} {'sent':>5} {'cancelled':>9} {'computed':>8} {'in flight':>9} "
        f"{'final ms':>8} {'ratio':>6}"
    )
    for row in rows:
        computed = "-" if row.computed is None else row.computed
        print(
            f"{row.protocol:8} {row.scenario:26} {row.asked:6} {row.sent:5} {row.cancelled:9} {computed:>8} "
            f"{row.in_flight:9} {row.final_ms:8.0f} {row.ratio:6.2f}  {'; '.join(row.missed).upper()}"
        )
    print(
        "\nsent: requests sent to the server. computed: decodes, according to the server's own counter (-: none).\n"
        "final ms: time from the last position to its mask.\n"
        "ratio: final ms divided by the time of a lone prediction; for many lanes, the slowest divided by the median."
    )
