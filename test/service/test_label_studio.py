"""Label Studio's protocol: the masks of points, boxes and drawn regions, and background points without their object."""

import numpy as np
import pytest
from support.running_service import posted, running_service
from support.tools import (
    BOX,
    CLICK,
    LABEL_SETUP,
    RING,
    asked_of_label_studio,
    brushed,
    drawn_prompts,
    stroke,
)

from triton_sam.masks.boxes import intersection_over_union
from triton_sam.service.adapters.brush_rle import encode_brush


@pytest.fixture(scope="module")
def http(service_triton):
    with running_service(service_triton.grpc_url, adapters=("label-studio",)) as running:
        yield running.http


def region(kind, x, y, **members):
    """Return a region of Label Studio in an image of 800 x 600 pixels."""
    drawn = {name: members.pop(name) for name in ("points", "rle", "format") if name in members}
    sizes = {
        name: 100 * members.pop(name) / side for name, side in (("width", 800), ("height", 600)) if name in members
    }
    value = {"x": 100 * x / 800, "y": 100 * y / 600, **sizes, **drawn, kind: ["cat"]}
    return {"type": kind, "original_width": 800, "original_height": 600, "value": value, **members}


def test_label_studio(http, image64):
    assert http.get("/label-studio/health").json()["status"] == "UP"
    assert "sam2" in http.post("/label-studio/setup", json={"project": "1.2"}).json()["model_version"]
    assert http.post("/label-studio/webhook", json={"action": "START_TRAINING"}).status_code == 201
    asked = asked_of_label_studio(image64, region("keypointlabels", *CLICK, is_positive=1))
    [result] = posted(http, "/label-studio/predict", asked)["results"][0]["result"]
    assert (result["from_name"], result["to_name"], result["type"]) == ("tag", "image", "brushlabels")
    assert result["value"]["brushlabels"] == ["cat"]


def test_label_studio_with_polygons_and_several_objects(http, image64, triton_client):
    config = LABEL_SETUP.replace("BrushLabels", "PolygonLabels")
    other = [560, 120, 740, 300]
    parts = [
        region("rectanglelabels", box[0], box[1], width=box[2] - box[0], height=box[3] - box[1]) for box in (BOX, other)
    ]
    answer = posted(http, "/label-studio/predict", asked_of_label_studio(image64, *parts, config=config))
    results = answer["results"][0]["result"]
    for result, box in zip(results, (BOX, other), strict=True):
        expected = triton_client.segment(box=box)[0].to_polygons()[0]
        points = np.array(result["value"]["points"]) * [8, 6]
        assert np.allclose(points.ravel(), expected, atol=1e-6)
    assert posted(http, "/label-studio/predict", asked_of_label_studio(image64))["results"] == []


def test_label_studio_refines_what_the_user_draws(http, image64, triton_client):
    """A rough polygon and strokes of a brush become the masks that the client makes of the same prompts."""
    polygon = region("polygonlabels", 0, 0, points=[[x / 8, y / 6] for x, y in RING])
    brush = region("brushlabels", 0, 0, format="rle", rle=encode_brush(stroke()))
    results = []
    for parts in ([polygon], [brush], [brush, region("keypointlabels", 240, 180, is_positive=0), polygon]):
        answer = posted(http, "/label-studio/predict", asked_of_label_studio(image64, *parts))
        results.append([brushed(each) for each in answer["results"][0]["result"]])
    strokes, outline = drawn_prompts(triton_client)
    as_stroked, as_outlined = (triton_client.segment(**prompt)[0] for prompt in (strokes, outline))
    away = {"point_coords": [*strokes["point_coords"], [240, 180]], "point_labels": [1, 0]}
    as_corrected = triton_client.segment(**{**strokes, **away})[0]
    assert np.array_equal(results[0], [as_outlined.mask])
    assert np.array_equal(results[1], [as_stroked.mask])
    assert np.array_equal(results[2], [as_corrected.mask, as_outlined.mask])
    plain = triton_client.segment(strokes["point_coords"])[0]
    assert not np.array_equal(as_stroked.mask, plain.mask)  # the strokes matter
    assert intersection_over_union(as_outlined.mask, triton_client.segment(box=BOX)[0].mask) > 0.9


def test_label_studio_images_come_from_label_studio_alone(http, image64):
    body = asked_of_label_studio(image64, region("keypointlabels", *CLICK))
    for address in ("/data/upload/1/a.jpg", "http://169.254.169.254/latest", "file:///etc/passwd"):
        body["tasks"][0]["data"]["image"] = address
        answer = http.post("/label-studio/predict", json=body)
        assert answer.status_code == 422
        assert "--label-studio-url" in answer.text


def test_a_background_point_alone_corrects_the_object_of_the_call_before(http, image64, triton_client):
    """Label Studio's page sends the point without the box that it stands in."""
    x1, y1, x2, y2 = BOX
    box = region("rectanglelabels", x1, y1, width=x2 - x1, height=y2 - y1, id="abc")
    away = region("keypointlabels", 260, 200, is_positive=0, id="def")

    def found(task, *parts):
        asked = asked_of_label_studio(image64, *parts, task=task)
        [prediction] = posted(http, "/label-studio/predict", asked)["results"]
        return [brushed(each) for each in prediction["result"]]

    found(7, box)
    found(8, region("keypointlabels", *CLICK, is_positive=1, id="ghi"))
    expected = triton_client.segment([[260, 200]], [0], box=BOX)[0]
    assert np.array_equal(found(7, away), [expected.mask])
    refined = triton_client.segment([CLICK, [260, 200]], [1, 0])[0]
    assert np.array_equal(found(8, away), [refined.mask])
    alone = asked_of_label_studio(image64, away, task=9)
    answer = http.post("/label-studio/predict", json=alone)
    assert answer.status_code == 422
    assert "first set a point on it" in answer.text
