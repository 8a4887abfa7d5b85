"""`cvat-cli` with the functions of triton_sam, as the page of docs says, against a made-up CVAT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cvat_program import Run, install_program, runner
from support.fake_cvat import FUNCTION, TASK, running_cvat
from support.tools import AWAY, BOX, CLICK

from triton_sam import SAM2TritonClient
from triton_sam.service.adapters.nuclio_masks import mask_of_points

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

SIZE = 800, 600


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_program(tmp_path_factory.mktemp("cvat"))


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Run:
    return runner(program, tmp_path)


@pytest.fixture(scope="module")
def client(service_triton, images):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(images / "shapes.jpg")
        yield client


def test_it_annotates_a_task(run, service_triton, client, images):
    """It uploads the objects that the client finds."""
    options = {"points_per_side": 4, "stability_score_thresh": 0.5}
    words = ["task", "auto-annotate", str(TASK), "--conf-threshold", "0.3"]
    with running_cvat([images / "shapes.jpg"], "object") as cvat:
        run(cvat.url, *words, kind="everything", url=service_triton.grpc_url, **options)
    assert cvat.unknown == []
    [sent] = cvat.annotations
    found = client.everything(images / "shapes.jpg", pred_iou_thresh=0.3, **options)
    assert found
    assert [(shape["type"], shape["frame"]) for shape in sent["shapes"]] == [("mask", 0)] * len(found)
    for shape, segment in zip(sent["shapes"], found, strict=True):
        assert np.array_equal(mask_of_points(shape["points"], SIZE), segment.mask)


def test_an_agent_answers_clicks_and_boxes(run, service_triton, client, images):
    """It makes the function in CVAT, and then its agent answers the requests that wait there."""
    frame = {"type": "interact", "task": TASK, "frame": 0}
    parameters = {"kind": "interactor", "url": service_triton.grpc_url}
    with running_cvat([images / "shapes.jpg"], "object") as cvat:
        assert run(cvat.url, "function", "create-native", "SAM2", **parameters) == str(FUNCTION)
        cvat.asked += [
            {**frame, "pos_points": [CLICK], "neg_points": [], "obj_bbox": []},
            {**frame, "pos_points": [], "neg_points": [], "obj_bbox": [BOX[:2], BOX[2:]]},
            {**frame, "pos_points": [CLICK], "neg_points": [AWAY], "obj_bbox": [BOX[:2], BOX[2:]]},
        ]
        run(cvat.url, "function", "run-agent", str(FUNCTION), "--burst", **parameters)
    assert (cvat.unknown, cvat.asked) == ([], [])
    prompts = (
        {"point_coords": [CLICK]},
        {"box": BOX},
        {"point_coords": [CLICK, AWAY], "point_labels": [1, 0], "box": BOX},
    )
    for result, prompt in zip(cvat.results, prompts, strict=True):
        [shape] = result["shapes"]
        assert shape["type"] == "mask"
        assert np.array_equal(mask_of_points(shape["points"], SIZE), client.segment(**prompt)[0].mask)
