"""Print the steps of an export and their durations to standard error, and hide the warnings of other libraries."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Iterator


class Progress:
    """Prints short lines to standard error."""

    def __init__(self, title: str, enabled: bool = True) -> None:
        self.title = title
        self.enabled = enabled

    def line(self, text: str) -> None:
        if self.enabled:
            print(f"{self.title}: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the name of a step at its start, and its duration in seconds at its end."""
        if not self.enabled:
            yield
            return
        start = time.monotonic()
        print(f"{self.title}: {text} ...", end="", file=sys.stderr, flush=True)
        ending = " failed"
        try:
            yield
            ending = f" {time.monotonic() - start:.1f} s"
        finally:
            print(ending, file=sys.stderr, flush=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and log lines of torch's ONNX exporter, which users cannot act on."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
