"""Searches of other tools, for words and for everything, with clients that find drawn shapes."""

import asyncio
import threading

import numpy as np
import pytest
from support import cvat_requests
from support.drawn_server import NOTHING, SCORES, objects, shapes
from support.running_service import posted
from support.tools import TOOLS, asked_of_label_studio, brushed, geojson_mask, near, osam_mask

from triton_sam._common import strict_json
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.adapters import roboflow_concepts
from triton_sam.service.adapters.registry import ADAPTERS

SHAPE = (600, 800)
COUNT = len(shapes())
WHOLE_BOX = {"x": 1, "y": 1, "width": 9, "height": 9}
CONFIG = """<View><Image name="image" value="$image"/><BrushLabels name="tag" toName="image"><Label value="Dog"/>
<Label value="cat"/></BrushLabels><TextArea name="words" toName="image"/></View>"""


SERVICE = {"words": True, "videos": False, "adapters": tuple(ADAPTERS), "cvat_words": ("dog", NOTHING)}


@pytest.mark.parametrize("name", TOOLS)
def test_words_are_found_with_labels_and_scores(http, running, image64, name):
    tool = TOOLS[name]
    path, body = tool.word_request(image64)
    answer = posted(http, path, body, headers=tool.word_headers)
    found = [(label, round(score, 4)) for label, score in tool.word_answer(answer)]
    assert found == [("dog", score) for score in SCORES[:2]]
    query = running.server.queries()[0]
    assert query.texts in (("dog", NOTHING), ("dog",))
    assert query.threshold == (0.3 if name == "label-studio" else 0.7)


def test_masks_of_words_are_those_that_were_found(http, image64):
    masks = {}
    for name in ("osam", "roboflow", "cvat", "label-studio", "qupath"):
        path, body = TOOLS[name].word_request(image64)
        masks[name] = posted(http, path, body, headers=TOOLS[name].word_headers)
    wanted = shapes()[0]
    *bits, x1, y1, x2, y2 = masks["cvat"][0]["mask"]
    assert np.array_equal(np.reshape(bits, (y2 - y1 + 1, x2 - x1 + 1)), wanted[y1 : y2 + 1, x1 : x2 + 1])
    assert np.array_equal(osam_mask(masks["osam"]["annotations"][0], SHAPE), wanted)
    assert np.array_equal(rle_to_mask(masks["roboflow"]["prompt_results"][0]["predictions"][0]["masks"]), wanted)
    assert np.array_equal(brushed(masks["label-studio"]["results"][0]["result"][0]), wanted)
    assert near(geojson_mask(masks["qupath"][0], SHAPE), wanted)


def test_everything_is_found(http, image64):
    found = posted(http, "/sam/automask/", {"type": "sam2_t", "b64img": image64})
    assert [each["properties"]["object_idx"] for each in found] == list(range(len(shapes())))
    assert near(geojson_mask(found[0], SHAPE), objects()[0])
    name = "triton-sam-sam2-everything"
    [label] = cvat_requests.read_functions(http)[name]
    [request] = cvat_requests.calls_of(name)
    for each, mask in zip(cvat_requests.send(http, request, image64), objects(), strict=False):
        *bits, x1, y1, x2, y2 = each["mask"]
        assert each["label"] == label
        assert np.array_equal(np.reshape(bits, (y2 - y1 + 1, x2 - x1 + 1)), mask[y1 : y2 + 1, x1 : x2 + 1])


