"""The words and the order in which a report speaks of what was measured."""

from __future__ import annotations

WHO = {
    "inprocess": "ONNX Runtime in process (the limit)",
    "session": "session model",
    "shared_memory": "embeddings in shared memory",
    "request": "embeddings in the request",
    "naive": "naive client: embeddings in each click",
    "torch": "official predictor, PyTorch eager",
    "client": "on the client's side",
}
COLORS = {
    "inprocess": "#4c4c4c",
    "session": "#0072b2",
    "shared_memory": "#009e73",
    "request": "#d55e00",
    "naive": "#d55e00",
    "torch": "#cc79a7",
    "client": "#999999",
}
"""Told apart also by people who do not see red and green as different."""


def name_of(who: str, protocol: str | None) -> str:
    """Return who did something, for people."""
    return WHO[who] + (f", {protocol_name(protocol)}" if protocol else "")


def protocol_name(protocol: str | None) -> str:
    """Return a protocol as it is written."""
    return {"http": "HTTP", "grpc": "gRPC"}.get(protocol or "", "")


def number(value: float) -> str:
    """Return a figure with three digits that count, never in powers of ten."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
