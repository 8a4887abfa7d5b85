"""What hypothesis draws for several test files, and the profile in which it does."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# No deadline: the machine that runs the tests may be busy. The same examples in every run: a failure is then one of the
# change at hand. HYPOTHESIS_PROFILE=random looks further.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda items: st.lists(items, max_size=5) | st.dictionaries(st.text(max_size=3), items, max_size=3),
    max_leaves=12,
)
