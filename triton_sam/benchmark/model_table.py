"""The table of models: what each size weighs, and how long its encoder and decoder take through a local Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .._common.bundle import bundled
from ..download.catalogue import catalogue
from ..errors import ConfigurationError
from ..export import registry
from ..families import FAMILIES, get_family
from ..local_server import LocalServer
from .results import Times
from .target import Target
from .timing import take_turns
from .weights import Weights, find_weights, make_weights

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
    """What is known of a size.

    Args:
        size: which.
        parameters: of the official model.
        checkpoint: bytes of the official checkpoint; None: it is in no catalogue.
        onnx: bytes of encoder and decoder with their external data.
        encode: set_image() of a picture that the server has not seen, by file, milliseconds.
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
    """Read FAMILY/SIZE.

    Raises:
        ConfigurationError: there is no such size.
    """
    family, _, name = text.partition("/")
    if family not in FAMILIES or name not in {size.name for size in FAMILIES[family].sizes}:
        known = ", ".join(map(str, official_sizes()))
        raise ConfigurationError(f"there is no {text!r}: choose of {known}")
    return Size(family, name)


def prepare(size: Size, folder: Path, *, progress: bool) -> Weights:
    """Return a repository of one size with seeded random weights, below ``folder``; exported when it is not there yet.

    Raises:
        SamError: see export.registry.export().
    """
    repository = folder / f"{size.family}_{size.name}"
    found = find_weights(size.family, repository, None) if repository.is_dir() else None
    return found or make_weights(size.family, f"random:{size.name}", repository, progress)


def measure(size: Size, weights: Weights, *, rounds: int) -> Row:
    """Serve a pair with its session model on a local Triton and ask it over gRPC.

    Args:
        size: which.
        weights: from prepare().
        rounds: how often at least, after one unmeasured round.

    Raises:
        LocalServerError: it did not start.
        ServerError: see triton_sam.errors.
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
