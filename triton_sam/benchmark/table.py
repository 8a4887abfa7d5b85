"""The table of the results, and the names and colours of contenders."""

from __future__ import annotations

from .._common.columns import aligned
from .results import Results, Row

COUNTED = ("speculative", "load")
"""Sections whose rows show further metrics."""
WHO = {  # in the order of the plots
    "inprocess": "ONNX Runtime in process (the limit)",
    "openvino": "in process, encoder in bf16 on OpenVINO",
    "session": "session model",
    "request": "embeddings in the request",
    "naive": "naive client: embeddings in each click",
    "torch": "official predictor, PyTorch eager",
    "torch-bf16": "official predictor, PyTorch eager, bf16",
    "client": "on the client's side",
}
COLORS = {
    "inprocess": "#4c4c4c",
    "openvino": "#56b4e9",
    "session": "#0072b2",
    "request": "#d55e00",
    "naive": "#d55e00",
    "torch": "#cc79a7",
    "torch-bf16": "#e69f00",
    "client": "#999999",
}
"""Colours that are distinguishable with colour vision deficiency."""


def name_of(who: str, protocol: str | None) -> str:
    """Return the name of a contender and its protocol for reports."""
    return WHO[who] + (f", {protocol_name(protocol)}" if protocol else "")


def protocol_name(protocol: str | None) -> str:
    """Return the usual spelling of a protocol: HTTP, gRPC, or "" for None."""
    return {"http": "HTTP", "grpc": "gRPC"}.get(protocol or "", "")


def table(results: Results) -> str:
    """Return the results as plain text: one line per row, then the notes."""
    head = ("section", "what", "who", "median ms", "min", "max", "p95", "per s", "n", "x limit")
    rows = []
    for row in results.rows:
        who = row.who + (f" {row.protocol}" if row.protocol else "") + (f" x{row.size}" if row.size else "")
        times = (
            [f"{value:.1f}" for value in (row.ms.median, row.ms.min, row.ms.max, row.ms.p95)] if row.ms else [""] * 4
        )
        rate = "" if row.per_second is None else f"{row.per_second:.2f}"
        rows.append([row.section, row.what, who, *times, rate, str(row.ms.n) if row.ms else "", _ratio(results, row)])
    lines = [aligned(head, rows, right=range(3, len(head)))]
    for row in results.rows:
        if row.section in COUNTED:
            counts = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.more.items())
            lines.append(f"{row.what}, {row.protocol}: {', '.join(counts)}")
    if not results.complete:
        lines.append("This run was stopped before its end.")
    return "\n".join([*lines, *results.notes])


def _ratio(results: Results, row: Row) -> str:
    """Return the time of a contender as a multiple of the time in process."""
    limit = results.find(row.section, row.what, "inprocess") if row.section == "comparison" else None
    return f"{row.ms.median / limit.ms.median:.2f}" if row.ms and limit and limit.ms else ""
