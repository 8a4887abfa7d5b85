"""The service says of a faulty request which member is wrong, and an adapter uses the names that its tool uses."""

import io
import json

import pytest
from pydantic import TypeAdapter, ValidationError

from triton_sam.families import get_family
from triton_sam.service.adapters.bridge import Target, _segment_request
from triton_sam.service.answers import check_amount
from triton_sam.service.concepts import FindRequest
from triton_sam.service.exports import Export
from triton_sam.service.faults import first_fault
from triton_sam.service.messages import read_message
from triton_sam.service.problems import Problem
from triton_sam.service.schemas import SegmentRequest
from triton_sam.service.videos.schemas import video_prompt

TOLD = (
    (FindRequest, {"text": 5}, "text: Input should be a valid string"),
    (FindRequest, {"text": ["a", 5]}, "text.1: Input should be a valid string"),
    (FindRequest, {"boxes": [[1, 2]]}, "boxes.0: List should have at least 4 items"),
    (FindRequest, {"txt": "a"}, "there is no member 'txt'; the members are text, "),
    (SegmentRequest, [], "Input should be an object"),
)
"""Types, values that do not fit them, and the beginning of what is said of each."""


@pytest.mark.parametrize(("kind", "value", "text"), TOLD)
def test_a_fault_names_the_member_and_not_the_types_of_pydantic(kind, value, text):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert first_fault(caught.value).startswith(text)
    if text.startswith("text"):
        assert first_fault(caught.value, {"text": "words"}).startswith(text.replace("text", "words"))


def test_parts_of_the_service_name_the_place_of_a_fault():
    objects = [{"label": "a\nb", "rle": {"size": [3, 4], "counts": ""}}]
    image = json.dumps({"name": "a.png", "width": 4, "height": 3, "objects": objects}).encode()
    for place, call in (
        ("line 1: objects.0.label: ", lambda: Export.read(io.BytesIO(image), 1 << 20, 1)),
        ("seq: ", lambda: read_message({"type": "segment", "lane": "click", "image": "0"})),
        ("the prompt cannot be used: ", lambda: _segment_request([Target([[1, 1]], [2])], (40, 30), False)),
        ("labels.0: ", lambda: video_prompt(frame=0, object_id=1, points=[[1, 1]], labels=[2])),
    ):
        with pytest.raises(Problem) as caught:
            call()
        assert caught.value.status == 422
        assert caught.value.detail.startswith(place)


# Masks that would take too much memory

SIZE = (20_000, 10_000)  # two masks fit, three do not


def _request(objects, *, multimask):
    return SegmentRequest.model_validate({"objects": [{"points": [[1, 1]]}] * objects, "multimask": multimask})


@pytest.mark.parametrize(("family", "candidates"), [("sam1", 3), ("sam2", 3), ("sam3", 3), ("samhq", 1)])
def test_the_family_says_how_many_candidates_an_object_has(family, candidates):
    check_amount(_request(2, multimask=False), SIZE, get_family(family))
    multimask = _request(1, multimask=True)
    if candidates == 1:
        check_amount(multimask, SIZE, get_family(family))
        return
    with pytest.raises(Problem, match=r"3 masks of 20000 x 10000 pixels are too many for one call"):
        check_amount(multimask, SIZE, get_family(family))


def test_more_objects_than_fit_the_memory_are_refused():
    with pytest.raises(Problem, match=r"3 masks .* send fewer objects"):
        check_amount(_request(3, multimask=False), SIZE, get_family("samhq"))