def test_answers_with_many_objects_are_written_by_workers(http, image64, picture, monkeypatch):
    """Writing JSON blocks all threads, so each object is written apart, and none on the event loop."""
    dumps, by_workers, by_the_loop = strict_json.dumps, [], []

    def noted(value, **options):
        text = dumps(value, **options)
        if asyncio._get_running_loop() is not None:
            by_the_loop.append(text)
        elif threading.current_thread().name.startswith("triton-sam-") and "parameters" not in value:
            by_workers.append(text)  # not a request to Triton
        return text

    monkeypatch.setattr(strict_json, "dumps", noted)
    image = http.post("/v1/images", files={"image": picture}).json()["id"]
    calls = [
        ("/sam/automask/", {"type": "sam2_t", "b64img": image64}, {}),
        ("/api/function_invocations", {"image": image64}, {"x-nuclio-function-name": "triton-sam-sam2-everything"}),
        (f"/v1/images/{image}/everything", {"format": "polygons"}, {}),
        (f"/v1/images/{image}/everything", {"format": "polygons"}, {"accept": "text/event-stream"}),
    ]
    for path, body, headers in calls:
        for texts in (by_workers, by_the_loop):
            texts.clear()
        assert http.post(path, json=body, headers=headers).status_code == 200
        assert len(by_workers) == COUNT, path
        assert all(len(text) < 1000 for text in by_the_loop), path


REFUSED = (
    ("osam", {"texts": [" "]}, 422, "a text is empty"),
    ("osam", {"texts": ["dog"], "score_threshold": 3}, 422, "prompt.score_threshold: "),
    ("osam", {"texts": ["dog"] * 65}, 422, "prompt.texts: "),
    ("osam", {"texts": ["dog"], "max_annotations": 0}, 422, "prompt.max_annotations: "),
    ("osam", {"texts": ["dog"], "iou_threshold": 2}, 422, "prompt.iou_threshold: "),
    ("osam of sam2", {"texts": ["dog"]}, 404, "cannot find words or examples here"),
    ("roboflow", {"prompts": []}, 422, "prompts"),
    ("roboflow", {"prompts": [{"type": "text"}]}, 422, "a text, boxes, or both"),
    ("roboflow", {"prompts": [{"boxes": [{"x": 1}]}]}, 422, "x, y, width and height"),
    ("roboflow", {"prompts": [{"text": "dog", "boxes": [WHOLE_BOX], "box_labels": [1, 1]}]}, 422, "box_labels"),
    ("roboflow", {"prompts": [{"text": "dog", "boxes": [{**WHOLE_BOX, "x": 5000}]}]}, 422, "lies outside"),
    ("roboflow", {"prompts": [{"text": "dog", "output_prob_thresh": 7}]}, 422, "output_prob_thresh"),
    ("qupath", {"text_prompt": None}, 422, "send a text_prompt, positive_bboxes, or both"),
    ("x-anylabeling", {"text_prompt": "dog", "conf_threshold": 2}, 422, "params.conf_threshold: "),
)
"""Requests of tools, and the status and a part of the answer that refuses each."""


def test_words_that_cannot_be_searched(http, running, image64):
    for tool, members, status, words in REFUSED:
        if tool.startswith("osam"):
            model = "sam2" if tool.endswith("sam2") else "sam3"
            path, body = "/api/generate", {"model": model, "image": image64, "prompt": members}
        elif tool == "roboflow":
            path, body = "/sam3/concept_segment", {"image": {"value": image64}, **members}
        elif tool == "x-anylabeling":
            path, body = "/x-anylabeling/v1/predict", {"model": "sam3", "image": image64, "params": members}
        else:
            path, body = "/sam/sam3/", {"b64img": image64, **members}
        answer = http.post(path, json=body)
        assert (answer.status_code, words in answer.text) == (status, True), (tool, members, answer.text)
    assert running.server.queries() == []


# --- what one tool has -----------------------------------------------------------------------------------------------


def test_osam_limits_the_annotations_of_all_texts(http, image64):
    prompt = {"texts": ["dog", "cat"], "max_annotations": 3, "score_threshold": 0.7, "iou_threshold": None}
    answer = posted(http, "/api/generate", {"model": "sam3", "image": image64, "prompt": prompt})
    best_of_all = [("dog", SCORES[0]), ("cat", SCORES[0]), ("dog", SCORES[1])]
    assert [(each["text"], round(each["score"], 4)) for each in answer["annotations"]] == best_of_all


