"""The section of words: rows, and the reasons why nothing is measured."""

import contextlib
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("psutil")
from triton_sam._common.bundle import bundled
from triton_sam.benchmark import latency
from triton_sam.benchmark.results import Results
from triton_sam.benchmark.settings import BenchmarkSettings
from triton_sam.benchmark.timing import Progress
from triton_sam.families import get_family


class Client(contextlib.AbstractContextManager):
    """A search takes 2 ms, and 0.5 ms more for each word."""

    def __init__(self) -> None:
        self.searches = []

    def __exit__(self, *_) -> None:
        return

    def find(self, words, *, image, **parameters):
        self.searches.append((words, image, parameters))
        time.sleep(0.002 + 0.0005 * len(words))


class Reference:
    def __init__(self) -> None:
        self.searches = []

    def set_image(self, image) -> None:
        assert image.mode == "RGB"

    def find(self, words, *, threshold):
        self.searches.append((words, threshold))


def measured(*, family="sam3", finds=True, weights=None, session=True):
    client, results, seen = Client(), Results({}), iter(range(1000))
    target = SimpleNamespace(
        protocols=["http", "grpc"], pair=SimpleNamespace(family=get_family(family)), family=family, weights=weights,
        content=(bundled("test/images") / "coffee.jpg").read_bytes(), finds_concepts=lambda: finds,
        client=lambda protocol, place: client, unseen_content=lambda: next(seen),
    )  # fmt: skip
    settings = BenchmarkSettings(duration=0.01, sections=("words",), least_rounds=2)
    with Progress("words", 1, quiet=True) as progress:
        latency.measure_words(target, settings, results, session, progress)
    return results, client


def test_one_word_and_twenty_of_images_and_words_that_are_new():
    reference = Reference()
    weights = SimpleNamespace(concept_reference=lambda family: reference)
    results, client = measured(weights=weights)
    keys = {(row.what, row.who, row.protocol, row.size) for row in results.rows}
    assert {key for key in keys if key[1] == "session"} == {
        (what, "session", protocol, size)
        for what in ("no instance", "two instances a word")
        for protocol in ("http", "grpc")
        for size in (1, 20)
    }
    assert {key for key in keys if key[1] == "torch"} == {("no instance", "torch", None, size) for size in (1, 20)}
    assert all(row.ms.n == 2 for row in results.rows)  # and one round before them, which does not count
    words = [word for searched, *_ in (*client.searches, *reference.searches) for word in searched]
    assert len(set(words)) == len(words) == 3 * (2 * 2 + 1) * 21
    images = [image for _, image, _ in client.searches]
    assert len(set(images)) == len(images)


def test_nothing_is_measured_without_models_for_words():
    assert measured(family="sam2")[0].notes == []
    for options in ({"finds": False}, {"session": False}):
        results, client = measured(**options)
        assert (results.rows, client.searches) == ([], [])
        assert results.notes == ["No words were searched: set the models up with `triton-sam setup sam3 --concepts`."]
