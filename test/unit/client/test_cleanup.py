"""Clean-up of clicks: the same masks, whether the client or the session model makes them, and in every client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.fake_transport import AsyncFakeTransport, FakeTransport
from support.fuzzing import EmptyModels, NoMetrics, text
from support.session_requests import colored

from triton_sam import Cleanup, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import InputError
from triton_sam.families import get_family
from triton_sam.masks import resize_logits
from triton_sam.sessions.cache import ImageCache
from triton_sam.sessions.image.session import SessionModel
from triton_sam.wire.pair import ModelPair, Request

SIZE = (64, 48)
CLICK = ([[16, 24]], [1])
"""On the left of two squares, which has a hole."""
KEPT = Cleanup(max_hole_area=64, max_sprinkle_area=64, keep_clicked=True)


class TwoSquares(EmptyModels):
    """Networks whose masks are two squares, one of them with a hole, and a speck."""

    objects_at_a_time = 64

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> dict[str, npt.NDArray[Any]]:
        answer = super().decode(embeddings, inputs, outputs)
        logits = np.full((256, 256), -8, np.float32)
        logits[80:180, 20:110] = logits[80:180, 150:240] = logits[6:14, 6:14] = 8
        logits[100:108, 40:48] = -8
        shape = next(array for array in answer.values() if array.ndim == 4).shape
        return {name: np.broadcast_to(logits, shape) if array.ndim == 4 else array for name, array in answer.items()}


@pytest.fixture
def session() -> SessionModel:
    return SessionModel(ModelPair(get_family("sam2")), TwoSquares(), ImageCache(1 << 30), NoMetrics(), "weights")


@pytest.fixture
def answer(session: SessionModel) -> Callable[[Request], Any]:
    def answer(request: Request) -> Any:
        reply = session.answer(request.inputs)
        assert reply.error is None, reply.error
        return {name: reply.tensors[name] for name in request.outputs}

    return answer


def segment(answer: Callable[[Request], Any], **options: Any) -> Any:
    with SAM2TritonClient("localhost:1", transport=FakeTransport(answer), embeddings="server") as client:
        client.set_image(colored(0))
        return client.segment(*CLICK, **options)[0]


def test_the_masks_of_client_and_server_are_equal(answer: Callable[[Request], Any]) -> None:
    plain = segment(answer)
    here, there = (segment(answer, logits=logits, cleanup=KEPT) for logits in (True, False))
    np.testing.assert_array_equal(here.mask, there.mask)
    assert plain.mask[2, 2]  # the speck
    expected = np.full((256, 256), -8, np.float32)
    expected[80:180, 20:110] = 8
    expected[100:108, 40:48] = 10
    np.testing.assert_array_equal(here.mask, resize_logits(expected, SIZE) > 0)
    np.testing.assert_array_equal(here.logits, plain.logits)
    assert here.score == plain.score


def test_a_cleanup_without_steps_is_not_sent(session: SessionModel) -> None:
    """So that a server which knows no clean-up answers as before."""
    transport = FakeTransport(lambda request: session.answer(request.inputs).tensors)
    with SAM2TritonClient("localhost:1", transport=transport, embeddings="server") as client:
        client.set_image(colored(0))
        plain = client.segment(*CLICK, logits=False)[0]
        off = client.segment(*CLICK, logits=False, cleanup=Cleanup())[0]
    np.testing.assert_array_equal(plain.mask, off.mask)
    assert all("cleanup" not in request.inputs for request in transport.requests)


def test_the_speculative_client_cleans_as_well(answer: Callable[[Request], Any]) -> None:
    async def ask() -> Any:
        transport = AsyncFakeTransport(answer)
        async with SpeculativeSAM2Client("localhost:1", transport=transport, embeddings="server") as client:
            await client.set_image_async(colored(0))
            return (await client.segment_async(*CLICK, cleanup=KEPT))[0]

    np.testing.assert_array_equal(asyncio.run(ask()).mask, segment(answer, cleanup=KEPT).mask)


def test_a_box_clips_its_own_object_alone(answer: Callable[[Request], Any]) -> None:
    boxes = [[8, 18, 20, 30], [40, 18, 60, 30]]
    with SAM2TritonClient("localhost:1", transport=FakeTransport(answer), embeddings="server") as client:
        client.set_image(colored(0))
        found = [client.segment(box=boxes, logits=kept, cleanup=Cleanup(clip_to_box=True)) for kept in (True, False)]
    for here, there, box in zip(*found, boxes, strict=True):
        assert here.box == there.box == tuple(box)


def test_the_session_model_takes_it_as_json(session: SessionModel, answer: Callable[[Request], Any]) -> None:
    prompt = {"points": CLICK[0], "cleanup": KEPT.to_json()}
    reply = session.answer(
        {"image_b64": text(base64.b64encode(colored(0))), "prompt_json": text(json.dumps(prompt).encode())}
    )
    content = base64.b64decode(json.loads(reply.tensors["result_json"][0])["mask"]["data"])
    mask = np.asarray(Image.open(io.BytesIO(content))) > 0
    np.testing.assert_array_equal(mask, segment(answer, cleanup=KEPT).mask)


@pytest.mark.parametrize(
    ("form", "cleanup", "message"),
    [
        (b"rle", b"{", "cleanup is no JSON"),
        (b"rle", b"[]", 'cleanup must be an object such as {"keep_clicked": true}, not a list'),
        (b"rle", b'{"fill": 1}', "cleanup has no 'fill'"),
        (b"png", b'{"smooth": 1e9}', "smooth must be a number from 0 to 100"),
        (b"logits", b"{}", "not logits: ask for output_format rle or png"),
    ],
)
def test_the_session_model_refuses_a_bad_one(session: SessionModel, form: bytes, cleanup: bytes, message: str) -> None:
    inputs = {"image": text(colored(0)), "point_coords": np.array([CLICK[0]], np.float32)}
    reply = session.answer({**inputs, "output_format": text(form), "cleanup": text(cleanup)})
    assert isinstance(reply.error, InputError)
    assert message in str(reply.error)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"points": {}}, "prompt_json: points must be a list of [x, y], not an object"),
        ({"multimask": 1.5}, "prompt_json: multimask must be true or false, not a number"),
        ({"image_id": True}, "prompt_json: image_id must be text, not true"),
        ("a", 'prompt_json must be an object such as {"points": [[x, y]]}, not text'),
        (None, 'prompt_json must be an object such as {"points": [[x, y]]}, not null'),
    ],
)
def test_wrong_kinds_of_values_are_told_in_words_of_json(session: SessionModel, prompt: Any, message: str) -> None:
    reply = session.answer({"prompt_json": text(json.dumps(prompt).encode())})
    assert json.loads(reply.tensors["result_json"][0])["error"]["message"] == message


def test_a_client_takes_nothing_but_a_cleanup(answer: Callable[[Request], Any]) -> None:
    with pytest.raises(InputError, match="Cleanup"):
        segment(answer, cleanup={"keep_clicked": True})
