"""The modern face of the service and its limits, on a real Triton."""

import base64
import io
import threading

import numpy as np
import pytest
from PIL import Image
from support.running_service import problem

from triton_sam.masks.rle import rle_to_mask
from triton_sam.service import engine as engine_module

POINT = {"points": [[200, 180]]}
BOXES = [[90, 70, 310, 290], [430, 60, 700, 230]]


def test_an_image_is_uploaded_once(service, picture, image):
    assert (image["width"], image["height"], image["bytes"], image["models"]) == (800, 600, len(picture), ["sam2"])
    encodes = service.metric("triton_sam_service_encodes_total")
    answer = service.http.post("/v1/images", files={"image": picture})
    assert answer.json() == image
    assert answer.headers["location"] == f"/v1/images/{image['id']}"
    assert service.metric("triton_sam_service_encodes_total") == encodes
    assert service.http.get(f"/v1/images/{image['id']}").json() == image
    for kind in ("image/jpeg", "application/octet-stream", "IMAGE/PNG; name=x"):  # the body may be the image itself
        answer = service.http.post("/v1/images", content=picture, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["id"]) == (201, image["id"])


@pytest.mark.slow
def test_as_many_points_as_the_session_model_takes(segment):
    answer = segment({"points": [[200, 180]] * 1022, "box": [90, 70, 310, 290]})
    assert answer.status_code == 200, answer.text


def test_a_mask_is_refined(segment, triton_client):
    logits = triton_client.predict([[200, 180]], [1])[0][0, 0]
    expected = triton_client.segment([[150, 120]], [1], mask_input=logits)[0]
    first = segment({**POINT, "logits": True}).json()["masks"][0]["logits"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(first["data"]), "<f4").reshape(256, 256), logits)
    second = segment({"points": [[150, 120]], "mask": first}).json()["masks"][0]
    np.testing.assert_array_equal(rle_to_mask(second["rle"]), expected.mask)


@pytest.mark.parametrize(
    ("accept", "asked", "kind"),
    [
        ("image/png", None, "image/png"),
        ("application/geo+json", None, "application/geo+json"),
        ("application/json", "geojson", "application/geo+json"),
        ("text/html,application/xhtml+xml,image/png;q=0.3,*/*;q=0.5", None, "application/json"),
        ("text/html,application/json;q=0,image/*;q=0.8,*/*;q=0.5", None, "image/png"),
        ("*/*", "png", "application/json"),
        ("*/*", "polygons", "application/json"),
    ],
)
def test_forms_of_masks(segment, triton_client, accept, asked, kind):
    expected = triton_client.segment([[200, 180]], [1])[0]
    answer = segment({**POINT, "format": asked}, accept=accept)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].split(";")[0] == kind
    if kind == "image/png":
        content = answer.content
    elif asked == "png":
        content = base64.b64decode(answer.json()["masks"][0]["png"])
    elif asked == "polygons":
        assert answer.json()["masks"][0]["polygons"] == expected.to_polygons()
        return
    elif kind == "application/json":
        assert answer.json()["masks"][0]["rle"] == expected.to_rle()
        return
    else:
        (feature,) = answer.json()["features"]
        rings = [ring for polygon in feature["geometry"]["coordinates"] for ring in polygon]
        assert feature["geometry"]["type"] == "MultiPolygon"
        assert rings
        assert all(ring[0] == ring[-1] for ring in rings)
        return
    with Image.open(io.BytesIO(content)) as png:
        np.testing.assert_array_equal(np.asarray(png) == 255, expected.mask)


def test_a_picture_of_several_objects_holds_their_numbers(segment, triton_client):
    expected = triton_client.segment(box=BOXES)
    answer = segment({"objects": [{"box": box} for box in BOXES]}, accept="image/png")
    with Image.open(io.BytesIO(answer.content)) as png:
        labels = np.asarray(png)
    np.testing.assert_array_equal(labels == 2, expected[1].mask)
    np.testing.assert_array_equal(labels == 1, expected[0].mask & ~expected[1].mask)


