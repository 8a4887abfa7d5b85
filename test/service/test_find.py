"""``/v1/images/{id}/find``: words, examples, formats, limits, cancel, problems, and the models that have it."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.conditions import wait_until
from support.drawn_server import NOTHING, SCORES, shapes
from support.running_service import problem

from triton_sam.errors import InferenceError
from triton_sam.masks.rle import mask_to_rle, rle_to_mask
from triton_sam.wire import contract

SAM3 = {"model": "sam3"}
BOX = [10, 10, 50, 60]


SERVICE = {"words": True, "max_searches": 2}


@pytest.fixture
def client(running):
    return running.server


@pytest.fixture(scope="module")
def content(images):
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture(scope="module")
def path(drawn, content):
    return f"/v1/images/{drawn.service.upload(content, model='sam3')['id']}/find"


def searches(running):
    return running.service.app.state.engine.budgets.searches.used


def test_all_instances_of_a_word(http, path, client):
    answer = http.post(path, json={"text": "dog", "threshold": 0.1, **SAM3}).json()
    masks = shapes()
    assert (answer["width"], answer["height"], answer["model"]) == (800, 600, "sam3")
    assert [each["score"] for each in answer["objects"]] == list(SCORES)
    for each, mask in zip(answer["objects"], masks, strict=True):
        np.testing.assert_array_equal(rle_to_mask(each["rle"]), mask)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        left, top, width, height = columns[0], rows[0], np.ptp(columns) + 1, np.ptp(rows) + 1
        assert (each["label"], each["text_index"], each["area"]) == ("dog", 0, mask.sum())
        assert each["bbox"] == [left, top, width, height]
        assert each["box"] == pytest.approx(
            [left + 0.25, top + 0.25, left + width + 0.25, top + height + 0.25], abs=1e-3
        )


def test_several_words_keep_their_order_and_a_model_that_fails_is_named(http, path, client):
    objects = http.post(path, json={"text": ["dog", NOTHING, "cat"], "limit": 1, **SAM3}).json()["objects"]
    assert [(each["label"], each["text_index"]) for each in objects] == [("dog", 0), ("cat", 2)]
    assert http.post(path, json={"text": NOTHING, **SAM3}).json()["objects"] == []
    (found,) = http.post(path, json={"text": "dog", "limit": 1, "format": "polygons", **SAM3}).json()["objects"]
    assert len(found["polygons"][0]) > 8
    client.words.failure = InferenceError("sam3_detector failed")
    assert "sam3_detector" in problem(http.post(path, json={"text": "dog", **SAM3}), 502)["detail"]


def test_the_request_reaches_the_client(http, path, client):
    body = {"text": "dog", "boxes": [BOX, [60, 60, 90, 90]], "box_labels": [1, 0], "nms": 0.7, "limit": 5}
    assert http.post(path, json={**body, "threshold": 0.25, "mask_threshold": 0.6, **SAM3}).status_code == 200
    query = json.loads(client.queries()[-1].to_json())
    assert query == {**body, "text": ["dog"], "threshold": 0.25, "mask_threshold": 0.6}
    assert not {contract.IMAGE, contract.EXAMPLE_IMAGE} & set(client.requests[-1].inputs)  # the upload encoded it


def test_an_image_that_is_not_encoded_is_sent_once(running, http, path, client, content):
    engine = running.service.app.state.engine
    engine.images.get(path.split("/")[3]).embeddings.clear()
    for _ in range(2):
        http.post(path, json={"text": "dog", **SAM3})
    assert [each.inputs[contract.IMAGE][0] for each in client.requests if contract.IMAGE in each.inputs] == [content]


def test_boxes_of_another_image(http, path, client, running, images):
    other = running.service.upload((images / "coffee.jpg").read_bytes())["id"]
    answer = http.post(path, json={"boxes": [BOX], "example_image": other, **SAM3})
    assert {each["label"] for each in answer.json()["objects"]} == {""}
    assert contract.EXAMPLE_IMAGE in client.requests[-1].inputs
    problem(http.post(path, json={"boxes": [BOX], "example_image": "0" * 32, **SAM3}), 404)
    assert (
        "needs boxes or masks"
        in problem(http.post(path, json={"text": "a", "example_image": other, **SAM3}), 422)["detail"]
    )


def test_masks_stand_for_their_boxes(http, path, client):
    mask = np.zeros((600, 800), bool)
    mask[60:90, 30:80] = True
    body = {"boxes": [BOX], "box_labels": [1], "masks": [mask_to_rle(mask)], "mask_labels": [0], **SAM3}
    assert http.post(path, json=body).status_code == 200
    query = client.queries()[-1]
    assert (query.boxes.tolist(), query.box_labels.tolist()) == ([BOX, [30, 60, 80, 90]], [1, 0])
    small = http.post(path, json={"masks": [mask_to_rle(mask[:300])], **SAM3})
    assert "the example masks have 800 x 300 pixels" in problem(small, 422)["detail"]
    endless = {"size": [1_000_000, 1_000_000], "counts": mask_to_rle(mask)["counts"]}
    assert "damaged COCO RLE" in problem(http.post(path, json={"masks": [endless], **SAM3}), 422)["detail"]


def test_geojson_has_labels(http, path, client):
    answer = http.post(path, json={"text": ["dog", "cat"], "limit": 1, "format": "geojson", **SAM3})
    assert answer.headers["content-type"] == "application/geo+json"
    document = answer.json()
    assert document["type"] == "FeatureCollection"
    assert [each["properties"]["label"] for each in document["features"]] == ["dog", "cat"]
    assert document["features"][0]["geometry"]["coordinates"]


REFUSED = (
    ({}, "give a text"),
    ({"text": " "}, "a text is empty"),
    ({"text": ["a"] * 65}, "64"),
    ({"text": 3}, "string"),
    ({"boxes": [BOX], "box_labels": [0]}, "label 1"),
    ({"boxes": [BOX], "box_labels": [1, 1]}, "one label for each"),
    ({"boxes": [[50, 10, 10, 60]]}, "x1 < x2"),
    ({"boxes": [[900, 10, 950, 60]]}, "outside the image"),
    ({"text": "a", "box_labels": [1]}, "need boxes"),
    ({"text": "a", "threshold": 1.5}, "less than or equal to 1"),
    ({"text": "a", "limit": 0}, "greater than or equal to 1"),
    ({"text": ["a"] * 64, "limit": 1000}, "too many for one call"),
    ({"text": "a", "format": "tiff"}, "geojson"),
    ({"words": "a"}, "there is no member 'words'"),
)


def test_a_request_that_cannot_be_used_is_refused(http, path, client):
    for body, text in REFUSED:
        assert text in json.dumps(problem(http.post(path, json={**body, **SAM3}), 422))
        assert not client.queries()


def test_a_model_without_concepts_says_which_one_has_them(http, path, client):
    refused = problem(http.post(path, json={"text": "dog", "model": "sam2"}), 404)
    assert refused["code"] == "no_concepts"
    assert "triton-sam setup sam3 --concepts" in refused["detail"]
    assert {each["name"]: each["finds_concepts"] for each in http.get("/v1/models").json()["models"]} == {
        "sam2": False,
        "sam3": True,
    }


def test_a_search_is_cancelled_by_its_name_and_frees_its_place(running, http, path, client):
    client.words.limit = 0
    cancelled = client.cancelled
    body = {"text": "dog", "session_id": "mine", **SAM3}
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(http.post, path, json=body) for _ in range(2)]
        wait_until(lambda: len(client.queries()) == 2)
        assert problem(http.post(path, json={"text": "dog", **SAM3}), 503)["code"] == "busy"  # max_searches is 2
        assert http.post("/cancel_pending", data={"session_id": "mine"}).text == "2 cancelled"
        for answer in answers:
            problem(answer.result(), 499)
    wait_until(lambda: client.cancelled == cancelled + 2 and searches(running) == 0)
