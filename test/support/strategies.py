"""Hypothesis strategies shared by several test files, and the hypothesis profiles."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from .fuzzing import image_file

# Without a deadline, because the test machine may be busy. The profile "steady" uses the same examples in every run, so
# that a failure is caused by the latest change. HYPOTHESIS_PROFILE=random tries other examples.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Any combination of the types of JSON.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda items: st.lists(items, max_size=5) | st.dictionaries(st.text(max_size=3), items, max_size=3),
    max_leaves=12,
)

_FILES = [image_file(form) for form in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "TGA", "ICO", "PCX")]


@st.composite
def _damaged(draw: Any) -> bytes:
    """An image with some bytes changed, some left out, and something behind it."""
    content = bytearray(draw(st.sampled_from(_FILES)))
    for _ in range(draw(st.integers(0, 6))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    start = draw(st.integers(0, len(content) - 1))
    del content[start : start + draw(st.sampled_from([0, 0, 1, 7, 100, 10_000]))]
    return bytes(content) + draw(st.binary(max_size=8))


damaged_images = _damaged()
