"""Hypothesis strategies shared by several test files, and the hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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
