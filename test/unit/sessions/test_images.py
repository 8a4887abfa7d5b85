"""The images that a session model keeps: how many it encodes at a time, each once for all who ask."""

import gc
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from support.conditions import PATIENCE, wait_until
from support.fuzzing import EmptyModels, session, text
from support.session_requests import colored

from triton_sam import ImageError
from triton_sam.errors import ConfigurationError, UnknownImageError
from triton_sam.sessions.images import PARALLEL_ENCODES, ImageStore, NoRoomError
from triton_sam.sessions.messages import Reply

SESSIONS = PARALLEL_ENCODES + 3


class SlowEncoder(EmptyModels):
    """Networks whose encoder answers when the test opens its gate."""

    objects_at_a_time = 64

    def __init__(self):
        self.gate = threading.Event()
        self.lock = threading.Lock()
        self.encoding = self.most = self.encoded = 0

    def encode(self, inputs):
        with self.lock:
            self.encoding += 1
            self.most = max(self.most, self.encoding)
        assert self.gate.wait(60)
        with self.lock:
            self.encoding -= 1
            self.encoded += 1
        return super().encode(inputs)


def test_two_images_are_encoded_at_a_time_and_clicks_do_not_wait_for_them():
    """More images at a time would share the processor and the memory of the encoder."""
    assert PARALLEL_ENCODES == 2
    models = SlowEncoder()
    model = session(models, limit=1 << 30)
    models.gate.set()
    first = model.answer({"image": text(colored(0))}).tensors["image_id"]
    models.gate.clear()
    with ThreadPoolExecutor(SESSIONS) as threads:
        uploads = [threads.submit(model.answer, {"image": text(colored(n))}) for n in range(1, SESSIONS + 1)]
        try:
            wait_until(lambda: models.encoding >= PARALLEL_ENCODES)
            click = model.answer({"image_id": first, "point_coords": np.ones((1, 1, 2), np.float32)})
            assert click.error is None
            assert (models.encoding, models.encoded) == (PARALLEL_ENCODES, 1)
        finally:
            models.gate.set()
        assert [upload.result(60).error for upload in uploads] == [None] * SESSIONS
    assert models.encoded == SESSIONS + 1
    assert models.most == PARALLEL_ENCODES


def test_parts_of_a_search_take_the_same_places():
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
    model = session(models, limit=1 << 30)
    with ThreadPoolExecutor(2) as threads:
        uploads = [threads.submit(model.answer, {"image": text(colored(1))}) for _ in range(2)]
        try:
            assert waiting.acquire(timeout=PATIENCE)
        finally:
            models.gate.set()
        assert [upload.result(60).error for upload in uploads] == [None, None]
    assert models.encoded == 1


def test_a_flight_is_shared_also_when_it_fails(waiting):
    store, gate, calls = ImageStore(None, 10, None, "weights"), threading.Event(), []

    def work():
        calls.append(1)
        gate.wait(PATIENCE)
        if len(calls) == 1:
            raise ImageError("no")
        return (7, 7), {}

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(store.once, "a", work, Reply()) for _ in range(4)]
        assert all(waiting.acquire(timeout=PATIENCE) for _ in range(3))
        gate.set()
        for job in jobs:
            with pytest.raises(ImageError):
                job.result()
    assert store.once("a", work, Reply()).image_size == (7, 7)
    assert len(calls) == 2


def test_an_image_that_another_thread_has_just_stored_is_not_encoded_again():
    store = ImageStore(None, 10, None, "weights")
    stored = store.put("a", (1, 1), {"a": np.zeros(1, np.float32)}, Reply())
    assert store.once("a", pytest.fail, Reply()) is stored


# The session model when memory runs out: it halves the objects, evicts few images, and keeps its limit

IMAGES = 8
NBYTES = 12
"""Size of the embeddings of one image from EmptyModels."""
FULL = "sam2_decoder failed: Failed to allocate memory for requested buffer of size 1073741824"


class SmallMemory(EmptyModels):
    """Networks for which memory runs out as ``encoder_fits`` and ``decoder_fits`` say."""

    objects_at_a_time = 64

    def __init__(self):
        self.encoder_fits = lambda: True
        self.decoder_fits = lambda objects: True
        self.objects = []

    def encode(self, inputs):
        if not self.encoder_fits():
            raise NoRoomError(FULL)
        return super().encode(inputs)

    def decode(self, embeddings, inputs, outputs):
        objects = len(inputs["point_coords"])
        self.objects.append(objects)
        if not self.decoder_fits(objects):
            raise NoRoomError(FULL)
        answer = super().decode(embeddings, inputs, outputs)
        first = inputs["point_coords"][:, 0, 0]
        return {name: array + first.reshape(-1, *[1] * (array.ndim - 1)) for name, array in answer.items()}


