"""The modern face of the service and its limits, on a real Triton."""

import base64
import io
import threading

import numpy as np
import pytest
from PIL import Image
from support.problems import problem

from triton_sam import Cleanup, SAM2TritonClient
from triton_sam.masks.rle import rle_to_mask

pytest.importorskip("fastapi")


POINT = {"points": [[200, 180]]}
BOXES = [[90, 70, 310, 290], [430, 60, 700, 230]]


@pytest.fixture(scope="module")
def client(service_triton, picture):
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(picture)
        yield client


def test_an_image_is_uploaded_once(service, picture, image):
    assert (image["width"], image["height"], image["bytes"], image["models"]) == (800, 600, len(picture), ["sam2"])
    encodes = service.metric("triton_sam_service_encodes_total")
    answer = service.http.post("/v1/images", files={"image": picture})
    assert answer.json() == image
    assert answer.headers["location"] == f"/v1/images/{image['id']}"
    assert service.metric("triton_sam_service_encodes_total") == encodes
    assert service.http.get(f"/v1/images/{image['id']}").json() == image


@pytest.mark.parametrize("kind", ["image/jpeg", "application/octet-stream", "IMAGE/PNG; name=x"])
def test_the_body_may_be_the_image_itself(service, image, picture, kind):
    answer = service.http.post("/v1/images", content=picture, headers={"content-type": kind})
    assert answer.status_code == 201
    assert answer.json()["id"] == image["id"]


def test_an_upload_by_several_at_a_time_is_encoded_once(service):
    buffer = io.BytesIO()  # a picture that no other test has uploaded
    Image.fromarray(np.random.default_rng(7).integers(0, 256, (60, 80, 3), np.uint8)).save(buffer, "PNG")
    content = buffer.getvalue()
    encodes = service.metric("triton_sam_service_encodes_total")
    threads = [threading.Thread(target=service.upload, args=(content,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert service.metric("triton_sam_service_encodes_total") == encodes + 1


def test_masks_equal_the_python_clients(segment, client):
    expected = client.segment([[200, 180], [300, 60]], [1, 0])[0]
    answer = segment({"points": [[200, 180], [300, 60]], "labels": [1, 0]}).json()
    (mask,) = answer["masks"]
    np.testing.assert_array_equal(rle_to_mask(mask["rle"]), expected.mask)
    assert mask["score"] == pytest.approx(expected.score)
    assert mask["area"] == expected.area
    x1, y1, x2, y2 = expected.box
    assert mask["bbox"] == [x1, y1, x2 - x1, y2 - y1]
    assert (answer["model"], answer["width"], answer["height"]) == ("sam2", 800, 600)


def test_several_objects_and_three_candidates(segment, client):
    expected = client.segment(box=BOXES, multimask_output=True)
    answer = segment({"objects": [{"box": box} for box in BOXES], "multimask": True}).json()
    assert [(mask["object"], mask["candidate"]) for mask in answer["masks"]] == [
        (o, c) for o in (0, 1) for c in range(3)
    ]
    for mask, wanted in zip(answer["masks"], expected, strict=True):
        np.testing.assert_array_equal(rle_to_mask(mask["rle"]), wanted.mask)


def test_objects_with_different_numbers_of_points(segment, client):
    coords = [[[200, 180]], [[520, 145], [690, 200]]]
    expected = client.segment(coords, [[1], [1, 0]])
    answer = segment({"objects": [{"points": coords[0]}, {"points": coords[1], "labels": [1, 0]}]}).json()
    for mask, wanted in zip(answer["masks"], expected, strict=True):
        np.testing.assert_array_equal(rle_to_mask(mask["rle"]), wanted.mask)


def test_as_many_points_as_the_session_model_takes(segment):
    answer = segment({"points": [[200, 180]] * 1022, "box": [90, 70, 310, 290]})
    assert answer.status_code == 200, answer.text


def test_a_mask_is_refined(segment, client):
    logits = client.predict([[200, 180]], [1])[0][0, 0]
    expected = client.segment([[150, 120]], [1], mask_input=logits)[0]
    first = segment({**POINT, "logits": True}).json()["masks"][0]["logits"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(first["data"]), "<f4").reshape(256, 256), logits)
    second = segment({"points": [[150, 120]], "mask": first}).json()["masks"][0]
    np.testing.assert_array_equal(rle_to_mask(second["rle"]), expected.mask)


def test_masks_are_cleaned(segment, client):
    options = {"max_hole_area": 30, "max_sprinkle_area": 30, "smooth": 3, "keep_clicked": True, "clip_to_box": True}
    prompt = {"points": [[200, 180]], "box": [150, 120, 260, 240]}
    expected = client.segment(prompt["points"], box=prompt["box"], cleanup=Cleanup(**options))[0]
    mask = segment({**prompt, "cleanup": options}).json()["masks"][0]
    np.testing.assert_array_equal(rle_to_mask(mask["rle"]), expected.mask)
    assert mask["area"] < segment(prompt).json()["masks"][0]["area"]
    refused = segment({**prompt, "cleanup": {"smooth": 200}})
    assert (refused.status_code, refused.json()["errors"][0]["where"]) == (422, "body.cleanup.smooth")


@pytest.mark.parametrize(
    ("accept", "asked", "kind"),
    [
        ("image/png", None, "image/png"),
        ("application/geo+json", None, "application/geo+json"),
        ("application/json", "geojson", "application/geo+json"),
        ("text/html,application/xhtml+xml,image/png;q=0.3,*/*;q=0.5", None, "application/json"),
        ("text/html,application/json;q=0,image/*;q=0.8,*/*;q=0.5", None, "image/png"),
        ("*/*", "png", "application/json"),
        ("image/png", "png", "image/png"),
        ("*/*", "polygons", "application/json"),
    ],
)
def test_forms_of_masks(segment, client, accept, asked, kind):
    expected = client.segment([[200, 180]], [1])[0]
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


def test_a_picture_of_several_objects_holds_their_numbers(segment, client):
    expected = client.segment(box=BOXES)
    answer = segment({"objects": [{"box": box} for box in BOXES]}, accept="image/png")
    with Image.open(io.BytesIO(answer.content)) as png:
        labels = np.asarray(png)
    np.testing.assert_array_equal(labels == 2, expected[1].mask)
    np.testing.assert_array_equal(labels == 1, expected[0].mask & ~expected[1].mask)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "nothing to go by: give `points`, `box`, or both"),
        ({"point_coords": [[1, 2]]}, "no member 'point_coords'; the members are points, labels, box, objects, mask,"),
        (
            {"objects": [{"point": [1, 2]}]},
            "body.objects.0: there is no member 'point'; the members are points, labels, box",
        ),
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
        ({"points": [[1, 2]], "model": "sam9"}, "sam9"),
        ({"points": [[1, 2]] * 2000}, "points"),
        ({"points": [[1, 2]] * 1023, "box": [1, 1, 5, 5]}, "1025 points: one call takes 1024"),
        ({"objects": [{"points": [[1, 2]] * 100}] + [{"points": [[1, 2]]}] * 10}, "1100 points"),
    ],
)
def test_prompts_that_cannot_be_used(segment, body, word):
    answer = segment(body)
    members = problem(answer, 404 if "model" in body else 422)
    assert word in members["detail"]


