"""The search for words and examples: the clients against the real session model, and what it asks of its models."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.concept_server import FAMILY, SIDE, Arrays, ConceptServer
from support.contents import encoded
from support.fuzzing import session as sam2_session
from support.fuzzing import text
from support.in_process import ImageServer, write_one_pass

from triton_sam import AsyncSAM2TritonClient, InferenceError, PromptError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.session_image import SessionImage
from triton_sam.concepts.query import check_query
from triton_sam.errors import (
    ConfigurationError,
    ImageError,
    InputError,
    ModelNotReadyError,
    NoImageError,
    PromptError,
    UnknownImageError,
)
from triton_sam.masks.resize import full_size_masks
from triton_sam.sessions.tasks import TaskCancelledError

IMAGE = np.zeros((144, 288, 3), np.uint8)
OTHER = np.full((100, 1000, 3), 9, np.uint8)


@pytest.fixture
def concept_server():
    with ConceptServer() as concept_server:
        yield concept_server


@pytest.fixture
def client(concept_server):
    with client_of(concept_server) as client:
        yield client


@pytest.fixture
def one_pass(tmp_path):
    with ConceptServer(repository=write_one_pass(tmp_path)) as server:
        yield server


def client_of(server, **options) -> SAM2TritonClient:
    return SAM2TritonClient(server.url, "sam3", retries=0, **options)


def image_file() -> bytes:
    return encoded(Image.fromarray(IMAGE))


def ask(model, query: dict, stopped=lambda: False, **inputs: bytes):
    """Send a search to a session model itself, as programs in other languages do."""
    tensors = {"find": text(json.dumps(query).encode()), **{name: text(value) for name, value in inputs.items()}}
    return model.find_concepts(tensors, stopped)


def test_one_request_brings_image_and_words(concept_server, client) -> None:
    found = client.find(["cat", "bus"], image=IMAGE, threshold=0.4, limit=2)
    assert [(each.label, each.object_index, each.candidate) for each in found] == [
        ("cat", 0, 0),
        ("cat", 0, 1),
        ("bus", 1, 0),
        ("bus", 1, 1),
    ]
    assert found[0].score == pytest.approx(0.8807, abs=2e-4)
    assert found[0].score > found[1].score
    assert found[0].found_box == (0, 0, 144, 72)
    rows, columns = np.nonzero(found[0].mask)  # "c" is the token 3, and the rows of the model are twice as many
    assert (rows.min(), rows.max(), columns.max()) == (12, 15, 7)
    assert isinstance(found.image, SessionImage)
    assert found.image.image_size == (288, 144)
    assert "+" not in found.image.remote.image_id
    (request,) = concept_server.requests
    assert (request.model, set(request.inputs)) == ("sam3", {"image", "find"})
    sent = json.loads(request.inputs["find"][0])
    assert (sent["text"], sent["threshold"], sent["mask_threshold"], sent["limit"]) == (["cat", "bus"], 0.4, 0.5, 2)


def test_logits_come_on_request(concept_server, client) -> None:
    found = client.find(["cat", "bus"], image=IMAGE, threshold=0.4, logits=True)
    plain = client.find(["cat", "bus"], image=found.image, threshold=0.4)
    assert len(found) == len(plain) == 4
    for each, other in zip(found, plain, strict=True):
        assert (each.logits.shape, each.logits.dtype) == ((SIDE, SIDE), np.float32)
        np.testing.assert_array_equal(*full_size_masks(each.logits, (288, 144), FAMILY), each.mask)
        np.testing.assert_array_equal(each.mask, other.mask)
        assert other.logits is None
    assert found[0].score > found[1].score  # sorted by score
    assert client.find("cat", image=found.image, threshold=1, logits=True) == []
    asked = [("find_logits" in request.inputs, "masks" in request.outputs) for request in concept_server.requests]
    assert asked == [(True, True), (False, False), (True, True)]


def test_the_rules_of_videos_get_logits_in_the_order_of_proposals(concept_server, client) -> None:
    query = check_query(["cat", "bus"], threshold=0.4)
    detections = client._detect(query, IMAGE)
    assert detections.texts.tolist() == [0, 0, 1, 1]
    assert detections.masks.max(axis=(1, 2)).tolist() == [8, 9, 8, 9]
    found = client.find(["cat", "bus"], image=IMAGE, threshold=0.4, logits=True)  # sorted by score
    by_proposal = [found[place] for place in (1, 0, 3, 2)]
    np.testing.assert_array_equal(detections.masks, np.stack([each.logits for each in by_proposal]))
    assert detections.scores.tolist() == [np.float32(each.score) for each in by_proposal]
    assert client._detect(check_query("cat", threshold=1), IMAGE).masks.shape == (0, SIDE, SIDE)
    reply = ask(concept_server.program._model, {"text": "cat"}, image=image_file())
    logits = concept_server.program._model.find_concepts({**concept_server.requests[0].inputs}, lambda: False)
    members = [json.loads(each.tensors["result_json"][0])["objects"][0].keys() for each in (reply, logits)]
    assert members[0] - members[1] == {"segmentation"}  # no full-size mask is made
    assert members[1] - members[0] == {"proposal"}


def test_an_answer_with_logits_has_a_limit(concept_server, client, monkeypatch) -> None:
    monkeypatch.setattr("triton_sam.sessions.concepts._MAX_LOGITS", 3)
    assert len(client.find(["cat", "bus"], image=IMAGE, threshold=0.4)) == 4
    with pytest.raises(PromptError, match="more than 3 instances, too many for an answer with logits"):
        client.find(["cat", "bus"], image=IMAGE, threshold=0.4, logits=True)


def test_an_image_that_the_server_lost_or_that_was_only_clicked_is_sent_again(concept_server, client) -> None:
    image = client.find("cat", image=IMAGE).image
    concept_server.lose_images()
    assert len(client.find("cat", image=image)) == 2
    client.set_image(OTHER)
    assert len(client.find("cat")) == 2
    assert concept_server.sent() == [True, False, True, True, False, True]
    assert concept_server.encodes == [
        "sam3_concept_encoder",
        "sam3_concept_encoder",
        "sam3_encoder",
        "sam3_concept_encoder",
    ]


@pytest.mark.parametrize("order", ["click first", "word first", "only its id"])
def test_one_pass_serves_words_and_clicks_in_any_order(one_pass, order) -> None:
    with client_of(one_pass) as client:
        if order == "click first":
            client.set_image(IMAGE)
            client.predict([[3, 3]])
        elif order == "only its id":
            client.set_image(IMAGE)
            (image_id,) = {each.image_id.partition("+")[0] for each in one_pass.program._model.images.cache.values()}
            model = one_pass.program._model
            reply = ask(model, {"text": "cat"}, image_id=image_id.encode())
            assert reply.error is None
            assert model.images.gauges(reply)["cache_bytes"] == model.images.cache.nbytes
        image = client.find("cat", image=IMAGE).image
        client.segment([[3, 3]], image=image)
        assert len(client.find("bus", image=image)) == 2
    assert one_pass.encodes == ["sam3_encoder", "sam3_concept_encoder"]
    decoder = next(call for call in one_pass.triton.calls if call.model == "sam3_decoder")
    assert "backbone_states" not in decoder.inputs


def test_the_states_of_the_last_images_stay_until_they_are_searched(one_pass) -> None:
    cache = one_pass.program._model.images.cache
    with client_of(one_pass) as client:
        images = [np.full((20, 20, 3), shade, np.uint8) for shade in range(6)]
        for image in images:
            client.set_image(image)
        assert len(cache) == 6 + 4
        client.find("cat", image=images[5])
        assert len(cache) == 6 + 4  # feature maps in place of states
        assert one_pass.encodes.count("sam3_encoder") == 6
        client.find("cat", image=images[0])
    assert one_pass.encodes.count("sam3_encoder") == 7


def test_states_take_at_most_a_quarter_of_a_small_cache(one_pass, monkeypatch) -> None:
    compute, cache = one_pass.triton._compute, one_pass.program._model.images.cache
    large = {"backbone_states": np.zeros(12, np.float32)}  # as large as the three embeddings together
    monkeypatch.setattr(one_pass.triton, "_compute", lambda *call: {**compute(*call), **large})
    cache.limit = 8 * 48
    with client_of(one_pass) as client:
        for shade in range(9):
            client.set_image(np.full((20, 20, 3), shade, np.uint8))
    assert ["+" in each.image_id for each in cache.values()].count(True) == 2
    assert len(cache) == 2 + 6


@pytest.mark.parametrize("floats", [24, 60])
def test_states_that_their_part_of_the_cache_cannot_hold_evict_nothing(one_pass, monkeypatch, floats) -> None:
    """The larger ones do not fit the whole cache."""
    compute, cache = one_pass.triton._compute, one_pass.program._model.images.cache
    large = {"backbone_states": np.zeros(floats, np.float32)}
    monkeypatch.setattr(one_pass.triton, "_compute", lambda *call: {**compute(*call), **large})
    cache.limit = 4 * 48
    with client_of(one_pass) as client:
        for shade in range(4):
            client.set_image(np.full((20, 20, 3), shade, np.uint8))
    assert ["+" in each.image_id for each in cache.values()] == [False] * 4


def test_images_that_words_search_keep_their_embeddings_longer_than_their_feature_maps(concept_server) -> None:
    with client_of(concept_server) as client:
        client.find("cat", image=IMAGE)
    maps, embeddings = (each.image_id for each in concept_server.program._model.images.cache.values())
    assert maps.startswith(f"{embeddings}+")  # the least recently used one, which is evicted first


def test_a_search_waits_for_the_pass_of_a_click(one_pass) -> None:
    model = one_pass.program._model
    gate, begun, compute = threading.Event(), threading.Event(), one_pass.triton._compute

    def slow(name: str, inputs: Arrays, wanted: tuple[str, ...]) -> Mapping[str, npt.NDArray[Any]]:
        if name == "sam3_encoder":
            begun.set()
            assert gate.wait(60)
        return compute(name, inputs, wanted)

    one_pass.triton._compute = slow
    with ThreadPoolExecutor(2) as threads:
        click = threads.submit(model.answer, {"image": text(image_file())})
        assert begun.wait(60)
        search = threads.submit(ask, model, {"text": "cat"}, image=image_file())
        gate.set()
        assert (click.result(60).error, search.result(60).error) == (None, None)
    assert one_pass.encodes == ["sam3_encoder", "sam3_concept_encoder"]


def test_models_may_come_after_their_session_model(tmp_path) -> None:
    with ConceptServer(has_models=False, repository=str(tmp_path)) as server, client_of(server) as client:
        client.set_image(OTHER)
        write_one_pass(tmp_path)
        server.triton.missing.clear()
        server.program.concept_models.tokenizer = server
        client.set_image(IMAGE)
        assert len(client.find("cat")) == 2
    assert server.encodes == ["sam3_encoder", "sam3_encoder", "sam3_concept_encoder"]


def test_an_encoder_without_states_is_named(tmp_path) -> None:
    with ConceptServer(repository=write_one_pass(tmp_path, encoder=False)) as server, client_of(server) as client:
        del server.program.concept_models.tokenizer
        with pytest.raises(ModelNotReadyError, match="sam3_encoder has no output backbone_states for sam3_concept_"):
            client.find("cat", image=IMAGE)
        client.set_image(IMAGE)
        client.predict([[3, 3]])
    assert server.encodes == ["sam3_encoder"]


def test_examples_of_another_image_are_uploaded_and_encoded_for_words(concept_server, client) -> None:
    client.find(boxes=[500, 0, 1000, 100], image=IMAGE, example=OTHER)
    upload, first, example, second = concept_server.requests
    assert set(upload.inputs) == {"image"}
    assert first.inputs["example_image"][0] == second.inputs["example_image"][0]
    assert (set(example.inputs), set(second.inputs)) == ({"image", "find"}, {"image", "find", "example_image"})
    assert example.inputs["image"][0] == upload.inputs["image"][0] != second.inputs["image"][0]
    sent = [inputs for role, inputs in concept_server.calls if role == "detector"][-1]
    assert sent["input_boxes"].tolist() == [[[0.75, 0.5, 0.5, 1]]]  # in shares of that image
    assert sent["example_features"][0] != sent["concept_states"][0]


@pytest.mark.parametrize("kind", [SpeculativeSAM2Client, AsyncSAM2TritonClient])
def test_the_async_clients_send_the_same_request(concept_server, client, kind) -> None:
    async def search():
        async with kind(concept_server.url, "sam3") as client:
            find = getattr(client, "find_async", None) or client.find
            return await find("cat", image=IMAGE, boxes=[[1, 2, 9, 9]], box_labels=[0])

    found = asyncio.run(search())
    expected = client.find("cat", image=IMAGE, boxes=[[1, 2, 9, 9]], box_labels=[0])
    assert [(each.label, each.to_rle()) for each in found] == [(each.label, each.to_rle()) for each in expected]
    assert [concept_server.requests[0].inputs["find"][0]] == [concept_server.requests[1].inputs["find"][0]]


def test_mistakes_send_nothing(concept_server, client) -> None:
    with pytest.raises(NoImageError, match="there is no image yet"):
        client.find("cat")
    with pytest.raises(ConfigurationError, match="sam2 cannot search words: use a client with model_type='sam3'"):
        SAM2TritonClient(concept_server.url).find("cat", image=IMAGE)
    with pytest.raises(ConfigurationError, match="the session model, which keeps the image"):
        client_of(concept_server, embeddings="client").find("cat", image=IMAGE)
    assert concept_server.requests == []


def test_what_a_server_lacks_is_named_before_anything_is_sent(concept_server, client) -> None:
    concept_server.lacks = ("find",)
    with pytest.raises(ModelNotReadyError, match=r"sam3 of this server is older than the search for words: .*concepts"):
        client.find("cat", image=IMAGE)
    concept_server.lacks = ("find_logits",)
    with client_of(concept_server) as newer:
        with pytest.raises(ModelNotReadyError, match="older than the logits of found instances: update"):
            newer._detect(check_query("cat"), IMAGE)
        assert concept_server.requests == []
        assert newer.find("cat", image=IMAGE)
    with ImageServer(family="sam3", keeps_images=False) as other, client_of(other) as lone:
        with pytest.raises(ModelNotReadyError, match=r"sam3.* - .*`triton-sam setup sam3 --concepts`"):
            lone.find("cat", image=IMAGE)
        assert other.requests == []


def test_a_server_without_the_models_says_so_before_it_encodes() -> None:
    with ConceptServer(has_models=False) as server, client_of(server) as client:
        with pytest.raises(ModelNotReadyError):
            client.find("cat", image=IMAGE)
        assert server.encodes == []


@pytest.mark.parametrize("content", [b"{", b'{"objects": [{}]}'])
def test_an_answer_that_is_not_as_agreed(concept_server, client, content: bytes) -> None:
    concept_server.altered = lambda model, tensors, *rest: ({**tensors, "result_json": text(content)}, *rest)
    with pytest.raises(InferenceError, match=r"^sam3 answered in an unknown form: the server .*; update it or this c"):
        client.find("cat", image=IMAGE)


# The requests of the session model to its models


def test_texts_are_encoded_once(concept_server, client) -> None:
    image = client.find(["cat", "bus"], image=IMAGE).image
    found = client.find(["bus", "dog", "cat"], image=image)
    assert concept_server.texts == [3, 2, 4]
    assert [each.label for each in found] == ["bus", "bus", "dog", "dog", "cat", "cat"]


def test_a_text_without_instances_computes_no_mask_and_a_limit_holds(concept_server, client) -> None:
    found = client.find(["cat", "bus"], image=IMAGE, threshold=0.95)
    assert found == []
    assert set(concept_server.roles()) == {"detector"}
    assert len(client.find(["cat", "bus", "dog"], image=found.image, limit=1)) == 3


def test_example_boxes_of_this_image(concept_server, client) -> None:
    first, _ = client.find(boxes=[[0, 0, 144, 72], [144, 72, 288, 144]], box_labels=[1, 0], image=IMAGE)
    sent = concept_server.calls[0][1]
    assert sent["input_boxes"].tolist() == [[[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]]
    assert sent["input_boxes_labels"].tolist() == [[1, 0]]
    assert concept_server.texts == [ord("v") - ord("a") + 1]  # "visual"
    assert first.label == ""


@pytest.mark.parametrize(
    ("query", "inputs", "kind"),
    [
        ({}, {"image": image_file()}, PromptError),
        ({"boxes": [300, 0, 400, 9]}, {"image": image_file()}, PromptError),
        ({"text": "cat"}, {}, InputError),
        ({"text": "cat"}, {"image": image_file(), "image_id": b"x"}, InputError),
        ({"text": "cat"}, {"image": image_file(), "output_format": b"rle"}, InputError),
        ({"text": "cat"}, {"image": b"no image"}, ImageError),
        ({"text": "cat"}, {"image_id": b"\xff\xfe"}, UnknownImageError),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_mistake_is_one_error_and_costs_no_search(concept_server, query, inputs, kind) -> None:
    reply = ask(concept_server.program._model, query, **inputs)
    assert isinstance(reply.error, kind)
    assert "\n" not in str(reply.error)
    assert (concept_server.calls, reply.counts["failures"]) == ([], 1)


def test_a_text_that_is_too_long_costs_no_encode(concept_server) -> None:
    reply = ask(concept_server.program._model, {"text": "x" * 21}, image=image_file())
    assert isinstance(reply.error, PromptError)
    assert concept_server.encodes == []


def test_a_family_without_words() -> None:
    assert str(ask(sam2_session(), {"text": "cat"}).error) == "sam2 cannot search words: use a SAM3 model"


def test_a_cancelled_search_ends_before_its_next_call() -> None:
    with ConceptServer(kind="GPU") as server:
        with pytest.raises(TaskCancelledError):
            ask(server.program._model, {"text": ["cat", "dog"]}, lambda: len(server.calls) == 2, image=image_file())
        assert server.roles() == ["detector", "mask_head"]


def test_many_concepts_are_asked_a_few_at_a_time_on_a_gpu() -> None:
    with ConceptServer(kind="GPU") as server, client_of(server) as client:
        assert client.find(list("abcdefghi"), image=IMAGE, threshold=0.95) == []
    assert [len(inputs["text_features"]) for _, inputs in server.calls] == [4, 4, 1]
