"""The adapter of samgeo: masks equal those of the client, and maps keep their place on Earth."""

import io
import json

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

pytest.importorskip("fastapi")
from support.fake_words import SCORES, service_with_words
from support.running_service import running_service
from support.tools import AWAY, BOX, CLICK, filled

from triton_sam import SAM2TritonClient
from triton_sam.service.adapters.samgeo import MODELS

PIXEL, EPSG = 0.5, 32617
LEFT, TOP = 571_666.4475 - PIXEL * CLICK[0], 5_539_109.8152 + PIXEL * CLICK[1]
DEGREES = [-80, 50]
"""The place of the click, as PROJ computes it."""
FEW_POINTS = {"points_per_side": 4, "pred_iou_thresh": 0.3, "stability_score_thresh": 0.5}


@pytest.fixture(scope="module")
def http(service_triton):
    with running_service(service_triton.grpc_url, adapters=("samgeo",)) as running:
        yield running.http


@pytest.fixture(scope="module")
def map_file(picture):
    """The picture as a GeoTIFF: pixels of half a metre in zone 17 of UTM."""
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, EPSG)
    values = {33550: (12, (PIXEL, PIXEL, 0.0)), 33922: (12, (0.0, 0.0, 0.0, LEFT, TOP, 0.0)), 34735: (3, keys)}
    for number, (kind, value) in values.items():
        directory.tagtype[number] = kind
        directory[number] = value
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        image.save(buffer, "TIFF", tiffinfo=directory)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def client(service_triton, map_file):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(map_file)
        yield client


def posted(http, call, file, **fields):
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return http.post(f"/segment/{call}", files={"file": ("image", file)}, data=texts)


def on_map(x, y):
    return [LEFT + PIXEL * x, TOP - PIXEL * y]


def test_points_in_pixels_make_geojson_on_the_map(http, client, map_file):
    answer = posted(http, "predict", map_file, model_version="sam2", point_coords=[CLICK], point_labels="[1]")
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["crs"]["properties"]["name"].endswith(f"EPSG::{EPSG}")
    [feature] = document["features"]
    [expected] = client.segment([CLICK], [1])
    assert feature["properties"] == {"value": 1, "score": round(expected.score, 5), "area": expected.area}
    geometry = feature["geometry"]
    polygons = [geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"]
    rings = [(np.array(ring) - [LEFT, TOP]) / [PIXEL, -PIXEL] for polygon in polygons for ring in polygon]
    assert np.array_equal(filled(rings, expected.mask.shape), expected.mask)


def test_points_and_boxes_on_the_map(http, map_file):
    def mask(**fields):
        answer = posted(http, "predict", map_file, model_version="sam2", output_format="png", **fields)
        assert answer.status_code == 200, answer.text
        with Image.open(io.BytesIO(answer.content)) as image:
            return np.asarray(image) > 0

    clicked = mask(point_coords=[CLICK])
    assert np.array_equal(mask(point_coords=[on_map(*CLICK)], point_crs=f"EPSG:{EPSG}"), clicked)
    far = mask(point_coords=[DEGREES], point_crs="epsg:4326")
    assert np.count_nonzero(far != clicked) < 0.002 * clicked.sum()  # the point is a millimetre away
    box = [*on_map(BOX[0], BOX[3]), *on_map(BOX[2], BOX[1])]
    assert np.array_equal(mask(boxes=box, point_crs=f"EPSG:{EPSG}"), mask(boxes=[BOX]))


def test_label_maps_are_geotiff_and_png(http, client, map_file):
    tifffile = pytest.importorskip("tifffile")
    boxes = [BOX, [AWAY[0] - 90, AWAY[1] - 90, AWAY[0] + 90, AWAY[1] + 90]]
    form = {"model_version": "sam2", "boxes": boxes}
    answer = posted(http, "predict", map_file, output_format="geotiff", **form)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/tiff")
    expected = np.zeros((600, 800), np.uint8)
    for number, box in enumerate(boxes, 1):
        expected[client.segment(box=box)[0].mask] = number
    with tifffile.TiffFile(io.BytesIO(answer.content)) as file:
        assert np.array_equal(file.asarray(), expected)
        tags = file.pages.first.geotiff_tags
    assert tags["ProjectedCSTypeGeoKey"] == EPSG
    assert (tags["ModelPixelScale"][:2], tags["ModelTiepoint"][3:5]) == ([PIXEL, PIXEL], [LEFT, TOP])
    answer = posted(http, "predict", map_file, output_format="png", unique="false", **form)
    with Image.open(io.BytesIO(answer.content)) as image:
        assert np.array_equal(np.asarray(image), 255 * (expected > 0))


def test_boxes_as_answers(http, client, picture, map_file):
    form = {"model_version": "sam2", "point_coords": [CLICK], "multimask_output": "true"}
    best = max(client.predict([CLICK], [1])[1])  # the scores of the three candidates
    found = posted(http, "predict", picture, output_format="json", **form).json()
    assert (found["image_width"], found["image_height"], found["num_detections"]) == (800, 600, 1)
    [detection] = found["detections"]
    x1, y1, x2, y2 = detection["bbox"]
    assert (detection["width"], detection["height"]) == (x2 - x1, y2 - y1)
    assert abs(detection["score"] - best) < 0.02
    document = posted(http, "predict", map_file, output_format="detections", **form).json()
    assert document["crs"] == f"EPSG:{EPSG}"
    corners = document["features"][0]["geometry"]["coordinates"][0]
    assert corners == [on_map(*each) for each in ((x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1))]


def test_everything_within_sizes(http, picture):
    form = {"model_version": "sam2", "model_id": "", "output_format": "json", **FEW_POINTS}
    everything = posted(http, "automatic", picture, **form).json()["detections"]
    sizes = [each["value"] for each in everything]
    assert sizes == list(range(1, len(everything) + 1))
    assert len(everything) >= 2
    fewer = posted(http, "automatic", picture, min_size=20_000, **form)
    assert fewer.status_code == 404 or len(fewer.json()["detections"]) < len(everything)
    none = posted(http, "automatic", picture, min_size=10**9, **form)
    assert (none.status_code, none.json()["detail"][:16]) == (404, "No objects found")


def test_many_deep_channels_become_an_image(http, picture):
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("zarr")
    with Image.open(io.BytesIO(picture)) as image:
        pixels = np.asarray(image.convert("RGB"))
    deep = np.concatenate([pixels, pixels[:, :, :1]], axis=2).astype(np.uint16) * 257
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, deep, photometric="rgb", extrasamples=["unspecified"])
    form = {"model_version": "sam2", "point_coords": [CLICK], "output_format": "png"}
    found = posted(http, "predict", buffer.getvalue(), **form)
    assert found.status_code == 200, found.text
    with Image.open(io.BytesIO(found.content)) as image:
        assert np.asarray(image)[CLICK[1], CLICK[0]] == 1


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, 400, "At least one of"),
        ({"point_coords": "[[1, 2"}, 422, "no JSON"),
        ({"point_coords": "[[1, 2, 3]]"}, 422, "2 finite numbers"),
        ({"point_coords": "[[NaN, 2]]"}, 422, "2 finite numbers"),
        ({"point_coords": "[[1, 2]]", "point_crs": "EPSG:4326"}, 422, "no GeoTIFF"),
        ({"point_coords": "[[1, 2]]", "point_crs": "mars"}, 422, "EPSG:4326"),
        ({"point_coords": "[[1, 2]]", "point_labels": "[1, 0]"}, 422, "labels"),
        ({"point_coords": "[[1, 2]]", "boxes": "[[1, 2, 3, 4], [5, 6, 7, 8]]"}, 422, "one box"),
        ({"point_coords": "[[1, 2]]", "output_format": "svg"}, 422, "output_format"),
        ({"point_coords": "[[1, 2]]", "model_version": "sam9"}, 422, "model_version"),
        ({"point_coords": "[[1, 2]]", "model_version": "sam2", "model_id": "x"}, 400, "sam2-hiera-tiny"),
        ({"point_coords": "[[1, 2]]", "model_version": "sam3"}, 404, "there is no model"),
        ({"point_coords": "[" * 100_000}, 422, "no JSON"),
    ],
)
def test_forms_that_cannot_be_used(http, picture, fields, status, words):
    answer = posted(http, "predict", picture, **fields)
    assert (answer.status_code, set(answer.json())) == (status, {"detail"})
    assert words in answer.json()["detail"]


