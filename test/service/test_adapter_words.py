"""Words through the adapters, with a client that finds drawn shapes."""

import base64
import io
import threading

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support import cvat_requests
from support.fake_everything import shapes
from support.fake_words import NOTHING, SCORES, service_with_words
from support.tools import brushed

from triton_sam.masks import mask_to_box
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.adapters import roboflow_concepts
from triton_sam.service.adapters.registry import ADAPTERS

COUNT = min(len(shapes()), len(SCORES))
WHOLE_BOX = {"x": 1, "y": 1, "width": 9, "height": 9}
CONFIG = """<View><Image name="image" value="$image"/><BrushLabels name="tag" toName="image"><Label value="Dog"/>
<Label value="cat"/></BrushLabels><TextArea name="words" toName="image"/></View>"""


@pytest.fixture(scope="module")
def running():
    with service_with_words(adapters=tuple(ADAPTERS), cvat_words=("dog", NOTHING)) as running:
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


REFUSED: tuple[tuple[str, dict, int, str], ...] = (
    ("osam", {"texts": [" "]}, 422, "a text is empty"),
    ("osam", {"texts": ["dog"], "score_threshold": 3}, 422, "threshold"),
    ("osam", {"texts": ["dog"] * 65}, 422, "text"),
    ("osam of sam2", {"texts": ["dog"]}, 404, "cannot find words or examples here"),
    ("roboflow", {"prompts": []}, 422, "prompts"),
    ("roboflow", {"prompts": [{"type": "text"}]}, 422, "a text, boxes, or both"),
    ("roboflow", {"prompts": [{"boxes": [{"x": 1}]}]}, 422, "x, y, width and height"),
    ("roboflow", {"prompts": [{"text": "dog", "boxes": [WHOLE_BOX], "box_labels": [1, 1]}]}, 422, "box_labels"),
    ("roboflow", {"prompts": [{"text": "dog", "boxes": [{**WHOLE_BOX, "x": 5000}]}]}, 422, "lies outside"),
    ("roboflow", {"prompts": [{"text": "dog", "output_prob_thresh": 7}]}, 422, "output_prob_thresh"),
    ("qupath", {"text_prompt": None}, 422, "send a text_prompt, positive_bboxes, or both"),
)
"""Requests of tools, and the status and a part of the answer that refuses each."""


def test_words_that_cannot_be_searched(http, running, image64):
    for tool, members, status, words in REFUSED:
        if tool.startswith("osam"):
            model = "sam2" if tool.endswith("sam2") else "sam3"
            path, body = "/api/generate", {"model": model, "image": image64, "prompt": members}
        elif tool == "roboflow":
            path, body = "/sam3/concept_segment", {"image": {"value": image64}, **members}
        else:
            path, body = "/sam/sam3/", {"b64img": image64, **members}
        answer = http.post(path, json=body)
        assert answer.status_code == status, (tool, members)
        assert words in answer.json()["message" if tool == "roboflow" else "detail"]
    assert running[1].asked == []


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


def test_roboflow_finds_words_and_examples(http, running, image64):
    prompts = [
        {"type": "text", "text": "dog"},
        {"type": "text", "text": NOTHING},
        {"type": "text", "text": "cat", "output_prob_thresh": 0.7},
        {"type": "visual", "boxes": [{"x": 10, "y": 20, "width": 30, "height": 40}], "box_labels": [True]},
        {"text": "dog", "boxes": [{"x0": 1, "y0": 2, "x1": 800, "y1": 600}], "box_labels": [0]},
    ]
    body = {"image": {"type": "base64", "value": image64}, "prompts": prompts, "format": "rle"}
    results = posted(http, "/sam3/concept_segment", {**body, "output_prob_thresh": 0.5})["prompt_results"]
    confidences = [[each["confidence"] for each in result["predictions"]] for result in results]
    above = [score for score in SCORES[:COUNT] if score > 0.5]
    assert confidences == [above, [], list(SCORES[:2]), above, []]
    assert np.array_equal(rle_to_mask(results[0]["predictions"][0]["masks"]), shapes()[0])
    assert results[3]["echo"] == {"prompt_index": 3, "type": "visual", "text": None, "num_boxes": 1}
    searches = [query for query, _, _ in running[1].asked]
    assert [query.texts for query in searches] == [("dog", NOTHING), ("cat",), (), ("dog",)]
    assert searches[2].boxes.tolist() == [[10, 20, 40, 60]]
    assert (searches[3].boxes.tolist(), searches[3].box_labels.tolist()) == ([[1, 2, 800, 600]], [0])


