"""Measurements of maintainers, without a Triton."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("psutil")
pytest.importorskip("onnxruntime")
from tools.lab import overload
from triton_sam.benchmark.results import Results
from triton_sam.benchmark.timing import Crowd

pytestmark = pytest.mark.nightly


class Users:
    """Users whose single clicks take the given milliseconds."""

    def __init__(self, alone):
        self.alone = iter(alone)

    def click(self, user, number):
        """Never called, because crowds are made up."""

    def click_alone(self):
        return next(self.alone)


@pytest.mark.parametrize(("timeout", "key"), [(60.0, "recovered_s"), (0.0, "not_recovered_s")])
def test_an_overload_tells_whether_the_server_recovered(monkeypatch, timeout, key):
    crowds = iter([Crowd([[1.0]], 1.0), Crowd([[2.0], []], 1.0, refused_ms=[1.0])])
    alone = [1.0] * 10 + [9.0] + ([1.5] * 3 if timeout else [9.0] * 100)
    monkeypatch.setattr(overload, "RECOVERY_TIMEOUT", timeout)
    monkeypatch.setattr(overload, "crowd", lambda *_: next(crowds))
    monkeypatch.setattr(overload, "_users", lambda *_: contextlib.nullcontext(Users(alone)))
    monkeypatch.setattr(overload, "max_pending_clicks", lambda *_: 2)
    results = Results({})
    overload.measure_overload(SimpleNamespace(protocols=["http"], pid=None), results, True, 64, 1.0)
    assert [row.what for row in results.rows] == ["before", "half load", "accepted", "refused", "after"]
    assert key in results.rows[-1].more
