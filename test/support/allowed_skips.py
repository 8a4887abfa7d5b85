"""Fails a run if a test is skipped for a reason that is not on a list (``pytest --only-allowed-skips``).

CI runs with this option, because a silently skipped test guards nothing. CI installs everything that it can install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

ALLOWED = {
    # Tests that are run manually, because they take long or need a program of another project.
    r"takes minutes: set TRITON_SAM_RAY=1": "Ray's cluster takes minutes, and its package is not in the test extra",
    r"takes an hour: set TRITON_SAM_SOAK=full": "an hour",
    r"could not import 'napari'": "its pytest plugins warn in all tests; nightly.yml has an environment for it",
    # The other case is tested.
    r"openvino is installed": "tests the error without it",
    r"s3fs is installed": "tests the error without it",
    r"says itself that something is left out": "a part of a document that is no whole program",
    # What the machine has.
    r"this nginx is older than 1\.27\.3": "distributions have an older one; the containers' tests use a newer one",
    r"this user may not mount file systems": "containers and hosted machines forbid it",
    r"without AVX2": "the processor",
    r"this PyAV has no ": "the codecs of FFmpeg's build",
    r"this machine has a GPU": "tests the messages without one",
}
"""Patterns of reasons, each with the reason why CI cannot or need not run the test."""


def forbidden_skips(stats: Mapping[str, list[Any]]) -> list[str]:
    """Return a line for each skipped test or file whose reason is not allowed.

    Args:
        stats: the reports of pytest's terminal reporter, by outcome.
    """
    return sorted(set(_forbidden(stats)))


def _forbidden(stats: Mapping[str, list[Any]]) -> Iterator[str]:
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(pattern, reason) for pattern in ALLOWED):
            test, _, _ = (report.nodeid or str(report.fspath)).partition("@")  # pytest-xdist appends the group
            yield f"{test}: {reason}"
