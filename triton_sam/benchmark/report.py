"""Write the report of a run: Markdown and one HTML page, with plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .._common import strict_json
from .._common.columns import aligned
from .._common.files import atomic_write
from .document import Block, Document, Heading, Illustration, Table
from .result_file import to_csv, to_json
from .results import NOT_RECOVERED, RECOVERED, Results, Row
from .settings import OVER_LINK
from .stages import STAGES
from .thresholds import Threshold, judge
from .words import name_of, number, protocol_name

PLOT_TITLES = {
    "latency": "Latency of each stage",
    "comparison": "The session model and its alternatives",
    "throughput": "Throughput against users",
    "boxes": "Time for each mask against objects of one call",
}


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write result.json, result.csv, the plots, report.md and report.html.

    Args:
        results: the results of a run.
        folder: the folder to write to; created where it is missing.

    Returns:
        The paths of the written files.

    Raises:
        MissingDependencyError: matplotlib is missing. The JSON and CSV files are written nevertheless.
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / "result.json": strict_json.dumps(to_json(results), indent=1) + "\n",
        folder / "result.csv": to_csv(results),
    }
    for path, text in files.items():
        atomic_write(path, text.encode())
    from .plots import write_plots  # after the results are written, which are worth more than the plots

    plots = write_plots(results, folder)
    document = make_document(results, {name: paths[1] for name, paths in plots.items()})
    for path, text in {
        folder / "report.md": document.to_markdown(),
        folder / "report.html": document.to_html(),
    }.items():
        atomic_write(path, text.encode())
        files[path] = text
    return [*files, *(path for paths in plots.values() for path in paths)]


def make_document(results: Results, plots: dict[str, Path]) -> Document:
    """Return the report. ``plots`` maps the name of a plot to its file."""
    document = Document([Heading(_title(results), 1), *_introduction(results)])
    sections: list[tuple[str, str, str | None, Callable[[Results], Iterator[Block]]]] = [
        ("comparison", "Comparison", "comparison", _comparison),
        ("latency", "Latency of each stage", "latency", _latency),
        ("throughput", "Throughput", "throughput", _throughput),
        ("speculative", "A moving mouse", None, _speculative),
        ("load", "Load", None, _load),
        ("overload", "Overload", None, _overload),
        ("words", "Words", None, _words),
    ]
    thresholds = judge(results)
    if thresholds:
        document.add(Heading("Thresholds"), _thresholds_table(thresholds))
    for section, title, plot, write in sections:
        if not results.of(section):
            continue
        document.add(Heading(title))
        if plot in plots:
            document.add(Illustration(plots[plot], PLOT_TITLES[plot]))
        document.add(*write(results))
        if section == "throughput" and "boxes" in plots:
            document.add(Illustration(plots["boxes"], PLOT_TITLES["boxes"]))
    if results.notes:
        document.add(Heading("Left out"), *results.notes)
    document.add(Heading("Machine"), _machine(results))
    return document


def summary(results: Results) -> str:
    """Return the medians and the thresholds as plain text for a terminal."""
    head = ("", "median ms", "min", "max", "p95", "per s", "n")
    rows = []
    for row in results.rows:
        who = row.who + (f" {row.protocol}" if row.protocol else "") + (f" x{row.size}" if row.size else "")
        name = f"{row.section:11} {row.what[:32]:32} {who}"
        times = (
            [f"{value:.1f}" for value in (row.ms.median, row.ms.min, row.ms.max, row.ms.p95)] if row.ms else [""] * 4
        )
        rate = "" if row.per_second is None else f"{row.per_second:.2f}"
        rows.append([name, *times, rate, str(row.ms.n) if row.ms else ""])
    lines = [aligned(head, rows, right=range(1, len(head)))]
    thresholds = judge(results)
    if thresholds:
        lines.append("")
    lines += [
        f"{_verdict(threshold):6} {threshold.name}: {_value(threshold)} (limit {_limit(threshold)})"
        for threshold in thresholds
    ]
    return "\n".join([*lines, *([""] if results.notes else []), *results.notes])


def _title(results: Results) -> str:
    model = results.about["model"]
    return f"Benchmark of {model['name'] or model['family']}: {model['weights']}"


def _introduction(results: Results) -> list[Block]:
    about, model = results.about, results.about["model"]
    image, machine = model["picture"], about["machine"]
    where = "a local Triton with the Python-based backend" if model["local"] else f"Triton at {model['server']}"
    text = (
        f"Measured on {about['created'][:16].replace('T', ' ')} against {where} ({model['server_version']}), "
        f"precision {model['precision']}, on {machine['usable_threads']} threads of {machine['cpu']}"
        f"{' and ' + ', '.join(machine['gpus']) if machine['gpus'] else ', no GPU'}; load average "
        f"{machine['load_before']} before the run. The image has {image['width']} x {image['height']} pixels and "
        f"{image['bytes'] / 1000:.0f} kB."
    )
    method = (
        "Times are medians, with the smallest and the largest value. The contenders took turns, round by round, so "
        "that other work on the machine slowed all of them alike. A click is one point that is answered with "
        "low-resolution logits, unless its row says full-size mask."
    )
    blocks: list[Block] = [text, f"`{about['command']}`", method]
    if not results.complete:
        blocks.append("**This run was stopped before its end. The report shows the measurements up to then.**")
    return blocks


def _thresholds_table(thresholds: Sequence[Threshold]) -> Table:
    rows = [[threshold.name, _value(threshold), _limit(threshold), _verdict(threshold)] for threshold in thresholds]
    return Table(["", "found", "limit", ""], rows)


def _value(threshold: Threshold) -> str:
    return f"{threshold.value:.1f} ms" if threshold.unit == "ms" else f"{threshold.value:.2f} x"


def _limit(threshold: Threshold) -> str:
    return f"{'>=' if threshold.at_least else '<='} {threshold.limit:.1f} ms" if threshold.unit == "ms" else (
        f"{'>=' if threshold.at_least else '<='} {threshold.limit:.2f} x"
    )  # fmt: skip


def _verdict(threshold: Threshold) -> str:
    return "ok" if threshold.ok else "missed"


def _times(row: Row) -> list[str]:
    assert row.ms is not None  # noqa: S101 - all rows of these tables have times
    return [number(row.ms.median), f"{number(row.ms.min)} - {number(row.ms.max)}", str(row.ms.n)]


def _comparison(results: Results) -> Iterator[Block]:
    for operation in dict.fromkeys(row.what for row in results.of("comparison")):
        rows = sorted(results.of("comparison", operation), key=lambda row: row.ms.median if row.ms else 0)
        limit = results.find("comparison", operation, "inprocess")
        ratios = [f"{row.ms.median / limit.ms.median:.2f}" if row.ms and limit and limit.ms else "" for row in rows]
        yield Table(
            [operation, "median ms", "min - max", "n", "x limit"],
            [[name_of(row.who, row.protocol), *_times(row), ratio] for row, ratio in zip(rows, ratios, strict=True)],
        )
    yield from _link(results)


def _link(results: Results) -> Iterator[Block]:
    if results.of("comparison", OVER_LINK):
        rate, delay = results.about["settings"]["link"].split(",")
        yield (
            f"The link is emulated: a relay on this machine, in a process of its own, limits each direction to "
            f"{rate[:-4]} {rate[-4].upper()}{rate[-3:]}/s and delays it by {delay[:-2]} ms. Like the client, the relay "
            "takes processor time from the server."
        )


def _latency(results: Results) -> Iterator[Block]:
    rows = sorted(results.of("latency"), key=lambda row: STAGES.index(row.what))
    yield Table(
        ["stage", "contender", "median ms", "min - max", "n"],
        [[row.what, name_of(row.who, row.protocol), *_times(row)] for row in rows],
    )
    yield (
        "Upload sends an image that the session model knows already, so it includes everything but the encoding. "
        "Encode begins with the bytes of the image file and ends when the image is ready for clicks. With embeddings "
        "in the request, it includes their way back to the client."
    )


def _throughput(results: Results) -> Iterator[Block]:
    rows = [row for row in results.of("throughput") if row.what in ("clicks", "images")]
    if rows:
        yield Table(
            ["", "users", "per second", "median ms", "p95 ms", "fewest - most calls of a user", "errors"],
            [
                [
                    f"{row.what}, {protocol_name(row.protocol)}",
                    str(row.size),
                    number(row.per_second or 0),
                    number(row.ms.median),
                    number(row.ms.p95),
                    f"{row.more['least_calls_of_a_user']:.0f} - {row.more['most_calls_of_a_user']:.0f}",
                    f"{row.more['errors']:.0f}",
                ]
                for row in rows
                if row.ms
            ],
        )
    boxes = [row for row in results.of("throughput") if row.what.startswith("boxes")]
    if boxes:
        yield Table(
            ["objects", "method", "ms for each mask", "median ms", "min - max", "n"],
            [
                [str(row.size), row.what.partition(", ")[2], number(row.more["ms_per_mask"]), *_times(row)]
                for row in boxes
            ],
        )


def _speculative(results: Results) -> Iterator[Block]:
    rows = results.of("speculative")
    names = ("asked", "sent", "cancelled", "computed")
    yield Table(
        ["positions of the mouse", "protocol", *names, "last mask, ms", "x a lone click"],
        [
            [
                row.what,
                protocol_name(row.protocol),
                *(f"{row.more[name]:.0f}" if name in row.more else "-" for name in names),
                number(row.ms.median) if row.ms else "-",
                f"{row.more['ratio_to_a_lone_click']:.2f}" if row.ms else "-",
            ]
            for row in rows
        ],
    )
    yield (
        "Computed is the number of decodes by the server's own counter. The time of the last mask begins when the "
        "mouse stops. With many sessions it is that of the slowest session, and the ratio is to the median session."
    )


def _load(results: Results) -> Iterator[Block]:
    for row in results.of("load"):
        assert row.ms is not None  # noqa: S101 - rows of this section have times
        lines = [
            ["clicks a second", number(row.per_second or 0)],
            ["p50 / p95 / p99, ms", " / ".join(number(v) for v in (row.ms.median, row.ms.p95, row.ms.p99))],
            ["clicks", str(row.ms.n)],
        ]
        lines += [[name.replace("_", " "), number(value)] for name, value in row.more.items()]
        yield Table([f"{row.size} users, {row.what}, {protocol_name(row.protocol)}", ""], lines)
        yield (
            "Queue and compute times are means: of the decoder from Triton's statistics, of the session model from its "
            "own metrics. The compute time of the session model includes the whole time of the decoder, unless the "
            "session model runs the decoder itself. 100 % of server CPU is one thread of the processor. "
            "Memory is the largest sum of the private memory of the server's processes."
        )


def _overload(results: Results) -> Iterator[Block]:
    lines = [
        [row.what, str(row.size), str(row.ms.n), number(row.ms.median), number(row.ms.p95), number(row.ms.max)]
        for row in results.of("overload")
        if row.ms is not None
    ]
    yield Table(["", "users", "clicks", "p50, ms", "p95, ms", "longest, ms"], lines)
    for row in results.of("overload", "after"):
        if RECOVERED in row.more:
            yield f"Clicks were as fast as before {number(row.more[RECOVERED])} s after the load ended."
        else:
            seconds = number(row.more[NOT_RECOVERED])
            yield f"**Clicks were not as fast as before within {seconds} s after the load ended.**"


def _words(results: Results) -> Iterator[Block]:
    lines = []
    for row in results.of("words"):
        one = results.find("words", row.what, row.who, row.protocol, 1)
        if row.ms and one and one.ms:
            ratio = f"{row.ms.median / one.ms.median:.2f}"
            lines.append([row.what, name_of(row.who, row.protocol), str(row.size), *_times(row), ratio])
    yield Table(["", "", "words", "median, ms", "min - max", "n", "x one word"], lines)
    yield "Each search has an image and words that are new to the server, so its time contains the encode."


def _machine(results: Results) -> Table:
    machine = results.about["machine"]
    lines = [
        ["processor", f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"],
        ["usable threads", str(machine["usable_threads"])],
        ["memory", f"{machine['memory_gb']} GB"],
        ["GPU", ", ".join(machine["gpus"]) or "none"],
        ["system", f"{machine['system']}, Python {machine['python']}"],
        ["packages", ", ".join(f"{name} {version}" for name, version in machine["packages"].items())],
        ["triton_sam", results.about["kit"]],
    ]
    return Table(["machine", ""], lines)
