"""A call of the service whose masks would take too much memory."""

import pytest

pytest.importorskip("fastapi")

from triton_sam.families import get_family
from triton_sam.service.answers import check_amount
from triton_sam.service.problems import Problem
from triton_sam.service.schemas import SegmentRequest

SIZE = (20_000, 10_000)  # two masks fit, three do not


def _request(objects: int, *, multimask: bool) -> SegmentRequest:
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
