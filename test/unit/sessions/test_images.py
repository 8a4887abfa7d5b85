"""The images that a session model keeps: how many it encodes at a time, each once for all who ask."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.conditions import PATIENCE, wait_until
from support.fuzzing import EmptyModels, text
from support.session_requests import colored

from triton_sam import ImageError
from triton_sam.errors import ConfigurationError, InferenceError
from triton_sam.families import get_family
from triton_sam.families.concepts import CONCEPT_ENCODER
from triton_sam.sessions.concepts import Concepts
from triton_sam.sessions.image.session import SessionModel
from triton_sam.sessions.images import PARALLEL_ENCODES, ImageStore
from triton_sam.sessions.messages import Reply
from triton_sam.wire.pair import ModelPair

SESSIONS = PARALLEL_ENCODES + 3


class SlowEncoder(EmptyModels):
    """Networks whose encoder answers when the test opens its gate."""

    objects_at_a_time = 64

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.lock = threading.Lock()
        self.encoding = self.most = self.encoded = 0

    def encode(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        with self.lock:
            self.encoding += 1
            self.most = max(self.most, self.encoding)
        assert self.gate.wait(60)
        with self.lock:
            self.encoding -= 1
            self.encoded += 1
        return super().encode(inputs)


class BrokenEncoder(EmptyModels):
    """Networks whose encoder fails."""

    objects_at_a_time = 64

    def encode(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        raise InferenceError("the encoder failed")


def session_of(models: EmptyModels) -> SessionModel:
    return SessionModel(ModelPair(get_family("sam2")), models.run, models.objects_at_a_time, 1 << 30, "weights")


def test_two_images_are_encoded_at_a_time_and_clicks_do_not_wait_for_them() -> None:
    """More images at a time would share the processor and the memory of the encoder."""
    assert PARALLEL_ENCODES == 2
    models = SlowEncoder()
    session = session_of(models)
    models.gate.set()
    first = session.answer({"image": text(colored(0))}).tensors["image_id"]
    models.gate.clear()
    with ThreadPoolExecutor(SESSIONS) as threads:
        uploads = [threads.submit(session.answer, {"image": text(colored(n))}) for n in range(1, SESSIONS + 1)]
        try:
            wait_until(lambda: models.encoding >= PARALLEL_ENCODES)
            click = session.answer({"image_id": first, "point_coords": np.ones((1, 1, 2), np.float32)})
            assert click.error is None
            assert (models.encoding, models.encoded) == (PARALLEL_ENCODES, 1)
        finally:
            models.gate.set()
        assert [upload.result(60).error for upload in uploads] == [None] * SESSIONS
    assert models.encoded == SESSIONS + 1
    assert models.most == PARALLEL_ENCODES


def test_parts_of_a_search_take_the_same_places() -> None:
    models = SlowEncoder()
    pixels = np.zeros(1, np.float32)
    store = ImageStore(lambda pixels: models.encode({"image": pixels}), 1 << 30, lambda image: pixels, "weights")
    part = Image.new("RGB", (8, 8))
    with ThreadPoolExecutor(SESSIONS) as threads:
        jobs = [threads.submit(store.encode_part, part, Reply()) for _ in range(SESSIONS - 1)]
        jobs.append(threads.submit(store.find, colored(0), Reply()))
        try:
            wait_until(lambda: models.encoding >= PARALLEL_ENCODES)
        finally:
            models.gate.set()
        for job in jobs:
            job.result(60)
    assert models.most == PARALLEL_ENCODES


@pytest.mark.timeout(600)  # a place that is kept lets the last request wait for ever
@pytest.mark.parametrize("models", [BrokenEncoder(), SlowEncoder()])
def test_an_encode_that_fails_gives_its_place_back(models: EmptyModels) -> None:
    """The encoder fails, or the file is not an image."""
    session = session_of(models)
    for number in range(SESSIONS):
        content = colored(number) if isinstance(models, BrokenEncoder) else b"no image %d" % number
        assert session.answer({"image": text(content)}).error is not None


def test_an_image_larger_than_the_cache_is_refused_and_evicts_nothing():
    store, reply = ImageStore(None, 10, None, "weights"), Reply()
    store.put("a", (1, 1), {"a": np.zeros(1, np.float32)}, reply)
    with pytest.raises(ConfigurationError, match="of one image take 11 bytes, but cache_bytes is 10"):
        store.put("b", (1, 1), {"a": np.zeros(11, np.uint8)}, reply)
    assert store.gauges() == {"cache_limit_bytes": 10, "cache_bytes": 4, "cache_images": 1}
    store.put("c", (1, 1), {"a": np.zeros(9, np.uint8)}, reply)
    assert reply.counts["cache_evictions"] == 1
    with pytest.raises(ConfigurationError, match="cannot hold an image"):
        ImageStore(None, 0, None, "weights")


@pytest.fixture
def waiting(monkeypatch):
    """Released by each caller who begins to wait for what another one does."""
    waiting = threading.Semaphore(0)

    class Watched(Future):
        def result(self, timeout=None):
            waiting.release()
            return super().result(timeout)

    monkeypatch.setattr("triton_sam.sessions.images.Future", Watched)
    return waiting


def test_equal_files_at_a_time_are_encoded_once(waiting):
    models = SlowEncoder()
    session = session_of(models)
    with ThreadPoolExecutor(2) as threads:
        uploads = [threads.submit(session.answer, {"image": text(colored(1))}) for _ in range(2)]
        try:
            assert waiting.acquire(timeout=PATIENCE)
        finally:
            models.gate.set()
        assert [upload.result(60).error for upload in uploads] == [None, None]
    assert models.encoded == 1


def test_equal_files_searched_for_words_at_a_time_are_encoded_once_also_for_clicks(waiting):
    gate, encoded = threading.Event(), []

    def run(role, _held, _arrays, outputs, _is_kept):
        encoded.append(role)
        assert gate.wait(60)
        return {name: np.ones(1, np.float32) for name in outputs}

    concepts = Concepts(1, lambda: "words", None)
    session = SessionModel(ModelPair(get_family("sam3")), run, 1, 1 << 30, "weights", concepts)
    content = colored(1)
    with ThreadPoolExecutor(3) as threads:
        searches = [threads.submit(session._concepts.encode, content, Reply()) for _ in range(3)]
        try:
            assert all(waiting.acquire(timeout=PATIENCE) for _ in range(2))
        finally:
            gate.set()
        images = [search.result(60) for search in searches]
    assert images[0] is images[1] is images[2]
    assert session.answer({"image": text(content)}).error is None
    assert encoded == [CONCEPT_ENCODER]


def test_work_is_done_once_for_each_key(waiting):
    store, gate, calls = ImageStore(None, 10, None, "weights"), threading.Event(), []

    def work(key):
        calls.append(key)
        gate.wait(PATIENCE)
        return key * 2

    with ThreadPoolExecutor(6) as pool:
        jobs = {key: [pool.submit(store.once, key, lambda key=key: work(key)) for _ in range(3)] for key in "ab"}
        assert all(waiting.acquire(timeout=PATIENCE) for _ in range(4))
        gate.set()
        assert {key: [job.result() for job in of_key] for key, of_key in jobs.items()} == {
            "a": ["aa"] * 3,
            "b": ["bb"] * 3,
        }
    assert sorted(calls) == ["a", "b"]


def test_a_flight_is_shared_also_when_it_fails(waiting):
    store, gate, calls = ImageStore(None, 10, None, "weights"), threading.Event(), []

    def work():
        calls.append(1)
        gate.wait(PATIENCE)
        if len(calls) == 1:
            raise ImageError("no")
        return 7

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(store.once, "a", work) for _ in range(4)]
        assert all(waiting.acquire(timeout=PATIENCE) for _ in range(3))
        gate.set()
        for job in jobs:
            with pytest.raises(ImageError):
                job.result()
    assert store.once("a", work) == 7
    assert len(calls) == 2


def test_an_image_that_another_thread_has_just_stored_is_not_encoded_again():
    store = ImageStore(None, 10, None, "weights")
    stored = store.put("a", (1, 1), {"a": np.zeros(1, np.float32)}, Reply())
    assert store.once("a", pytest.fail) is stored
