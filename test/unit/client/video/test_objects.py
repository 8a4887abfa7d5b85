"""Sets of frames as runs."""

from hypothesis import given
from hypothesis import strategies as st

from triton_sam.client.video.objects import FrameRanges


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12))))
def test_runs_are_a_set(changes):
    ranges, expected = FrameRanges(), set()
    for adds, index in changes:
        (ranges.add if adds else ranges.discard)(index)
        (expected.add if adds else expected.discard)(index)
    assert {index for index in range(13) if index in ranges} == expected
    assert len(ranges._ranges) == len([index for index in expected if index - 1 not in expected])
