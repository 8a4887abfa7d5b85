"""Clicks with an image that a session model keeps: which requests they become, and what a server without one costs."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from support.fake_transport import AsyncFakeTransport, FakeTransport, clicked, decoded, encoded, refused, uploaded

from triton_sam import AsyncSAM2TritonClient, PromptError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client import clicks
from triton_sam.client.lacks import ASK_AGAIN_SECONDS, Notice
from triton_sam.client.session_image import SessionImage
from triton_sam.errors import InferenceError, ModelNotReadyError
from triton_sam.wire.contract import MAX_OBJECTS, MAX_POINTS

IMAGE = np.zeros((48, 64, 3), np.uint8)
MISSING = ModelNotReadyError("no model 'sam2' ready")


def objects_of(request) -> int:
    """Return the number of objects in a click."""
    return len(request.inputs.get("boxes", request.inputs.get("point_coords", ())))


class Numbered:
    """A session model whose logits and scores are the left edge of each box, or the x of the first point."""

    def __call__(self, request):
        if "boxes" not in request.inputs and "point_coords" not in request.inputs:
            return uploaded()
        boxes = request.inputs.get("boxes")
        x = request.inputs["point_coords"][:, 0, 0] if boxes is None else boxes[:, 0]
        answer = clicked(objects=len(x))
        answer["masks"][...] = x[:, None, None, None]
        answer["iou_predictions"][...] = x[:, None]
        masks = np.array([[b'{"size": [48, 64], "counts": [0, 3072]}']] * len(x), np.object_)
        return {name: {**answer, "encoded_masks": masks}[name] for name in request.outputs}


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ({"box": [[x / 10, 1, 40, 40] for x in range(MAX_OBJECTS)]}, [64]),
        ({"box": [[x / 10, 1, 40, 40] for x in range(MAX_OBJECTS + 1)]}, [64, 1]),
        ({"point_coords": [[[x / 10, 1]] * 16 for x in range(MAX_OBJECTS)]}, [64]),
        ({"point_coords": [[[x / 10, 1]] * 17 for x in range(MAX_OBJECTS)]}, [60, 4]),
        ({"point_coords": [[[x / 10, 1]] * 15 for x in range(62)], "box": [[1, 1, 9, 9]] * 62}, [60, 2]),
        ({"point_coords": [[3, 3]] * MAX_POINTS}, [1]),
        ({"point_coords": [[[3, 3]] * MAX_POINTS, [[4, 4]]]}, [1, 1]),
    ],
    ids=["64 boxes", "65 boxes", "16 points", "17 points", "points and boxes", "one object", "lists of other lengths"],
)
def test_a_click_goes_in_as_many_requests_as_the_limits_of_the_contract_demand(prompt, parts):
    transport = FakeTransport(Numbered())
    with SAM2TritonClient(transport=transport) as client:
        client.set_image(IMAGE)
        masks, scores = client.predict(**prompt)
        assert [objects_of(request) for request in transport.requests[1:]] == parts
        expected = np.array([part[0] for part in prompt.get("box", ())] or [0])
        if "point_coords" not in prompt:
            np.testing.assert_allclose(scores[:, 0], expected, atol=1e-6)
        assert (masks[:, 0, 0, 0] == np.minimum(scores[:, 0], 32)).all()
        segments = client.segment(**prompt, logits=False)
        assert [each.object_index for each in segments] == list(range(sum(parts)))


def test_more_points_of_one_object_need_the_embeddings_here():
    prompt = {"point_coords": [[3, 3]] * (MAX_POINTS + 1)}
    transport = FakeTransport(
        lambda request: (
            Numbered()(request) if request.model == "sam2" else encoded() if "image" in request.inputs else decoded()
        )
    )
    with SAM2TritonClient(transport=transport) as client:
        client.set_image(IMAGE)
        with pytest.raises(PromptError, match=r"1025 points, and the session model accepts 1024.*encode_here"):
            client.predict(**prompt)
        assert len(transport.requests) == 1
        client.predict(**prompt, image=client.encode_here(IMAGE))
        assert transport.models == ["sam2", "sam2_encoder", "sam2_decoder"]


def test_the_async_clients_encode_here_too():
    async def encode(kind):
        async with kind(transport=AsyncFakeTransport(encoded())) as client:
            return await (
                client.encode_here(IMAGE) if kind is AsyncSAM2TritonClient else client.encode_here_async(IMAGE)
            )

    for kind in (AsyncSAM2TritonClient, SpeculativeSAM2Client):
        assert set(asyncio.run(encode(kind))) == set(encoded())


def test_an_image_that_is_lost_between_two_parts_is_sent_again_with_the_second_alone():
    answers = [
        uploaded(),
        clicked(objects=64),
        refused("UNKNOWN_IMAGE_ID"),
        clicked(b"new", objects=2),
        clicked(b"new"),
    ]
    transport = FakeTransport(*answers)
    with SAM2TritonClient(transport=transport) as client:
        client.set_image(IMAGE)
        assert len(client.predict(box=[[1, 1, 9, 9]] * 66)[0]) == 66
        client.predict([[3, 4]])
    assert ["image" in request.inputs for request in transport.requests] == [True, False, False, True, False]
    assert transport.requests[4].inputs["image_id"][0] == b"new"


@pytest.mark.parametrize("second", [clicked(objects=1), clicked(objects=3)])
def test_an_answer_to_a_part_of_the_wrong_size_is_an_error(second):
    with SAM2TritonClient(transport=FakeTransport(uploaded(), clicked(objects=64), second)) as client:
        client.set_image(IMAGE)
        with pytest.raises(InferenceError, match=r"sam2 sent masks of shape"):
            client.predict(box=[[1, 1, 9, 9]] * 66)


# Servers without the session model


def test_without_a_session_model_the_client_keeps_the_embeddings_says_so_once_and_asks_again(caplog, monkeypatch):
    ready = False

    def answer(request):
        if request.model == "sam2":
            return uploaded() if ready else MISSING
        return encoded()

    transport = FakeTransport(answer)
    with SAM2TritonClient(transport=transport) as client:
        for _ in range(3):
            assert not isinstance(client.set_image(IMAGE), SessionImage)
        assert transport.models == ["sam2", "sam2_encoder", "sam2_encoder", "sam2_encoder"]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + ASK_AGAIN_SECONDS + 1)
        assert not isinstance(client.set_image(IMAGE), SessionImage)
        monkeypatch.setattr(time, "monotonic", lambda: now + 3 * ASK_AGAIN_SECONDS)
        ready = True
        assert isinstance(client.set_image(IMAGE), SessionImage)
    assert transport.models[4:] == ["sam2", "sam2_encoder", "sam2"]
    (message,) = caplog.messages
    assert message.startswith(
        "the server has no session model 'sam2' ready: this client keeps the embeddings and sends"
    )
    assert "(16.8 MB)" in message
    assert "embeddings='client'" in message


def test_embeddings_that_the_caller_wants_here_are_no_surprise(caplog):
    with SAM2TritonClient(transport=FakeTransport(encoded(), decoded()), embeddings="client") as client:
        client.set_image(IMAGE)
        client.predict([[3, 4]])
    assert not caplog.messages


def test_a_server_that_loses_an_image_again_and_again_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(clicks, "_LOSES_IMAGES", Notice())

    def answer(request):
        return refused("UNKNOWN_IMAGE_ID") if "image_id" in request.inputs else {**uploaded(), **clicked()}

    with SAM2TritonClient(transport=FakeTransport(answer)) as client:
        client.set_image(IMAGE)
        for _ in range(3):
            client.predict([[3, 4]])
        assert not caplog.messages
        for _ in range(9):
            client.predict([[3, 4]])
    (message,) = caplog.messages
    assert message.startswith(
        "sam2 lost an image 4 times in a row, so clicks on it carry the image file. Raise cache_bytes"
    )
