"""Names, colours and number formats of a report."""

from __future__ import annotations

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
"""Colours that people with colour vision deficiency can tell apart."""


def name_of(who: str, protocol: str | None) -> str:
    """Return the name of a contender and its protocol, as a report shows it."""
    return WHO[who] + (f", {protocol_name(protocol)}" if protocol else "")


def protocol_name(protocol: str | None) -> str:
    """Return the usual spelling of a protocol: HTTP, gRPC, or an empty string for None."""
    return {"http": "HTTP", "grpc": "gRPC"}.get(protocol or "", "")


def number(value: float) -> str:
    """Format a number with at least three significant digits and without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
