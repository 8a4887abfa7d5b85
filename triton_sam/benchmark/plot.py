"""Draw the plot of a run: the medians of the comparison or, without a comparison, of the stages.

A dotted line marks the time of ONNX Runtime in process, the lower limit of every server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._common.extras import missing
from .._common.files import atomic_path
from .results import COLORS, WHO, Results, Row, name_of

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing("the plot needs", "benchmark", error) from error

_HATCH = {"grpc": "///", "http": None, None: None}


def write_plot(results: Results, path: Path) -> bool:
    """Draw bars of medians with whiskers from min to max, with separate axes for each operation.

    Returns:
        False if the results have no medians to draw.
    """
    rows = [row for row in results.of("comparison") or results.of("latency") if row.ms]
    if not rows:
        return False
    groups = [[row for row in rows if row.what == what] for what in dict.fromkeys(row.what for row in rows)]
    figure = Figure(figsize=(9, 1.0 + 0.36 * len(rows) + 0.55 * len(groups)), dpi=130, layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[len(group) + 1.5 for group in groups])[:, 0]
    for group, ax in zip(groups, axes, strict=True):
        _bars(ax, sorted(group, key=lambda row: list(WHO).index(row.who)))
        limit = results.limit(group[0].what)
        if limit is not None:
            ax.axvline(limit.median, color=COLORS["inprocess"], linestyle=":", linewidth=1.4)
        ax.set_title(group[0].what, loc="left", fontsize=10)
    axes[-1].set_xlabel("ms: median, whiskers from min to max; dotted: the limit, in process")
    with atomic_path(path) as temporary:
        figure.savefig(temporary)
    return True


def _bars(ax: Any, rows: Sequence[Row]) -> None:
    for position, row in enumerate(rows):
        assert row.ms is not None  # noqa: S101 - chosen by the caller
        spread = [[row.ms.median - row.ms.min], [row.ms.max - row.ms.median]]
        ax.barh(
            position, row.ms.median, xerr=spread, color=COLORS[row.who], hatch=_HATCH[row.protocol],
            edgecolor="white", height=0.86, error_kw={"elinewidth": 1, "ecolor": "#222222"},
        )  # fmt: skip
        place = (row.ms.max, position)
        ax.annotate(f"{row.ms.median:.3g}", place, xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(range(len(rows)), [name_of(row.who, row.protocol) for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)
