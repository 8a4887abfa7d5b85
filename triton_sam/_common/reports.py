"""Turns off the reports of its use that ONNX Runtime sends to its makers."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLE = "ORT_DISABLE_TELEMETRY"


def turn_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell ONNX Runtime to report nothing, unless the user has set the variable.

    By default, ONNX Runtime reports over the network (1.31 also on Linux). Call this before you import it.
    """
    environment.setdefault(VARIABLE, "1")
