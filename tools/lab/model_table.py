#!/usr/bin/env python3
"""Print sizes of models, and latencies of encoder and decoder on a local Triton (docs/background/speed.md).

Every size is exported with seeded random weights, which have the same file size and cost as official ones. Examples:

    python tools/lab/model_table.py sam1/vit_b sam2/tiny
    python tools/lab/model_table.py --keep exports --export-only     # other programs may run meanwhile
    python tools/lab/model_table.py --keep exports                   # no other program should run now
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_sam._common.bundle import bundled
from triton_sam.benchmark.results import Times
from triton_sam.benchmark.target import Target
from triton_sam.benchmark.timing import take_turns
from triton_sam.benchmark.weights import Weights, find_weights, make_weights
from triton_sam.commands._options import run_script
from triton_sam.download.catalogue import catalogue
from triton_sam.errors import ConfigurationError
from triton_sam.export import registry
from triton_sam.families import FAMILIES, get_family
from triton_sam.local_server import LocalServer

MEGA = 1_000_000
ENCODE_SECONDS, CLICK_SECONDS = 6.0, 3.0
"""After which no further round begins, once the least number of rounds is done."""
MAX_ENCODES, MAX_CLICKS = 9, 25
HEAD = (
    "family",
    "size",
    "parameters, millions",
    "checkpoint, MB",
    "ONNX pair, FP32, MB",
    "encode, ms",
    "click, ms",
)


@dataclass(frozen=True)
class Size:
    """A size of a family, for example sam1/vit_b."""

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family}/{self.name}"


@dataclass(frozen=True)
class Row:
    """The figures of a size.

    Args:
        checkpoint: bytes of the official checkpoint; None if it is not in a catalogue.
        click: predict() of one point, low-resolution logits, milliseconds.
    """

    size: Size
    parameters: int
    checkpoint: int | None
    onnx: int
    encode: Times
    click: Times


def official_sizes() -> list[Size]:
    """Return all official sizes, family by family, smallest first."""
    return [Size(name, size.name) for name, family in FAMILIES.items() for size in family.sizes if size.official]


def parse_size(text: str) -> Size:
    """Parse FAMILY/SIZE."""
    family, _, name = text.partition("/")
    if family not in FAMILIES or name not in {size.name for size in FAMILIES[family].sizes}:
        known = ", ".join(map(str, official_sizes()))
        raise ConfigurationError(f"there is no {text!r}: choose of {known}")
    return Size(family, name)


def prepare(size: Size, folder: Path, *, progress: bool) -> Weights:
    """Return a repository of one size with seeded random weights below ``folder``, exported once."""
    repository = folder / f"{size.family}_{size.name}"
    found = find_weights(size.family, repository, None) if repository.is_dir() else None
    return found or make_weights(size.family, f"random:{size.name}", repository, progress)


def measure(size: Size, weights: Weights, *, rounds: int) -> Row:
    """Serve a pair with its session model on a local Triton and measure it over gRPC.

    Args:
        rounds: minimum number of rounds, after one unmeasured round.
    """
    with LocalServer(weights.repository, models=[size.family]) as server:
        source = bundled("test/images") / "coffee.jpg"
        target = Target(size.family, None, {"grpc": server.grpc_url}, source, weights, server.pid)
        try:
            encode, click = _times(target, rounds)
        finally:
            target.close()
    return Row(
        size,
        registry.exporter(size.family).parameters(size.name),
        next((c.bytes for c in catalogue() if (c.family, c.size) == (size.family, size.name)), None),
        sum(file.stat().st_size for model in weights.files.values() for file in model.parent.iterdir()),
        encode,
        click,
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times(target: Target, rounds: int) -> tuple[Times, Times]:
    points = target.points()
    times: dict[str, list[float]] = {}
    with target.client("grpc", "server") as client:
        take_turns(
            {"encode": lambda: client.set_image(target.unseen_content())},
            times,
            ENCODE_SECONDS,
            min_rounds=rounds,
            max_rounds=MAX_ENCODES,
        )
        take_turns(
            {"click": lambda: client.predict([next(points)])},
            times,
            CLICK_SECONDS,
            min_rounds=rounds,
            max_rounds=MAX_CLICKS,
        )
    return Times.of(times["encode"]), Times.of(times["click"])


def _cells(row: Row) -> tuple[str, ...]:
    family = get_family(row.size.family)
    published = {checkpoint.size for checkpoint in family.checkpoints}
    unknown = "gated" if family.hub else "not known" if row.size.name in published else "none"
    checkpoint = f"{row.checkpoint / MEGA:.0f}" if row.checkpoint else unknown
    weights = f"{row.parameters / MEGA:.1f}", checkpoint, f"{row.onnx / MEGA:.0f}"
    return family.title or family.label, row.size.name, *weights, _shown(row.encode), _shown(row.click)


def _shown(times: Times) -> str:
    return f"{times.median:.0f} ({times.min:.0f} to {times.max:.0f}, n = {times.n})"


def main() -> int:
    """Parse the command line, export, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", metavar="FAMILY/SIZE", help="for example sam1/vit_b (default: all)")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="smallest number of measurements (default: 3)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of exports to use and to keep")
    parser.add_argument("--export-only", action="store_true", help="fill the folder of --keep without measuring")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the table and errors only")
    args = parser.parse_args()
    return run_script(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Measure each size. Without --keep, remove each export before the next, because exports are large."""
    if args.rounds < 1:
        raise ConfigurationError("--rounds must be at least 1")
    if args.export_only and args.keep is None:
        raise ConfigurationError("--export-only needs a folder: give --keep DIR")
    rows = []
    for size in [parse_size(text) for text in args.sizes] or official_sizes():
        with contextlib.ExitStack() as stack:
            folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_table_")))
            weights = prepare(size, folder, progress=not args.quiet)
            if not args.export_only:
                rows.append(measure(size, weights, rounds=args.rounds))
                if not args.quiet:  # a run over all sizes is long and may be interrupted
                    print(table(rows[-1:]), file=sys.stderr)
    if rows:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
