"""The search for instances inside the session model, without Triton."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from support.fake_concepts import FakeConcepts, NoMaps
from support.fuzzing import NoMetrics, text

from triton_sam.errors import ImageError, InputError, ModelNotReadyError, PromptError, UnknownImageError
from triton_sam.families import get_family
from triton_sam.masks.rle import rle_to_mask
from triton_sam.sessions.cache import ImageCache
from triton_sam.sessions.image.everything import JobCancelledError
from triton_sam.sessions.image.session import SessionModel
from triton_sam.wire.pair import ModelPair


def image_file(shade: int = 0, size: tuple[int, int] = (288, 144)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade,) * 3).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def models() -> FakeConcepts:
    return FakeConcepts()


@pytest.fixture
def pair() -> NoMaps:
    return NoMaps()


@pytest.fixture
def session(models, pair) -> SessionModel:
    return SessionModel(ModelPair(get_family("sam3")), pair, ImageCache(1 << 20), NoMetrics(), "weights", models)


def ask(session: SessionModel, query: dict, stopped=lambda: False, **inputs: bytes):
    tensors = {"find": text(json.dumps(query).encode()), **{name: text(value) for name, value in inputs.items()}}
    return session.find_concepts(tensors, stopped)


def found(reply) -> list[dict]:
    assert reply.error is None, reply.error
    return json.loads(reply.tensors["result_json"][0])["objects"]


def test_instances_have_text_score_box_and_mask(session) -> None:
    reply = ask(session, {"text": ["cat", "bus"]}, image=image_file())
    objects = found(reply)
    assert [(each["text"], each["text_index"]) for each in objects] == [("cat", 0), ("cat", 0), ("bus", 1), ("bus", 1)]
    assert objects[0]["score"] == pytest.approx(0.8807, abs=2e-4)
    assert objects[0]["score"] > objects[1]["score"]
    assert objects[0]["box"] == [0, 0, 144, 72]
    mask = rle_to_mask(objects[0]["segmentation"])  # "c" is the token 3, and the rows of the model are twice as many
    rows, columns = np.nonzero(mask)
    assert (rows.min(), rows.max(), columns.max()) == (12, 15, 7)
    answer = json.loads(reply.tensors["result_json"][0])
    assert answer["image_size"] == reply.tensors["image_size"].tolist() == [288, 144]
    assert answer["image_id"].encode() == reply.tensors["image_id"][0]
    assert "+" not in answer["image_id"]
    assert {"find_ms", "encode_ms"} <= set(answer["timings"])


def test_one_encode_serves_words_and_clicks(session, models, pair) -> None:
    reply = ask(session, {"text": "cat"}, image=image_file())
    image_id = reply.tensors["image_id"][0]
    found(ask(session, {"text": "bus"}, image_id=image_id))
    found(ask(session, {"text": "bus"}, image=image_file()))
    click = session.answer({"image_id": text(image_id), "point_coords": np.float32([[[3, 3]]])})
    assert click.error is None
    assert (models.encodes, pair.encodes) == (1, 0)
    assert reply.counts["encodes"] == 1
    assert click.counts["cache_hits"] == 1


def test_an_image_that_was_only_clicked_must_be_sent_for_words(session, models) -> None:
    image_id = session.answer({"image": text(image_file())}).tensors["image_id"][0]
    reply = ask(session, {"text": "cat"}, image_id=image_id)
    assert isinstance(reply.error, UnknownImageError)
    assert found(ask(session, {"text": "cat"}, image=image_file()))
    assert models.encodes == 1


def test_texts_are_encoded_once(session, models) -> None:
    image_id = ask(session, {"text": ["cat", "bus"]}, image=image_file()).tensors["image_id"][0]
    reply = ask(session, {"text": ["bus", "dog", "cat"]}, image_id=image_id)
    assert models.texts == [3, 2, 4]
    assert reply.counts["text_encodes"] == 1
    assert [each["text"] for each in found(reply)] == ["bus", "bus", "dog", "dog", "cat", "cat"]


def test_a_text_without_instances_computes_no_mask(session, models) -> None:
    assert found(ask(session, {"text": ["cat", "bus"], "threshold": 0.95}, image=image_file())) == []
    assert models.calls == ["detector"]


def test_a_limit(session) -> None:
    assert len(found(ask(session, {"text": ["cat", "bus", "dog"], "limit": 1}, image=image_file()))) == 3


def test_example_boxes_of_this_image(session, models) -> None:
    query = {"boxes": [[0, 0, 144, 72], [144, 72, 288, 144]], "box_labels": [1, 0]}
    (first, second) = found(ask(session, query, image=image_file()))
    assert (first["text"], second["text_index"]) == ("", 0)
    sent = models.inputs[0]
    assert sent["input_boxes"].tolist() == [[[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]]
    assert sent["input_boxes_labels"].tolist() == [[1, 0]]
    assert models.texts == [ord("v") - ord("a") + 1]  # "visual"


def test_example_boxes_of_another_image(session, models) -> None:
    other = ask(session, {"text": "cat"}, image=image_file(9, (1000, 100))).tensors["image_id"][0]
    found(ask(session, {"boxes": [500, 0, 1000, 100]}, image=image_file(), example_image=other))
    sent = models.inputs[-2]
    assert sent["input_boxes"].tolist() == [[[0.75, 0.5, 0.5, 1]]]  # in shares of that image
    assert (sent["example_features"][0], sent["concept_states"][0]) == (1, 2)
    reply = ask(session, {"boxes": [500, 0, 1000, 100]}, image=image_file(), example_image=b"lost")
    assert isinstance(reply.error, UnknownImageError)


@pytest.mark.parametrize(
    ("query", "inputs", "kind"),
    [
        ({}, {"image": image_file()}, PromptError),
        ({"text": "x" * 21}, {"image": image_file()}, PromptError),
        ({"boxes": [300, 0, 400, 9]}, {"image": image_file()}, PromptError),
        ({"text": "cat"}, {}, InputError),
        ({"text": "cat"}, {"image": image_file(), "image_id": b"x"}, InputError),
        ({"text": "cat"}, {"image": image_file(), "output_format": b"rle"}, InputError),
        ({"text": "cat"}, {"image": b"no image"}, ImageError),
        ({"text": "cat"}, {"image_id": b"\xff\xfe"}, UnknownImageError),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_mistake_is_one_error_and_costs_no_search(session, models, query, inputs, kind) -> None:
    reply = ask(session, query, **inputs)
    assert isinstance(reply.error, kind)
    assert "\n" not in str(reply.error)
    assert models.calls == []
    assert reply.counts["failures"] == 1


def test_a_wrong_text_costs_no_encode(session, models) -> None:
    ask(session, {"text": "x" * 21}, image=image_file())
    assert models.encodes == 0


def test_models_that_are_not_there(session, models) -> None:
    models.ready = False
    reply = ask(session, {"text": "cat"}, image=image_file())
    assert isinstance(reply.error, ModelNotReadyError)
    assert models.encodes == 0


def test_a_family_without_words() -> None:
    session = SessionModel(ModelPair(get_family("sam2")), NoMaps(), ImageCache(1 << 20), NoMetrics(), "weights")
    reply = ask(session, {"text": "cat"}, image=image_file())
    assert str(reply.error) == "sam2 cannot search words: ask a model of SAM3"


def test_a_cancelled_search_ends_before_its_next_call(session, models) -> None:
    with pytest.raises(JobCancelledError):
        ask(session, {"text": ["cat", "bus", "dog"]}, lambda: len(models.calls) == 2, image=image_file())
    assert models.calls == ["detector", "mask_head"]


def test_many_concepts_are_asked_a_few_at_a_time(session, models) -> None:
    found(ask(session, {"text": list("abcde"), "threshold": 0.95}, image=image_file()))
    assert [len(inputs["text_features"]) for inputs in models.inputs] == [2, 2, 1]