def test_points_outside_of_every_system(http, map_file):
    form = {"model_version": "sam2", "point_crs": "EPSG:4326"}
    for point, words in (([500, 1], "longitude"), ([120, 1], "too far")):
        answer = posted(http, "predict", map_file, point_coords=[point], **form)
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True)
    answer = posted(http, "predict", map_file, point_coords=[[1, 2]], point_crs="EPSG:3857")
    assert f"EPSG:{EPSG}" in answer.json()["detail"]


def test_bodies_that_are_no_form_with_an_image(http, picture):
    assert http.post("/segment/text", json={}).status_code == 415
    assert http.post("/segment/text", data={"prompt": "dog"}, files={"other": b"1"}).status_code == 422
    assert posted(http, "predict", b"", point_coords=[[1, 2]]).status_code == 400
    assert posted(http, "predict", b"II*\0no", point_coords=[[1, 2]]).status_code == 415
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert http.post("/segment/text", content=b"--x\r\nno", headers=broken).status_code in (400, 422)


def test_words_and_examples(picture):
    with service_with_words(adapters=("samgeo",)) as (running, words):
        answer = posted(
            running.http, "text", picture, prompt="building", confidence_threshold=0.7, output_format="json"
        )
        assert [each["score"] for each in answer.json()["detections"]] == list(SCORES[:2])
        assert words.asked[0][0].texts == ("building",)
        answer = posted(running.http, "predict", picture, boxes=BOX, output_format="json")
        assert answer.status_code == 200, answer.text
        assert words.asked[1][0].boxes.tolist() == [[88, 68, 312, 292]]
        assert posted(running.http, "text", picture).status_code == 422


def test_every_size_has_a_name_in_our_words():
    assert MODELS["sam2"]["sam2-hiera-base-plus"] == "base_plus"
