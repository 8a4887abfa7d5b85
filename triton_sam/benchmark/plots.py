"""Draw the plots of a report.

They show latency by stage, the comparison, throughput against users, and boxes in one call. A dotted line marks the
time of ONNX Runtime in process, which is the lower limit of every server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._common.extras import missing
from .._common.files import atomic_path
from .results import Results, Row
from .stages import STAGES
from .words import COLORS, WHO, name_of, number, protocol_name

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing("the plots need", "benchmark", error) from error

FORMATS = ("png", "svg")
_HATCH = {"grpc": "///", "http": None, None: None}
_STYLE = {"grpc": "--", "http": "-", None: "-"}
_GAP = 0.6


def write_plots(results: Results, folder: Path) -> dict[str, list[Path]]:
    """Write every plot for which the results have measurements.

    Args:
        results: the results of a run.
        folder: the folder to write to.

    Returns:
        The PNG and the SVG file of each plot, by its name: latency, comparison, throughput, boxes.

    Raises:
        OSError: a file cannot be written.
    """
    drawn: dict[str, Callable[[Results], Figure | None]] = {
        "latency": draw_latency,
        "comparison": draw_comparison,
        "throughput": draw_throughput,
        "boxes": draw_boxes,
    }
    written = {}
    for name, draw in drawn.items():
        figure = draw(results)
        if figure is not None:
            written[name] = [_save(figure, folder / f"{name}.{ending}") for ending in FORMATS]
    return written


def limit_of(results: Results) -> float | None:
    """Return the median time of a click in process, in milliseconds; None when it was not measured."""
    row = results.find("comparison", "click", "inprocess")
    return row.ms.median if row and row.ms else None


def draw_latency(results: Results) -> Figure | None:
    """Draw bars of medians with whiskers from min to max, grouped by stage. Clicks have axes of their own."""
    rows = [row for row in results.of("latency") if row.ms]
    if not rows:
        return None
    parts = [[row for row in rows if row.what in names] for names in (STAGES[:4], STAGES[4:])]
    parts = [part for part in parts if part]
    figure = Figure(figsize=(9, 1.1 + 0.34 * len(rows) + 0.5 * len(parts)), dpi=130, layout="constrained")
    axes = figure.subplots(len(parts), 1, squeeze=False, height_ratios=[len(part) + 2 for part in parts])[:, 0]
    for part, ax in zip(parts, axes, strict=True):
        _bars(ax, sorted(part, key=lambda row: STAGES.index(row.what)), lambda row: row.what)
        limit = limit_of(results)
        if part[0].what in STAGES[4:] and limit is not None:
            _limit(ax, limit, vertical=True)
        ax.set_xlabel("ms: median, whiskers from min to max")
    _legend(figure, rows)
    return figure


def draw_comparison(results: Results) -> Figure | None:
    """Draw bars of medians, with separate axes for each operation."""
    rows = [row for row in results.of("comparison") if row.ms]
    operations = list(dict.fromkeys(row.what for row in rows))
    if not rows:
        return None
    figure = Figure(figsize=(9, 1.0 + 0.36 * len(rows) + 0.55 * len(operations)), dpi=130, layout="constrained")
    groups = [[row for row in rows if row.what == operation] for operation in operations]
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[len(group) + 1.5 for group in groups])[:, 0]
    for operation, group, ax in zip(operations, groups, axes, strict=True):
        order = list(WHO)
        _bars(ax, sorted(group, key=lambda row: order.index(row.who)), lambda row: name_of(row.who, row.protocol))
        limit = results.find("comparison", operation, "inprocess")
        if limit is not None and limit.ms is not None:
            ax.axvline(limit.ms.median, color=COLORS["inprocess"], linestyle=":", linewidth=1.4)
        ax.set_title(operation, loc="left", fontsize=10)
    axes[-1].set_xlabel("ms: median, whiskers from min to max; dotted: the limit, in process")
    return figure


def draw_throughput(results: Results) -> Figure | None:
    """Draw clicks and images per second, and the median and 95th percentile of a click, against the number of users."""
    rows = [row for row in results.of("throughput") if row.what in ("clicks", "images") and row.ms]
    if not rows:
        return None
    figure = Figure(figsize=(9.6, 3.9), dpi=130, layout="constrained")
    axes = figure.subplots(1, 3)
    titles = ("clicks per second", "images per second", "click: median and p95, ms")
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("concurrent users")
        ax.grid(alpha=0.25)
    for what, protocol in dict.fromkeys((row.what, row.protocol) for row in rows):
        line = [row for row in rows if (row.what, row.protocol) == (what, protocol)]
        users, style = [row.size or 1 for row in line], _STYLE[protocol]
        axes[int(what == "images")].plot(
            users, [row.per_second for row in line], f"o{style}", color=COLORS[line[0].who],
            label=protocol_name(protocol),
        )  # fmt: skip
        if what == "clicks":
            times = [row.ms for row in line if row.ms]
            axes[2].plot(users, [t.median for t in times], f"o{style}", color=COLORS[line[0].who], markersize=4)
            axes[2].plot(users, [t.p95 for t in times], f"^{style}", color=COLORS["request"], markersize=4)
    limit = limit_of(results)
    if limit is not None:
        _limit(axes[0], 1000 / limit, vertical=False)
    for ax in axes:
        ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
        ax.set_xscale("log", base=2)
        ticks = sorted({row.size or 1 for row in rows})
        ax.set_xticks(ticks, [str(tick) for tick in ticks])
    axes[0].legend(fontsize=8)
    axes[2].legend(["median", "p95"], fontsize=8)
    return figure


def draw_boxes(results: Results) -> Figure | None:
    """Draw the milliseconds for each mask against the number of objects in one call."""
    figure = Figure(figsize=(5.4, 3.6), dpi=130, layout="constrained")
    ax, drawn = figure.add_subplot(), False
    for what, color in (("boxes, one call", COLORS["session"]), ("boxes, a call each", COLORS["request"])):
        rows = sorted(results.of("throughput", what), key=lambda row: row.size or 0)
        counts = [row.size or 0 for row in rows]
        if rows:
            drawn = True
            ax.plot(counts, [row.more["ms_per_mask"] for row in rows], "o-", color=color, label=what)
            ax.set_xscale("log", base=2)
            ax.set_xticks(counts, [str(count) for count in counts])
    limit = limit_of(results)
    if not drawn:
        return None
    if limit is not None:
        _limit(ax, limit, vertical=False)
    ax.set(xlabel="objects", ylabel="ms for each mask")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8)
    return figure


def _bars(ax: Any, rows: Sequence[Row], label: Callable[[Row], str]) -> None:
    """Draw horizontal bars from top to bottom. Bars with the same label form a group that has one label."""
    position, last, ticks = 0.0, None, {}
    for row in rows:
        text = label(row)
        position += 1 if last in (None, text) else 1 + (_GAP if label(row) == row.what else 0)
        if text != last:
            ticks[position] = text
        last = text
        assert row.ms is not None  # noqa: S101 - chosen by the caller
        spread = [[row.ms.median - row.ms.min], [row.ms.max - row.ms.median]]
        ax.barh(
            position, row.ms.median, xerr=spread, color=COLORS[row.who], hatch=_HATCH[row.protocol],
            edgecolor="white", height=0.86, error_kw={"elinewidth": 1, "ecolor": "#222222"},
        )  # fmt: skip
        ax.annotate(
            number(row.ms.median), (row.ms.max, position), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=8,
        )  # fmt: skip
    ax.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)


def _limit(ax: Any, value: float, *, vertical: bool) -> None:
    draw = ax.axvline if vertical else ax.axhline
    draw(value, color=COLORS["inprocess"], linestyle=":", linewidth=1.4, label="limit: in process")


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=COLORS[who], label=WHO[who]) for who in WHO if any(row.who == who for row in rows)]
    if any(row.protocol == "grpc" for row in rows):
        handles.append(Patch(facecolor="#bbbbbb", edgecolor="white", hatch=_HATCH["grpc"], label="hatched: gRPC"))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)


def _save(figure: Figure, path: Path) -> Path:
    # SVG text stays text, so that files are small and searchable. With a fixed salt, equal plots give equal files.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "triton_sam"}
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with mpl.rc_context(settings), atomic_path(path) as temporary:
        figure.savefig(temporary, metadata=metadata)
    return path
