"""When a call is tried again."""

import pytest

from triton_sam.errors import InferenceError, ServerTimeoutError, ServerUnreachableError
from triton_sam.transport.retry import RETRY_PAUSE, Attempts

GONE = ServerUnreachableError("gone")


def test_pauses_double_and_differ():
    attempts = [Attempts(3) for _ in range(20)]
    for number in range(3):
        pauses = [each.pause_after(GONE, GONE) for each in attempts]
        longest = RETRY_PAUSE * 2**number
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
    for each in attempts:
        with pytest.raises(ServerUnreachableError):
            each.pause_after(GONE, GONE)


@pytest.mark.parametrize("error", [InferenceError("refused"), ServerTimeoutError("late")])
def test_a_refusal_and_a_timeout_are_final(error):
    with pytest.raises(type(error)) as caught:
        Attempts(5).pause_after(error, error)
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_there_is_no_attempt_without_time_for_it():
    assert Attempts(5).pause_after(GONE, GONE, seconds_left=RETRY_PAUSE + 0.01) <= RETRY_PAUSE
    with pytest.raises(ServerUnreachableError):
        Attempts(5).pause_after(GONE, GONE, seconds_left=RETRY_PAUSE / 2)


def test_an_error_of_a_library_is_the_cause_of_ours():
    library = OSError("broken pipe")
    with pytest.raises(ServerUnreachableError) as caught:
        Attempts(0).pause_after(library, GONE)
    assert caught.value.__cause__ is library


def test_what_is_no_error_of_ours_is_passed_on():
    with pytest.raises(KeyboardInterrupt):
        Attempts(5).pause_after(KeyboardInterrupt(), None)