def test_wrong_requests(service, image, segment):
    segment_url = f"/v1/images/{image['id']}/segment"
    cut = service.http.post(segment_url, content=b"{", headers={"content-type": "application/json"})
    assert "line 1, column 2" in problem(cut, 422)["detail"]
    lines = service.http.post(
        segment_url, content=b'{"points":\n  [[1,, 2]]}', headers={"content-type": "application/json"}
    )
    assert "the body is no JSON: line 2, column 7" in problem(lines, 422)["detail"]
    for kind in ({}, {"content-type": "text/plain"}, {"content-type": "image/png"}):
        answer = problem(service.http.post(segment_url, content=b'{"points": [[1, 2]]}', headers=kind), 415)
        assert "application/json" in answer["detail"]
        assert answer["code"] == "content_type"
    problem(service.http.post(segment_url, content=b"\xff\xfe"), 415)
    problem(service.http.post(segment_url, json=[1]), 422)
    problem(segment(POINT, accept="text/html"), 406)
    problem(service.http.get(segment_url), 405)
    problem(service.http.get("/nowhere"), 404)
    for answer in (service.http.get("/v1/images/xyz"), service.http.post("/v1/images/xyz/segment", json=POINT)):
        assert problem(answer, 404)["code"] == "unknown_image"
    assert problem(service.http.get("/v1/videos/xyz"), 404)["code"] == "unknown_video"
    assert problem(service.http.get(f"/v1/images/{'0' * 32}"), 404)["code"] == "unknown_image"
    assert problem(service.http.post(f"/v1/images/{'0' * 32}/segment", json=POINT), 404)["code"] == "unknown_image"
    assert "there is no image" in problem(service.http.post("/v1/images"), 422)["detail"]
    assert "`image`" in problem(service.http.post("/v1/images", files={"file": b"x"}), 422)["detail"]
    for size in (1, 2 << 20):  # more than a form's field may have by default
        answer = service.http.post("/v1/images", files={"image": (None, b"x" * size)})
        assert "with a file name" in problem(answer, 422)["detail"]
    answer = service.http.post("/prediction", files={"image": (None, b"x")}, data={"x": 1, "y": 1})
    assert problem(answer, 422)["detail"] == "body.image: send it as a file, with a file name"
    for text in (b"A" * 99, b"data:image/png;base64,AAAA"):
        assert "base64" in problem(service.http.post("/v1/images", files={"image": text}), 415)["detail"]
    assert "multipart/form-data" in problem(service.http.post("/v1/images", json={}), 415)["detail"]
    problem(service.http.post("/v1/images", headers={"content-type": "multipart/form-data"}, content=b"x"), 400)


def test_everything_equals_the_python_clients(service, client, image, picture):
    low = {"points_per_side": 4, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.8}
    answer = service.http.post(f"/v1/images/{image['id']}/everything", json=low).json()
    expected = {each.point: each.mask for each in client.everything(picture, **low)}
    assert answer["points"] == 16
    assert len(answer["objects"]) == len(expected) > 0
    for each in answer["objects"]:
        assert np.array_equal(rle_to_mask(each["rle"]), expected[tuple(each["point"])])
    none = service.http.post(f"/v1/images/{image['id']}/everything", json={**low, "pred_iou_thresh": 1}).json()
    assert none["objects"] == []
    assert "pred_iou_thresh dropped" in none["detail"]


@pytest.mark.parametrize("size", [(1, 1), (20_000, 20)], ids=str)
def test_everything_in_images_of_odd_sizes(service, size):
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    path = f"/v1/images/{service.upload(buffer.getvalue())['id']}/everything"
    answer = service.http.post(
        path, json={"points_per_side": 2, "pred_iou_thresh": 0, "stability_score_thresh": 0}
    ).json()
    assert answer["objects"]
    assert all(each["rle"]["size"] == [*size[::-1]] for each in answer["objects"])
    assert answer["points"] == 4
    none = problem(service.http.post(path, json={"points_per_side": 0}), 422)
    assert none["errors"][0]["where"] == "body.points_per_side"