class Server:
    """A session model whose cache is full."""

    def __init__(self):
        self.models = SmallMemory()
        self.session = session(self.models, limit=IMAGES * NBYTES)
        self.cache = self.session.images.cache
        self.ids = [self.upload(number).tensors["image_id"] for number in range(IMAGES)]
        assert self.state == (IMAGES, IMAGES * NBYTES)

    def upload(self, number):
        return self.session.answer({"image": text(colored(number))})

    def click(self, objects, image=0):
        points = np.arange(objects, dtype=np.float32).repeat(2).reshape(objects, 1, 2) % 40
        return self.session.answer({"image_id": self.ids[image], "point_coords": points})

    @property
    def state(self):
        """Number of images, and the limit."""
        return len(self.cache), self.cache.limit


@pytest.fixture
def image_model():
    return Server()


@pytest.mark.parametrize(
    ("objects", "fit", "calls"),
    [(64, 16, [64, 32, 16, 16, 32, 16, 16]), (7, 1, [7, 4, 2, 1, 1, 2, 1, 1, 3, 2, 1, 1, 1])],
)
def test_many_objects_are_halved_until_they_fit(image_model, objects, fit, calls):
    expected = image_model.click(objects).tensors
    image_model.models.objects.clear()
    image_model.models.decoder_fits = lambda objects: objects <= fit
    reply = image_model.click(objects)
    assert reply.error is None
    assert image_model.models.objects == calls
    for name in ("masks", "iou_predictions"):
        np.testing.assert_array_equal(reply.tensors[name], expected[name])
    assert image_model.state == (IMAGES, IMAGES * NBYTES)


@pytest.mark.parametrize("objects", [1, 64])
def test_a_decode_that_never_fits_keeps_half_of_the_images_and_the_limit(image_model, objects):
    image_model.models.decoder_fits = lambda objects: False
    for _ in range(20):
        assert "Failed to allocate memory" in str(image_model.click(objects, image=IMAGES - 1).error)
    assert image_model.state == (IMAGES // 2, IMAGES * NBYTES)
    image_model.models.decoder_fits = lambda objects: True
    assert image_model.click(objects, image=IMAGES - 1).error is None


def test_a_decode_evicts_no_image_that_it_needs(image_model):
    """Evicting the only image would free nothing, because the running request holds it."""
    while len(image_model.cache) > 1:
        image_model.cache.remove_oldest()
    image_model.models.decoder_fits = lambda objects: False
    assert image_model.click(1, image=IMAGES - 1).error is not None
    assert len(image_model.cache) == 1


def test_where_eviction_helps_the_limit_stays_lower(image_model):
    room = 5
    image_model.models.encoder_fits = lambda: len(image_model.cache) < room
    reply = image_model.upload(100)
    assert reply.error is None
    assert reply.counts["cache_evictions"] == IMAGES - room + 2  # one more leaves room for the image itself
    assert image_model.state == (room - 1, (room - 1) * NBYTES)
    for number in range(20):  # from here on no call runs out of memory
        assert image_model.upload(200 + number).counts["cache_evictions"] == 1
    lost = image_model.click(1)
    assert isinstance(lost.error, UnknownImageError)
    assert (lost.counts["unknown_images"], lost.counts["cache_evictions"]) == (1, 0)
    image_model.models.decoder_fits = lambda objects: len(image_model.cache) < room - 1
    image_model.ids[0] = image_model.upload(219).tensors["image_id"]
    assert image_model.click(1).error is None
    assert image_model.state == (room - 2, (room - 2) * NBYTES)


def test_a_lower_limit_can_be_lowered_again(image_model):
    """Each success begins anew, so that memory can shrink to any size in steps of a half."""
    for room in (6, 4, 3, 2, 1):
        image_model.models.encoder_fits = lambda room=room: len(image_model.cache) < room
        assert image_model.upload(100 + room).error is None
    assert image_model.state == (1, NBYTES)


def test_an_evicted_image_frees_its_memory_at_once(image_model):
    """Shared memory would run out before the garbage collector looks for circular references."""
    image = weakref.ref(image_model.cache.get(image_model.ids[0][0].decode()))
    gc.disable()
    try:
        image_model.click(1)
        image_model.models.decoder_fits = lambda objects: objects <= 1
        image_model.click(7)
        image_model.models.decoder_fits = lambda objects: False
        assert image_model.click(7).error is not None
        while image_model.cache.remove_oldest():
            pass
        assert image() is None
    finally:
        gc.enable()