UNUSABLE = (
    ({}, "the prompt is empty: give `points`, `box`, or both"),
    ({"point_coords": [[1, 2]]}, "no member 'point_coords'; the members are points, labels, box, objects, mask,"),
    ({"objects": [{"point": [1]}]}, "body.objects.0: there is no member 'point'; the members are points, labels, box"),
    ({"points": [[900, 10]]}, "outside"),
    ({"points": [[1, 2, 3]]}, "points"),
    ({"points": [[1, 2]], "labels": [1, 0]}, "one label"),
    ({"points": [[1, 2]], "labels": [7]}, "labels"),
    ({"box": [10, 10, 5, 5]}, "swapped"),
    ({"objects": []}, "objects"),
    ({"objects": [{"points": [[1, 2]]}, {"box": [1, 2, 3, 4]}]}, "all"),
    ({"objects": [{"points": [[1, 2]]}], "points": [[1, 2]]}, "either"),
    ({"points": [[1, 2]], "mask": {"data": "!", "size": 256}}, "mask.data"),
    ({"points": [[1, 2]], "colour": "red"}, "colour"),
    ({"points": [[1, 2]], "model": "sam9" * 25}, f"there is no model {'sam9' * 20!r}: choose one of sam2"),
    ({"points": [[1, 2]] * 2000}, "points"),
    ({"points": [[1, 2]] * 1023, "box": [1, 1, 5, 5]}, "1025 points: one call takes 1024"),
    ({"objects": [{"points": [[1, 2]] * 100}] + [{"points": [[1, 2]]}] * 10}, "1100 points"),
    ({**POINT, "cleanup": {"smooth": 200}}, "body.cleanup.smooth"),
    ({**POINT, "cleanup": {"smooth": True}}, "body.cleanup.smooth"),
    ({"points": [[True, 5]]}, "body.points.0.0"),
)
"""Bodies of a request for masks, and a part of what the answer says."""
JSON = {"content-type": "application/json"}
SEGMENT = "/v1/images/{id}/segment"
NO_IMAGE = "0" * 32
WRONG = (
    ("POST", SEGMENT, {"content": b"{", "headers": JSON}, 422, "body.1: this is not JSON"),
    ("POST", SEGMENT, {"content": b'{"points":\n  [[1,, 2]]}', "headers": JSON}, 422, "body.17: this is not JSON"),
    ("POST", SEGMENT, {"content": b'{"points": [[1, 2]]}'}, 415, "application/json"),
    ("POST", SEGMENT, {"content": b"{}", "headers": {"content-type": "image/png"}}, 415, "application/json"),
    ("POST", SEGMENT, {"content": b"\xff\xfe"}, 415, ""),
    ("POST", SEGMENT, {"json": [1]}, 422, ""),
    ("POST", SEGMENT, {"json": POINT, "headers": {"accept": "text/html"}}, 406, ""),
    ("GET", SEGMENT, {}, 405, ""),
    ("GET", "/nowhere", {}, 404, ""),
    ("GET", "/v1/images/xyz", {}, 404, "unknown_image"),
    ("POST", "/v1/images/xyz/segment", {"json": POINT}, 404, "unknown_image"),
    ("GET", "/v1/videos/xyz", {}, 404, "unknown_video"),
    ("GET", f"/v1/images/{NO_IMAGE}", {}, 404, "unknown_image"),
    ("POST", f"/v1/images/{NO_IMAGE}/segment", {"json": POINT}, 404, "unknown_image"),
    ("POST", "/v1/images", {}, 422, "there is no image"),
    ("POST", "/v1/images", {"files": {"file": b"x"}}, 422, "`image`"),
    ("POST", "/v1/images", {"files": {"image": (None, b"x")}}, 422, "with a file name"),
    # More than a form's field may have by default.
    ("POST", "/v1/images", {"files": {"image": (None, b"x" * (2 << 20))}}, 422, "with a file name"),
    ("POST", "/prediction", {"files": {"image": (None, b"x")}, "data": {"x": 1, "y": 1}}, 422, "with a file name"),
    ("POST", "/v1/images", {"files": {"image": b"A" * 99}}, 415, "base64"),
    ("POST", "/v1/images", {"files": {"image": b"data:image/png;base64,AAAA"}}, 415, "base64"),
    ("POST", "/v1/images", {"json": {}}, 415, "multipart/form-data"),
    ("POST", "/v1/images", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, ""),
)
"""Requests, and the status and a part of the problem that answers them."""


def test_requests_that_cannot_be_used_are_answered_with_their_problem(service, image, segment):
    for body, words in UNUSABLE:
        members = problem(segment(body), 404 if "model" in body else 422)
        assert words in members["detail"] or words in [each["where"] for each in members["errors"]], body
    for method, path, sent, status, words in WRONG:
        members = problem(service.http.request(method, path.format(id=image["id"]), **sent), status)
        assert words in members["detail"] or words == members["code"], (path, sent)
        assert status != 415 or "/segment" not in path or members["code"] == "content_type"


def test_images_are_hashed_in_a_thread(service, monkeypatch, images):
    threads, original = [], engine_module.id_of

    def id_of(content):
        threads.append(threading.current_thread())
        return original(content)

    monkeypatch.setattr("triton_sam.service.engine.id_of", id_of)
    service.upload((images / "shapes.jpg").read_bytes())
    assert "asyncio" in threads[0].name
