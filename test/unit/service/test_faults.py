"""The service explains the faults of a request in plain words, and an adapter uses the names that its tool uses."""

import io
import json

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

pytest.importorskip("fastapi")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from triton_sam.service.adapters import roboflow_concepts
from triton_sam.service.adapters.bridge import Target, _segment_request
from triton_sam.service.adapters.cvat_tracker import TrackCall
from triton_sam.service.concepts import FindRequest
from triton_sam.service.exports import Export
from triton_sam.service.faults import fault_text, first_fault, install
from triton_sam.service.messages import read_message
from triton_sam.service.problems import Problem
from triton_sam.service.schemas import SegmentRequest
from triton_sam.service.videos.schemas import video_prompt


def _told(kind, value):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    return first_fault(caught.value)


def _refused(call):
    with pytest.raises(Problem) as caught:
        call()
    assert caught.value.status == 422
    return caught.value.detail


TOLD = (
    (FindRequest, {"text": 5}, "text: Input should be a valid string"),
    (FindRequest, {"text": ["a", 5]}, "text.1: Input should be a valid string"),
    (FindRequest, {"text": ["a"] * 65}, "text: it must have at most 64 items"),
    (FindRequest, {"boxes": [[1, 2]]}, "boxes.0: it must have at least 4 items"),
    (FindRequest, {"text": "a", "example_image": "1"}, "example_image: an id has 32 hexadecimal digits"),
    (TrackCall, {"image": "a", "shapes": [5]}, "shapes.0: it must be an object"),
    (roboflow_concepts.ConceptRequest, {"prompts": []}, "prompts: it must have at least 1 item"),
    (SegmentRequest, [], "it must be an object"),
    (
        SegmentRequest,
        {"objects": [{"points": [[1, 1]] * 2000}]},
        "objects.0.points: it must have at most 1024 items",
    ),
)
"""Types, values that do not fit them, and what is said of each."""


def test_faults_are_told_in_plain_words():
    for kind, value, text in TOLD:
        assert _told(kind, value) == text


def test_a_fault_takes_one_line_of_few_characters():
    class Names(BaseModel):
        members: dict[str, int]

    assert len(_told(Names, {"members": {"x" * 10_000: "y"}})) < 200
    assert fault_text({}) == "not valid"


def test_a_label_with_a_control_character_is_no_pattern():
    image = {
        "name": "a.png",
        "width": 4,
        "height": 3,
        "objects": [{"label": "a\nb", "rle": {"size": [3, 4], "counts": ""}}],
    }
    text = _refused(lambda: Export.read(io.BytesIO(json.dumps(image).encode()), 1 << 20, 1))
    assert text == "line 1: objects.0.label: it has a character that is not allowed"


def test_a_message_of_the_page_is_told_without_its_type():
    text = _refused(lambda: read_message({"type": "segment", "lane": "click", "image": "0"}))
    assert text == "seq: it is missing"


def test_labels_of_a_prompt_are_named():
    known = "2 is unknown: use 1 (foreground) or 0 (background)"
    assert known in _refused(lambda: _segment_request([Target([[1, 1]], [2])], (40, 30), False))
    assert known in _refused(lambda: video_prompt(frame=0, object_id=1, points=[[1, 1]], labels=[2]))


def test_a_request_of_the_rest_api_is_told_in_plain_words():
    app = FastAPI()
    install(app)

    @app.post("/find")
    def find(body: FindRequest) -> None:
        pytest.fail(f"{body} was taken")

    client = TestClient(app)
    answer = client.post("/find", json={"text": 5})
    assert (answer.status_code, answer.json()["detail"]) == (422, "body.text: Input should be a valid string")
    assert {each["where"] for each in answer.json()["errors"]} == {"body.text"}
    assert client.post("/find").json()["detail"] == "body: it is missing"
    assert client.post("/find", json={"txt": 5}).json()["errors"][0]["where"] == "body.txt"
