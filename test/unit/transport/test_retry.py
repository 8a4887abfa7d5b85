"""When a call is tried again, and what its error says."""

import time

import pytest
from tritonclient.utils import InferenceServerException
from urllib3.exceptions import NewConnectionError, ProtocolError

from triton_sam.errors import (
    InferenceError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from triton_sam.transport.failures import (
    MAX_PAUSE,
    PAUSE_FOR_DEAD_PROCESS,
    RESTART_SECONDS,
    RETRY_PAUSE,
    Attempts,
    ForeignAnswerError,
    map_error,
)
from triton_sam.transport.url import parse_url

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


def test_what_is_not_tried_again():
    for error in (InferenceError("refused"), ServerTimeoutError("late")):
        with pytest.raises(type(error)) as caught:
            Attempts(5).pause_after(error, error)
        assert caught.value is error
        assert caught.value.__cause__ is None
    with pytest.raises(KeyboardInterrupt):  # no error of ours
        Attempts(5).pause_after(KeyboardInterrupt(), None)
    assert Attempts(5).pause_after(GONE, GONE, seconds_left=RETRY_PAUSE + 0.01) <= RETRY_PAUSE
    with pytest.raises(ServerUnreachableError):  # there is no time for another attempt
        Attempts(5).pause_after(GONE, GONE, seconds_left=RETRY_PAUSE / 2)
    library = OSError("broken pipe")
    with pytest.raises(ServerUnreachableError) as caught:
        Attempts(0).pause_after(library, GONE)
    assert caught.value.__cause__ is library


def triton_says(message):
    error = InferenceServerException(message, status="StatusCode.UNAVAILABLE")
    return error, map_error(error, parse_url("grpc://host"), "sam2")


def over_http(error):
    return error, map_error(error, parse_url("http://host"), "sam2")


def not_connected(error):
    error.__cause__ = NewConnectionError(None, "as from connections of KServeClient")
    return over_http(error)


NOBODY_THERE = [
    not_connected(ConnectionRefusedError("refused")),
    not_connected(OSError("no route to host")),
    triton_says("failed to connect to all addresses; last error: UNKNOWN: Connection refused"),
    triton_says("Request for unknown model: 'sam2' has no available versions"),
    triton_says("Server is stopping, scheduler for model has stopped accepting new inference requests"),
]
MAY_HAVE_RUN = [
    over_http(ConnectionResetError("reset")),
    over_http(ProtocolError("the answer's headers end early")),
    triton_says("Stub process 'sam2_0_0' is not healthy."),
    triton_says("Socket closed"),
]


@pytest.mark.parametrize("failure", NOBODY_THERE)
def test_a_server_that_starts_again_is_waited_for(failure):
    attempts = Attempts(2, has_answered=True)
    for _ in range(20):
        attempts.pause_after(*failure)


@pytest.mark.parametrize("has_answered", [True, False])
def test_without_retries_a_server_that_starts_again_is_not_waited_for(has_answered):
    """Nor with retries, if it has never answered: its address may be wrong."""
    attempts = Attempts(0 if has_answered else 2, has_answered=has_answered)
    for _ in range(0 if has_answered else 2):
        attempts.pause_after(*NOBODY_THERE[0])
    with pytest.raises(ServerUnreachableError):
        attempts.pause_after(*NOBODY_THERE[0])


@pytest.mark.parametrize("failure", MAY_HAVE_RUN)
def test_a_request_that_may_have_killed_a_model_is_not_repeated_for_long(failure):
    """Refused connections between the repetitions do not count."""
    attempts = Attempts(2, has_answered=True)
    for _ in range(2):
        attempts.pause_after(*failure)
        for _ in range(5):
            attempts.pause_after(*NOBODY_THERE[0])
    with pytest.raises(ServerUnreachableError):
        attempts.pause_after(*failure)


def test_a_repetition_waits_until_a_dead_process_was_noticed():
    dead = triton_says("Stub process 'sam2_0_0' is not healthy.")
    attempts = Attempts(2, has_answered=True)
    first, second = attempts.pause_after(*dead), attempts.pause_after(*dead)
    assert PAUSE_FOR_DEAD_PROCESS / 2 <= first <= PAUSE_FOR_DEAD_PROCESS
    assert second >= 2 * PAUSE_FOR_DEAD_PROCESS
    assert Attempts(2).pause_after(*dead) <= RETRY_PAUSE


def test_patience_begins_with_the_first_failure_of_a_call_and_lasts_as_long_as_a_restart(monkeypatch):
    """A call may compute for a minute before its server starts again."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    attempts = Attempts(1, has_answered=True)
    now += 2 * RESTART_SECONDS
    for seconds in (0, RESTART_SECONDS / 2, RESTART_SECONDS / 2 - 0.1):
        now += seconds
        attempts.pause_after(*NOBODY_THERE[0])
    now += 0.2
    attempts.pause_after(*NOBODY_THERE[0])  # the one repetition that every client makes
    with pytest.raises(ServerUnreachableError):
        attempts.pause_after(*NOBODY_THERE[0])


def test_a_busy_server_is_waited_for_only_on_request():
    busy = ServerBusyError("http://h is busy: 24 requests wait")
    with pytest.raises(ServerBusyError):
        Attempts(5, has_answered=True).pause_after(busy, busy)
    attempts = Attempts(0, waits_if_busy=True)  # also without any retries
    pauses = [attempts.pause_after(busy, busy) for _ in range(20)]
    assert pauses[0] <= RETRY_PAUSE
    assert all(MAX_PAUSE / 2 <= pause <= MAX_PAUSE for pause in pauses[5:])
    with pytest.raises(ServerBusyError):
        attempts.pause_after(busy, busy, seconds_left=0.1)
    with pytest.raises(ServerUnreachableError):
        attempts.pause_after(GONE, GONE)  # other errors are those of a client that does not wait


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "refuses access: HTTP status 401"),
        (403, "refuses access: HTTP status 403"),
        (413, "takes no request of that size: HTTP status 413"),
        (502, "is not available: HTTP status 502"),
        (503, "is not available: HTTP status 503"),
        (504, "is not available: HTTP status 504"),
        (404, "does not answer like a Triton server (HTTP status 404)"),
        (405, "does not answer like a Triton server (HTTP status 405): give Triton's port"),
        (500, "does not answer like a Triton server (HTTP status 500)"),
        ("UNAUTHENTICATED", "refuses access: words of a proxy"),
        ("PERMISSION_DENIED", "refuses access: words of a proxy"),
        ("RESOURCE_EXHAUSTED", "takes no request of that size: words of a proxy"),
        ("CANCELLED", "is not available: words of a proxy"),
    ],
)
def test_a_refusal_of_a_proxy_is_told_by_its_status(status, words):
    foreign = isinstance(status, int)
    error = ForeignAnswerError(status) if foreign else InferenceServerException("words of a proxy", status)
    assert f"https://host:443 {words}" in str(map_error(error, parse_url("https://host"), "sam2"))