def test_roboflow_keeps_the_best_of_all_prompts(http, image64, monkeypatch):
    threads = []
    suppress = roboflow_concepts._best_of_all

    def watched(*values):
        threads.append(threading.current_thread().name)
        return suppress(*values)

    monkeypatch.setattr(roboflow_concepts, "_best_of_all", watched)
    prompts = [{"text": "dog", "output_prob_thresh": 0.7}, {"text": "cat"}]
    body = {"image": {"value": image64}, "prompts": prompts, "nms_iou_threshold": 0.9, "output_prob_thresh": 0}
    first, second = posted(http, "/sam3/concept_segment", body)["prompt_results"]
    assert [each["confidence"] for each in first["predictions"]] == list(SCORES[:2])
    assert [each["confidence"] for each in second["predictions"]] == list(SCORES[2:COUNT])
    assert all(each["format"] == "polygon" for each in second["predictions"])
    assert [name.startswith("triton-sam") for name in threads] == [True]  # a worker: everybody else goes on meanwhile


def test_qupath_finds_words_and_examples(http, running, image64):
    body = {"type": "sam3", "b64img": image64, "text_prompt": "dog", "confidence_threshold": 0.7}
    found = posted(http, "/sam/sam3/", {**body, "positive_bboxes": [[1, 2, 3, 4]], "negative_bboxes": None})
    assert [each["properties"]["quality"] for each in found] == list(SCORES[:2])
    assert [each["properties"]["object_idx"] for each in found] == [0, 1]
    assert {each["geometry"]["type"] for each in found} <= {"Polygon", "MultiPolygon"}
    (query, *_) = running[1].asked[0]
    assert (query.texts, query.boxes.tolist(), query.threshold) == (("dog",), [[1, 2, 4, 6]], 0.7)


def test_cvat_lists_a_detector_with_the_words_as_labels(http, running, image64):
    functions = cvat_requests.read_functions(http)
    name = "triton-sam-sam3-words"
    assert {each: labels for each, labels in functions.items() if each.endswith("-words")} == {name: ["dog", NOTHING]}
    [request] = cvat_requests.calls_of(name)
    found = cvat_requests.send(http, request, image64)
    assert [(each["label"], float(each["confidence"])) for each in found] == [("dog", score) for score in SCORES[:2]]
    *bits, x1, y1, x2, y2 = found[0]["mask"]
    assert np.array_equal(np.reshape(bits, (y2 - y1 + 1, x2 - x1 + 1)), shapes()[0][y1 : y2 + 1, x1 : x2 + 1])
    assert running[1].asked[0][0].texts == ("dog", NOTHING)


def task(image64, number=1):
    return {"id": number, "data": {"image": f"data:image/jpeg;base64,{image64}"}}


def test_label_studio_finds_the_words_of_a_text_area(http, running, image64):
    region = {"type": "textarea", "value": {"text": ["dog, zebra"]}}
    body = {"tasks": [task(image64)], "label_config": CONFIG, "params": {"context": {"result": [region]}}}
    answer = posted(http, "/label-studio/predict", body)
    results = answer["results"][0]["result"]
    expected = [score for score in SCORES[:COUNT] if score > 0.3]
    assert [each["value"]["brushlabels"] for each in results] == [["Dog"]] * len(expected) + [[]] * len(expected)
    assert [each["score"] for each in results] == expected * 2
    assert np.array_equal(brushed(results[0]), shapes()[0])
    assert "sam3" in answer["model_version"]
    assert running[1].asked[0][0].texts == ("dog", "zebra")


def test_label_studio_finds_its_labels_in_tasks_without_a_click(http, running, image64):
    body = {"tasks": [task(image64), task(image64, 2)], "label_config": CONFIG, "params": {}}
    predictions = posted(http, "/label-studio/predict", body)["results"]
    assert len(predictions) == 2
    names = [each["value"]["brushlabels"][0] for each in predictions[0]["result"]]
    assert names == sorted(names, key=["Dog", "cat"].index)
    assert set(names) == {"Dog", "cat"}
    assert [query.texts for query, _, _ in running[1].asked] == [("Dog", "cat")] * 2
    without = CONFIG.replace('<Label value="Dog"/>', "").replace('<Label value="cat"/>', "")
    assert posted(http, "/label-studio/predict", {**body, "label_config": without})["results"] == []


def test_label_studio_finds_all_of_many_labels_and_refuses_too_many_words(http, running, image64):
    many = CONFIG.replace('<Label value="cat"/>', "".join(f'<Label value="kind {number}"/>' for number in range(70)))
    body = {"tasks": [task(image64)], "label_config": many, "params": {}}
    found = posted(http, "/label-studio/predict", body)["results"][0]["result"]
    names = {each["value"]["brushlabels"][0] for each in found}
    assert [len(query.texts) for query, _, _ in running[1].asked] == [64, 7]
    assert {"Dog", "kind 69"} <= names
    region = {"type": "textarea", "value": {"text": [", ".join(map(str, range(65)))]}}
    answer = http.post("/label-studio/predict", json={**body, "params": {"context": {"result": [region]}}})
    assert (answer.status_code, "65 words" in answer.text) == (422, True)
