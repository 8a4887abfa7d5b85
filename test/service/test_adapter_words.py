"""Words through the adapters of osam and X-AnyLabeling, with a client that finds drawn shapes."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support.fake_everything import shapes
from support.fake_words import NOTHING, SCORES, service_with_words

from triton_sam.masks import mask_to_box


@pytest.fixture(scope="module")
def running():
    with service_with_words(adapters=("osam", "x-anylabeling")) as running:
        yield running


@pytest.fixture
def http(running):
    running[1].reset()
    return running[0].http


@pytest.fixture(scope="module")
def image64(images):
    return base64.b64encode((images / "shapes.jpg").read_bytes()).decode()


def posted(http, path, body):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_osam_finds_texts(http, running, image64):
    prompt = {"texts": ["dog", NOTHING, "cat"]}
    answer = posted(http, "/api/generate", {"model": "sam3:latest", "image": image64, "prompt": prompt})
    annotations = answer["annotations"]
    count = min(len(shapes()), len(SCORES))
    assert [each["text"] for each in annotations] == ["dog", "cat"] * count  # the best of all first
    assert [each["score"] for each in annotations[::2]] == list(SCORES[:count])
    x1, y1, x2, y2 = mask_to_box(shapes()[0])
    assert annotations[0]["bounding_box"] == {"xmin": x1, "ymin": y1, "xmax": x2 - 1, "ymax": y2 - 1}
    with Image.open(io.BytesIO(base64.b64decode(annotations[0]["mask"]))) as part:
        assert np.array_equal(np.asarray(part) > 0, shapes()[0][y1:y2, x1:x2])
    (query, *_) = running[1].asked[0]
    assert (query.texts, query.nms, query.threshold) == (("dog", NOTHING, "cat"), 0.5, 0.1)


def test_osam_limits_the_annotations_of_all_texts(http, image64):
    prompt = {"texts": ["dog", "cat"], "max_annotations": 3, "score_threshold": 0.7, "iou_threshold": None}
    answer = posted(http, "/api/generate", {"model": "sam3", "image": image64, "prompt": prompt})
    assert [(each["text"], each["score"]) for each in answer["annotations"]] == [
        ("dog", SCORES[0]),
        ("cat", SCORES[0]),
        ("dog", SCORES[1]),
    ]


@pytest.mark.parametrize(
    ("prompt", "status", "words"),
    [
        ({"texts": [" "]}, 422, "a text is empty"),
        ({"texts": ["dog"], "score_threshold": 3}, 422, "threshold"),
        ({"texts": ["dog"] * 65}, 422, "text"),
    ],
    ids=["empty", "threshold", "many"],
)
def test_texts_that_cannot_be_searched(http, running, image64, prompt, status, words):
    answer = http.post("/api/generate", json={"model": "sam3", "image": image64, "prompt": prompt})
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert running[1].asked == []


def test_a_model_without_words_says_so(http, image64):
    body = {"model": "sam2", "image": image64, "prompt": {"texts": ["dog"]}}
    answer = http.post("/api/generate", json=body)
    assert answer.status_code == 404
    assert "cannot find words or examples here" in answer.json()["detail"]


def test_x_anylabeling_finds_the_words_of_its_text_field(http, running, image64):
    body = {"model": "sam3", "image": image64, "params": {"text_prompt": "dog, cat.", "conf_threshold": 0.7}}
    found = posted(http, "/x-anylabeling/v1/predict", body)["data"]["shapes"]
    assert [each["label"] for each in found] == ["dog", "dog", "cat", "cat"]
    assert [each["score"] for each in found[:2]] == list(SCORES[:2])
    assert {each["shape_type"] for each in found} == {"polygon"}
    (query, *_) = running[1].asked[0]
    assert (query.texts, query.threshold) == (("dog", "cat"), 0.7)


def test_x_anylabeling_shows_a_text_field_for_models_with_words_only(http):
    models = posted_models(http)
    with_words = [each["name"] for each in models["sam3"]["widgets"]]
    assert with_words[:4] == ["edit_text", "button_send", "input_conf", "edit_conf"]
    assert models["sam3"]["batch_processing_mode"] == "text_prompt"
    others = [models[name] for name in models if name != "sam3"]
    assert all(each["batch_processing_mode"] is None for each in others)
    assert all("edit_text" not in [widget["name"] for widget in each["widgets"]] for each in others)


def posted_models(http):
    answer = http.get("/x-anylabeling/v1/models")
    assert answer.status_code == 200
    return answer.json()["data"]
