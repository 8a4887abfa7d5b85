"""Turns off ONNX Runtime's telemetry."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLE = "ORT_DISABLE_TELEMETRY"


def turn_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Turn off ONNX Runtime's telemetry, unless the user has set its environment variable.

    By default, ONNX Runtime sends reports over the network (1.31 also on Linux). Call this before importing it.
    """
    environment.setdefault(VARIABLE, "1")
