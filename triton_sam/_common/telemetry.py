"""ONNX Runtime's reports to its makers, which this project turns off."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLE = "ORT_DISABLE_TELEMETRY"


def turn_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell ONNX Runtime to report nothing, unless the user has set the variable.

    Its packages report their use over the network by default (1.31 does on Linux, too). Call this before the import.
    """
    environment.setdefault(VARIABLE, "1")
