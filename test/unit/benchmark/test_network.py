"""The stages of `triton-sam benchmark`, without a Triton."""

import contextlib

import pytest

from triton_sam._common.bundle import bundled

pytest.importorskip("psutil")
from triton_sam.benchmark import stages
from triton_sam.benchmark.progress import Progress
from triton_sam.benchmark.results import Results
from triton_sam.benchmark.settings import BenchmarkSettings
from triton_sam.benchmark.target import Target

IMAGE = bundled("test/images") / "coffee.jpg"


def make_target(urls, family="sam2", **options):
    return Target(family, None, urls, IMAGE, **options)


class Client:
    """A client that answers at once."""

    image_embeddings = object()

    def encode(self, *_):
        """Stand in for this method of SAM2TritonClient, and for the others below."""

    set_image = predict = segment = encode


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_stages_are_recorded_by_protocol_also_over_tls(monkeypatch, protocol):
    target = make_target({protocol: f"{protocol}s://127.0.0.1:9"})
    monkeypatch.setattr(target, "client", lambda *_: contextlib.nullcontext(Client()))
    results = Results({})
    with Progress("latency", stages.steps(target), quiet=True) as progress:
        stages.measure_stages(target, BenchmarkSettings(0.01, ("latency",), least_rounds=1), results, True, progress)
    assert {row.protocol for row in results.rows} == {None, protocol}
    assert results.find("latency", "click", "session", protocol)