def test_roboflow_and_qupath_find_examples(http, running, image64):
    prompts = [
        {"type": "visual", "boxes": [{"x": 10, "y": 20, "width": 30, "height": 40}], "box_labels": [True]},
        {"text": "dog", "boxes": [{"x0": 1, "y0": 2, "x1": 800, "y1": 600}], "box_labels": [0]},
    ]
    body = {"image": {"type": "base64", "value": image64}, "prompts": prompts, "output_prob_thresh": 0.5}
    results = posted(http, "/sam3/concept_segment", body)["prompt_results"]
    assert [len(result["predictions"]) for result in results] == [sum(score > 0.5 for score in SCORES[:COUNT]), 0]
    assert results[0]["echo"] == {"prompt_index": 0, "type": "visual", "text": None, "num_boxes": 1}
    boxes = {"positive_bboxes": [[1, 2, 3, 4]], "negative_bboxes": None}
    posted(http, "/sam/sam3/", {"type": "sam3", "b64img": image64, "text_prompt": "dog", **boxes})
    asked = [(query.texts, query.boxes.tolist(), query.box_labels.tolist()) for query in running.server.queries()]
    assert asked == [
        ((), [[10, 20, 40, 60]], [1]),
        (("dog",), [[1, 2, 800, 600]], [0]),
        (("dog",), [[1, 2, 4, 6]], [1]),
    ]


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
    assert [round(each["confidence"], 4) for each in first["predictions"]] == list(SCORES[:2])
    assert [round(each["confidence"], 4) for each in second["predictions"]] == list(SCORES[2:COUNT])
    assert all(each["format"] == "polygon" for each in second["predictions"])
    assert [name.startswith("triton-sam") for name in threads] == [True]  # a worker: everybody else goes on meanwhile


def test_cvat_lists_a_detector_with_the_words_as_labels(http, image64):
    functions = cvat_requests.read_functions(http)
    name = "triton-sam-sam3-words"
    assert {each: labels for each, labels in functions.items() if each.endswith("-words")} == {name: ["dog", NOTHING]}
    [request] = cvat_requests.calls_of(name)
    found = cvat_requests.send(http, request, image64)
    assert [(each["label"], float(each["confidence"])) for each in found] == [("dog", score) for score in SCORES[:2]]


def test_label_studio_finds_its_labels_in_tasks_without_a_click(http, running, image64):
    body = {**asked_of_label_studio(image64, config=CONFIG), "params": {}}
    body["tasks"] = [{**body["tasks"][0], "id": number} for number in (1, 2)]
    predictions = posted(http, "/label-studio/predict", body)["results"]
    assert len(predictions) == 2
    names = [each["value"]["brushlabels"][0] for each in predictions[0]["result"]]
    assert names == sorted(names, key=["Dog", "cat"].index)
    assert set(names) == {"Dog", "cat"}
    assert [query.texts for query in running.server.queries()] == [("Dog", "cat")] * 2
    without = CONFIG.replace('<Label value="Dog"/>', "").replace('<Label value="cat"/>', "")
    assert posted(http, "/label-studio/predict", {**body, "label_config": without})["results"] == []
    region = {"type": "textarea", "value": {"text": ["dog, zebra"]}}  # a label in another case, and a word without one
    answer = posted(http, "/label-studio/predict", asked_of_label_studio(image64, region, config=CONFIG))
    assert [label for each in answer["results"][0]["result"] for label in each["value"]["brushlabels"]] == ["Dog"] * 4


def test_label_studio_finds_all_of_many_labels_and_refuses_too_many_words(http, running, image64):
    empty = "".join(f'<Label value="{NOTHING} {number}"/>' for number in range(69))
    many = CONFIG.replace('<Label value="cat"/>', f'{empty}<Label value="cat"/>')
    body = {**asked_of_label_studio(image64, config=many), "params": {}}
    found = posted(http, "/label-studio/predict", body)["results"][0]["result"]
    names = {each["value"]["brushlabels"][0] for each in found}
    assert [len(query.texts) for query in running.server.queries()] == [64, 7]
    assert names == {"Dog", "cat"}
    region = {"type": "textarea", "value": {"text": [", ".join(map(str, range(65)))]}}
    answer = http.post("/label-studio/predict", json={**body, "params": {"context": {"result": [region]}}})
    assert (answer.status_code, "65 words" in answer.text) == (422, True)
