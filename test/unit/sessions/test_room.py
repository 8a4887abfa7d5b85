"""The session model when memory runs out: it halves the objects, evicts few images, and keeps its limit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.fuzzing import EmptyModels, text
from support.session_requests import colored

from triton_sam.families import get_family
from triton_sam.sessions.image.session import SessionModel
from triton_sam.sessions.images import NoRoomError
from triton_sam.sessions.messages import Reply
from triton_sam.wire.pair import ModelPair

IMAGES = 8
NBYTES = 12
"""Size of the embeddings of one image from EmptyModels."""
FULL = "sam2_decoder failed: Failed to allocate memory for requested buffer of size 1073741824"


class SmallMemory(EmptyModels):
    """Networks for which memory runs out as ``encoder_fits`` and ``decoder_fits`` say."""

    objects_at_a_time = 64

    def __init__(self) -> None:
        self.encoder_fits: Callable[[], bool] = lambda: True
        self.decoder_fits: Callable[[int], bool] = lambda objects: True
        self.objects: list[int] = []

    def encode(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        if not self.encoder_fits():
            raise NoRoomError(FULL)
        return super().encode(inputs)

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> dict[str, npt.NDArray[Any]]:
        objects = len(inputs["point_coords"])
        self.objects.append(objects)
        if not self.decoder_fits(objects):
            raise NoRoomError(FULL)
        answer = super().decode(embeddings, inputs, outputs)
        first = inputs["point_coords"][:, 0, 0]
        return {name: array + first.reshape(-1, *[1] * (array.ndim - 1)) for name, array in answer.items()}


class Server:
    """A session model whose cache is full."""

    def __init__(self) -> None:
        self.models = SmallMemory()
        self.session = SessionModel(ModelPair(get_family("sam2")), self.models.run, 64, IMAGES * NBYTES, "weights")
        self.cache = self.session.images.cache
        self.ids = [self.upload(number).tensors["image_id"] for number in range(IMAGES)]
        assert self.state == (IMAGES, IMAGES * NBYTES)

    def upload(self, number: int) -> Reply:
        return self.session.answer({"image": text(colored(number))})

    def click(self, objects: int, image: int = 0) -> Reply:
        points = np.arange(objects, dtype=np.float32).repeat(2).reshape(objects, 1, 2) % 40
        return self.session.answer({"image_id": self.ids[image], "point_coords": points})

    @property
    def state(self) -> tuple[int, int]:
        """Number of images, and the limit."""
        return len(self.cache), self.cache.limit


@pytest.fixture
def server() -> Server:
    return Server()


def test_an_encoder_with_other_weights_gives_an_image_another_id(server: Server) -> None:
    """Else a server whose model was exchanged would answer from the embeddings of the old weights."""
    make = partial(SessionModel, ModelPair(get_family("sam2")), server.models.run, 64, IMAGES * NBYTES)
    image = {"image": text(colored(1))}
    ids = [make(weights).answer(image).tensors["image_id"][0] for weights in ("weights", "weights", "others")]
    assert ids[0] == ids[1] == server.ids[1]
    assert ids[2] != ids[0]


@pytest.mark.parametrize(
    ("objects", "fit", "calls"),
    [(64, 16, [64, 32, 16, 16, 32, 16, 16]), (7, 1, [7, 4, 2, 1, 1, 2, 1, 1, 3, 2, 1, 1, 1])],
)
def test_many_objects_are_halved_until_they_fit(server: Server, objects: int, fit: int, calls: list[int]) -> None:
    expected = server.click(objects).tensors
    server.models.objects.clear()
    server.models.decoder_fits = lambda objects: objects <= fit
    reply = server.click(objects)
    assert reply.error is None
    assert server.models.objects == calls
    for name in ("masks", "iou_predictions"):
        np.testing.assert_array_equal(reply.tensors[name], expected[name])
    assert server.state == (IMAGES, IMAGES * NBYTES)


@pytest.mark.parametrize("objects", [1, 64])
def test_a_decode_that_never_fits_keeps_half_of_the_images_and_the_limit(server: Server, objects: int) -> None:
    server.models.decoder_fits = lambda objects: False
    for _ in range(20):
        assert "Failed to allocate memory" in str(server.click(objects, image=IMAGES - 1).error)
    assert server.state == (IMAGES // 2, IMAGES * NBYTES)
    server.models.decoder_fits = lambda objects: True
    assert server.click(objects, image=IMAGES - 1).error is None


def test_an_encode_that_never_fits_keeps_half_of_the_images_and_the_limit(server: Server) -> None:
    server.models.encoder_fits = lambda: False
    for number in range(20):
        assert "Failed to allocate memory" in str(server.upload(100 + number).error)
        assert server.click(1, image=IMAGES - 1).error is None
    assert server.state == (IMAGES // 2, IMAGES * NBYTES)


def test_a_decode_evicts_no_image_that_it_needs(server: Server) -> None:
    """Evicting the only image would free nothing, because the running request holds it."""
    while len(server.cache) > 1:
        server.cache.remove_oldest()
    server.models.decoder_fits = lambda objects: False
    assert server.click(1, image=IMAGES - 1).error is not None
    assert len(server.cache) == 1


def test_where_eviction_helps_the_limit_stays_lower(server: Server) -> None:
    room = 5
    server.models.encoder_fits = lambda: len(server.cache) < room
    reply = server.upload(100)
    assert reply.error is None
    assert reply.counts["cache_evictions"] == IMAGES - room + 2  # one more leaves room for the image itself
    assert server.state == (room - 1, (room - 1) * NBYTES)
    for number in range(20):  # from here on no call runs out of memory
        assert server.upload(200 + number).counts["cache_evictions"] == 1
    server.models.decoder_fits = lambda objects: len(server.cache) < room - 1
    server.ids[0] = server.upload(219).tensors["image_id"]
    assert server.click(1).error is None
    assert server.state == (room - 2, (room - 2) * NBYTES)


def test_memory_for_a_single_image_is_enough(server: Server) -> None:
    while len(server.cache) > 1:
        server.cache.remove_oldest()
    server.models.encoder_fits = lambda: len(server.cache) == 0
    for number in range(3):
        assert server.upload(100 + number).error is None
    assert server.state == (1, NBYTES)


def test_a_lower_limit_can_be_lowered_again(server: Server) -> None:
    """Each success begins anew, so that memory can shrink to any size in steps of a half."""
    for room in (6, 4, 3, 2, 1):
        server.models.encoder_fits = lambda room=room: len(server.cache) < room
        assert server.upload(100 + room).error is None
    assert server.state == (1, NBYTES)


def test_an_evicted_image_frees_its_memory_at_once(server: Server) -> None:
    """Shared memory would run out before the garbage collector looks for circular references."""
    image = weakref.ref(server.cache.get(server.ids[0][0].decode()))
    gc.disable()
    try:
        server.click(1)
        server.models.decoder_fits = lambda objects: objects <= 1
        server.click(7)
        server.models.decoder_fits = lambda objects: False
        assert server.click(7).error is not None
        while server.cache.remove_oldest():
            pass
        assert image() is None
    finally:
        gc.enable()
