"""find() and find_async(): one request, images that the server has lost, and clear errors."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from support.fake_transport import AsyncFakeTransport, FakeTransport, text, uploaded

from triton_sam import AsyncSAM2TritonClient, InferenceError, PromptError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.session_image import SessionImage
from triton_sam.errors import ConfigurationError, ModelNotReadyError, NoImageError, ServerBusyError
from triton_sam.masks.rle import mask_to_rle

IMAGE = np.zeros((48, 64, 3), np.uint8)
OTHER = np.full((48, 64, 3), 9, np.uint8)
MASK = np.zeros((48, 64), bool)
MASK[3:9, 5:20] = True


def answer(*found: tuple[str, int], image_id: bytes = b"id") -> dict:
    """Return an answer with instances of (text, index of the text)."""
    objects = [
        {"text": name, "text_index": index, "score": 0.9, "box": [5, 3, 20.5, 9], "segmentation": mask_to_rle(MASK)}
        for name, index in found
    ]
    return {**uploaded(image_id), "result_json": text(json.dumps({"objects": objects}).encode())}


def refused(code: str) -> InferenceError:
    return InferenceError(f"[404] {code}: words of the server")


def client_of(*answers, **options) -> tuple[SAM2TritonClient, FakeTransport]:
    transport = FakeTransport(*answers)
    return SAM2TritonClient(model_type="sam3", transport=transport, **options), transport


def query_of(request) -> dict:
    return json.loads(request.inputs["find"][0])


def test_one_request_brings_image_and_words() -> None:
    client, transport = client_of(answer(("cat", 0), ("cat", 0), ("bus", 1)))
    found = client.find(["cat", "bus"], image=IMAGE, threshold=0.4, limit=2)
    assert [(each.label, each.object_index, each.candidate) for each in found] == [
        ("cat", 0, 0),
        ("cat", 0, 1),
        ("bus", 1, 0),
    ]
    assert found[0].found_box == (5, 3, 20.5, 9)
    assert (found[0].mask == MASK).all()
    assert isinstance(found.image, SessionImage)
    assert found.image.image_size == (64, 48)
    (request,) = transport.requests
    assert (request.model, set(request.inputs)) == ("sam3", {"image", "find"})
    sent = query_of(request)
    assert (sent["text"], sent["threshold"], sent["mask_threshold"], sent["limit"]) == (["cat", "bus"], 0.4, 0.5, 2)
    assert transport.calls == [1]


def test_the_image_of_the_result_and_the_current_image_are_named() -> None:
    client, transport = client_of(answer(), answer(), uploaded(), answer())
    image = client.find("cat", image=IMAGE).image
    assert client.find("bus", image=image) == []
    client.set_image(IMAGE)
    client.find("bus")
    assert [set(request.inputs) for request in transport.requests[1::2]] == [{"image_id", "find"}] * 2


def test_an_image_that_the_server_lost_is_sent_again() -> None:
    client, transport = client_of(answer(image_id=b"old"), refused("UNKNOWN_IMAGE_ID"), answer(image_id=b"new"))
    image = client.find("cat", image=IMAGE).image
    client.find("cat", image=image)
    assert [set(request.inputs) for request in transport.requests[1:]] == [{"image_id", "find"}, {"image", "find"}]
    assert image.remote.image_id == "new"


def test_examples_of_another_image_are_uploaded_and_encoded_for_words() -> None:
    client, transport = client_of(uploaded(b"other"), refused("UNKNOWN_IMAGE_ID"), answer(image_id=b"other"), answer())
    client.find(boxes=[1, 2, 9, 9], image=IMAGE, example=OTHER)
    upload, first, example, second = transport.requests
    assert set(upload.inputs) == {"image"}
    assert first.inputs["example_image"][0] == second.inputs["example_image"][0] == b"other"
    assert (set(example.inputs), set(second.inputs)) == ({"image", "find"}, {"image", "find", "example_image"})
    assert example.inputs["image"][0] == upload.inputs["image"][0] != second.inputs["image"][0]


@pytest.mark.parametrize("kind", [SpeculativeSAM2Client, AsyncSAM2TritonClient])
def test_the_async_clients_send_the_same_request(kind) -> None:
    transport = AsyncFakeTransport(answer(("cat", 0)))

    async def search():
        async with kind(model_type="sam3", transport=transport) as client:
            find = getattr(client, "find_async", None) or client.find
            return await find("cat", image=IMAGE, boxes=[[1, 2, 9, 9]], box_labels=[0])

    (found,) = asyncio.run(search())
    assert found.label == "cat"
    assert query_of(transport.requests[0])["box_labels"] == [0]


def test_mistakes_send_nothing() -> None:
    client, transport = client_of()
    for arguments, kind, message in (
        ({"text": ""}, PromptError, "a text is empty"),
        ({"text": "cat", "tresh": 1}, PromptError, "there is no parameter 'tresh'"),
        ({"text": "cat", "image": None}, NoImageError, "there is no image yet"),
    ):
        with pytest.raises(kind, match=message):
            client.find(**{"image": IMAGE, **arguments})
    assert transport.requests == []


def test_a_family_or_a_client_that_cannot() -> None:
    with pytest.raises(ConfigurationError, match="sam2 cannot search words: use a client with model_type='sam3'"):
        SAM2TritonClient(transport=FakeTransport()).find("cat", image=IMAGE)
    client, _ = client_of(embeddings="client")
    with pytest.raises(ConfigurationError, match="the session model, which keeps the image"):
        client.find("cat", image=IMAGE)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (refused("MODEL_NOT_READY"), ModelNotReadyError, "words of the server"),
        (refused("BAD_PROMPT"), PromptError, "words of the server"),
        (refused("BUSY"), ServerBusyError, "words of the server"),
        (ModelNotReadyError("no sam3"), ModelNotReadyError, "no sam3 - .*`triton-sam setup sam3 --concepts`"),
        (InferenceError("[500] something else"), InferenceError, "something else"),
    ],
    ids=str,
)
def test_errors_of_the_server_have_their_kind(error, kind, message) -> None:
    client, _ = client_of(error)
    with pytest.raises(kind, match=message):
        client.find("cat", image=IMAGE)


def test_a_session_model_of_an_earlier_version_is_named_before_anything_is_sent() -> None:
    client, transport = client_of()
    transport.lacks = ("find",)
    with pytest.raises(ModelNotReadyError, match=r"sam3 of this server is older than the search for words: .*concepts"):
        client.find("cat", image=IMAGE)
    assert transport.requests == []


def test_a_server_without_a_session_model_is_named_before_anything_is_sent() -> None:
    client, transport = client_of()
    transport.config_error = ModelNotReadyError("no sam3")
    with pytest.raises(ModelNotReadyError, match=r"no sam3 - .*`triton-sam setup sam3 --concepts`"):
        client.find("cat", image=IMAGE)
    assert transport.requests == []


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"objects": [{}]}', b'{"objects": 3}'])
def test_an_answer_that_is_not_as_agreed(content: bytes) -> None:
    client, _ = client_of({**uploaded(), "result_json": text(content)})
    with pytest.raises(
        InferenceError,
        match=r"^sam3 answered in an unknown form: the server .*; update it or this client$",
    ):
        client.find("cat", image=IMAGE)
