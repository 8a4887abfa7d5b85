"""Signals while a command writes results or cleans up."""

import signal
import threading

import pytest

from triton_sam._common.signals import ends_by_interrupt, signals_ignored


def test_a_second_interrupt_does_not_disturb_the_block():
    before = signal.getsignal(signal.SIGINT)
    with ends_by_interrupt() as interrupted:
        handler = signal.getsignal(signal.SIGINT)
        with signals_ignored():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert not interrupted.is_set()
        assert signal.getsignal(signal.SIGINT) is handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_change_no_handler():
    found = []

    def work() -> None:
        with signals_ignored():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
