"""Adapters: the masks of each tool's form equal those of the client, and its errors have the form of the tool."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support import cvat_requests
from support.running_service import running_service
from support.tools import (
    BOX,
    CLICK,
    asked_of_label_studio,
    base64_of,
    brushed,
    filled,
    filled_each,
    near,
    without_holes,
    without_specks,
)

from triton_sam import SAM2TritonClient
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.adapters import bridge
from triton_sam.service.adapters.registry import ADAPTERS
from triton_sam.service.adapters.roboflow import pixel_polygons
from triton_sam.service.everything.schemas import EverythingRequest

FEW_POINTS = {"points_per_side": 4, "pred_iou_thresh": 0.3, "stability_score_thresh": 0.5}


@pytest.fixture(scope="module")
def running(service_triton):
    with running_service(service_triton.grpc_url, adapters=tuple(ADAPTERS)) as running:
        yield running


@pytest.fixture(scope="module")
def http(running):
    return running.http


@pytest.fixture(scope="module")
def image64(picture):
    return base64_of(picture)


@pytest.fixture(scope="module")
def client(service_triton, picture):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(picture)
        yield client


@pytest.fixture(scope="module")
def clicked(client):
    return client.segment([CLICK], [1])[0]


@pytest.fixture(scope="module")
def boxed(client):
    return client.segment(box=BOX)[0]


def posted(http, path, body, **options):
    answer = http.post(path, json=body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_qupath(http, image64, client, clicked):
    body = {"type": "sam2_bp", "b64img": image64, "point_coords": [CLICK], "point_labels": [1], "bbox": None}
    [feature] = posted(http, "/sam/", body)
    parts = feature["geometry"]["coordinates"]
    rings = parts if feature["geometry"]["type"] == "Polygon" else [ring for part in parts for ring in part]
    assert len(rings) < len(clicked.to_polygons())  # the demo model answers with specks
    assert near(filled(rings, clicked.mask.shape), without_specks(clicked.mask))
    assert feature["properties"]["quality"] == pytest.approx(clicked.score, abs=1e-6)
    candidates = posted(http, "/sam/", {**body, "multimask_output": True})
    expected = [each for each in client.segment([CLICK], [1], multimask_output=True) if each.box]
    assert [each["properties"]["quality"] for each in candidates] == pytest.approx([each.score for each in expected])


def test_qupath_refines_a_mask(http, image64, clicked):
    body = {"type": "sam2_t", "b64img": image64, "point_coords": [CLICK], "point_labels": [1]}
    [plain] = posted(http, "/sam/", body)
    [refined] = posted(http, "/sam/", {**body, "b64mask": base64_of(clicked.to_png())})
    assert refined["properties"]["quality"] != plain["properties"]["quality"]


def test_qupath_finds_everything(http, image64):
    found = posted(http, "/sam/automask/", {"type": "sam2_t", "b64img": image64, **FEW_POINTS})
    assert found
    assert [each["properties"]["object_idx"] for each in found] == list(range(len(found)))


def test_qupath_asks_for_weights(http):
    assert http.get("/sam/version/").text.count(".") == 2
    listed = http.get("/sam/weights/").json()
    assert {each["type"] for each in listed} == {"sam2_l", "sam2_bp", "sam2_s", "sam2_t"}
    assert [each["type"] for each in http.get("/sam/weights/", params={"type": "sam2_l"}).json()] == ["sam2_l"]
    assert http.get("/sam/progress/").json() == {"message": None, "percent": -1}
    assert http.get("/sam/weights/cancel/").status_code == 200
    refused = http.post("/sam/weights/", json={"type": "vit_h", "name": "x", "url": "https://elsewhere.example"})
    assert refused.status_code == 403
    assert "triton-sam setup" in refused.json()["detail"]


def test_roboflow(http, image64, clicked, boxed):
    x1, y1, x2, y2 = BOX
    box = {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1}
    prompts = [{"points": [{"x": CLICK[0], "y": CLICK[1], "positive": True}]}, {"box": box}]
    body = {"image": {"type": "base64", "value": image64}, "prompts": {"prompts": prompts}, "multimask_output": False}
    predictions = posted(http, "/sam2/segment_image", {**body, "format": "rle"})["predictions"]
    for prediction, expected in zip(predictions, (clicked, boxed), strict=True):
        assert np.array_equal(rle_to_mask(prediction["masks"]), expected.mask)
        assert prediction["confidence"] == pytest.approx(expected.score, abs=1e-6)
    polygons = posted(http, "/sam2/segment_image", {**body, "prompts": prompts})["predictions"]
    assert polygons[0]["masks"] == pixel_polygons(clicked.mask)


def test_roboflow_refines_the_masks_of_earlier_calls(http, image64, client):
    points = [{"x": CLICK[0], "y": CLICK[1], "positive": True}, {"x": 260, "y": 200, "positive": False}]
    body = {"image": {"value": image64}, "format": "rle", "multimask_output": False, "load_logits_from_cache": True}

    def asked(count, **more):
        answer = posted(http, "/sam2/segment_image", {**body, "prompts": [{"points": points[:count]}], **more})
        return rle_to_mask(answer["predictions"][0]["masks"])

    first = client.segment([CLICK], [1])[0]
    both = [CLICK, [260, 200]], [1, 0]
    plain, refined = client.segment(*both)[0].mask, client.segment(*both, mask_input=first.logits)[0].mask
    assert not np.array_equal(plain, refined)
    asked(1)
    assert np.array_equal(asked(2), plain)  # nothing was saved
    assert np.array_equal(asked(1, save_logits_to_cache=True), first.mask)
    assert np.array_equal(asked(2), refined)
    assert np.array_equal(asked(2, load_logits_from_cache=False), plain)


def test_roboflow_keeps_an_image_by_its_id(http, image64):
    image = {"type": "base64", "value": image64}
    assert posted(http, "/sam2/embed_image", {"image": image, "image_id": "mine"})["image_id"] == "mine"
    prompts = [{"points": [{"x": CLICK[0], "y": CLICK[1], "positive": True}]}]
    assert posted(http, "/sam2/segment_image", {"image_id": "mine", "prompts": prompts})["predictions"]
    unknown = http.post("/sam2/segment_image", json={"image_id": "another", "prompts": prompts})
    assert unknown.status_code == 422
    assert "image_id" in unknown.json()["message"]


def test_roboflow_prefers_a_known_id_to_the_image_beside_it(running, picture, image64, clicked):
    """Its contract wants an image in each request, so clients send a placeholder beside the id."""
    http, file = running.http, io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    image, pixel = {"value": image64}, {"value": base64_of(file.getvalue())}
    prompts = [{"points": [{"x": CLICK[0], "y": CLICK[1], "positive": True}]}]
    named = {"image_id": "known", "prompts": prompts, "format": "rle", "multimask_output": False}

    def found(**members):
        [prediction] = posted(http, "/sam2/segment_image", {**named, **members})["predictions"]
        return rle_to_mask(prediction["masks"])

    assert np.array_equal(found(image=image), clicked.mask)  # the first one gives the id its image
    for placeholder in (pixel, {"value": "none"}, {"type": "url", "value": "https://elsewhere.example"}):
        assert np.array_equal(found(image=placeholder), clicked.mask)
    posted(http, "/sam2/embed_image", {"image": pixel, "image_id": "known"})
    assert np.array_equal(found(), clicked.mask)
    assert http.delete(f"/v1/images/{running.upload(picture)['id']}").status_code == 204
    assert http.post("/sam2/segment_image", json=named).status_code == 404
    assert found(image=pixel).shape == (1, 1)  # what the id stood for is gone


def test_x_anylabeling(http, image64, clicked, boxed):
    models = http.get("/x-anylabeling/v1/models").json()["data"]
    assert "button_add_point" in [each["name"] for each in models["sam2"]["widgets"]]
    assert http.get("/x-anylabeling/v1/models/sam2/info").json()["data"]["model_id"] == "sam2"
    assert http.get("/x-anylabeling/health").json()["status"] == "healthy"
    for mark, expected in (
        ({"type": "point", "data": CLICK, "label": 1}, clicked),
        ({"type": "rectangle", "data": BOX, "label": 1}, boxed),
    ):
        body = {"model": "sam2", "image": f"data:image/jpeg;base64,{image64}", "params": {"marks": [mark]}}
        answer = posted(http, "/x-anylabeling/v1/predict", body)
        rings = [shape["points"] for shape in answer["data"]["shapes"]]
        assert answer["success"] is True
        assert all(ring[0] == ring[-1] for ring in rings)
        assert near(filled_each(rings, expected.mask.shape), without_holes(without_specks(expected.mask, 0.2)), 2)
    assert posted(http, "/x-anylabeling/v1/predict", {"model": "sam2", "image": image64})["data"]["shapes"] == []


def test_cvat(http, image64, client):
    """The clicks and boxes that CVAT's own gateway sent."""
    functions = cvat_requests.read_functions(http)
    assert functions["triton-sam-sam2"] == []
    for request in cvat_requests.calls_of("triton-sam-sam2"):
        sent = request["body"]
        box = None if sent["obj_bbox"] is None else [*sent["obj_bbox"][0], *sent["obj_bbox"][1]]
        labels = [1] * len(sent["pos_points"]) + [0] * len(sent["neg_points"])
        [expected] = client.segment([*sent["pos_points"], *sent["neg_points"]] or None, labels or None, box=box)[:1]
        answer = cvat_requests.send(http, request, image64)
        assert np.array_equal(np.array(answer["mask"], bool), expected.mask)
        assert answer["points"] == np.reshape(expected.to_polygons()[0], (-1, 2)).tolist()


@pytest.mark.slow
def test_cvat_finds_everything(http, image64, monkeypatch):
    monkeypatch.setattr(bridge, "EverythingRequest", partial(EverythingRequest, points_per_side=6))
    name = "triton-sam-sam2-everything"
    [label] = cvat_requests.read_functions(http)[name]
    [request] = cvat_requests.calls_of(name)
    found = cvat_requests.send(http, request, image64)
    assert found
    for each in found:
        *bits, x1, y1, x2, y2 = each["mask"]
        assert each["label"] == label
        assert len(bits) == (x2 - x1 + 1) * (y2 - y1 + 1)
        assert set(bits) <= {0, 1}


TOOLS = (
    ("/api/generate", "detail"),
    ("/sam/", "detail"),
    ("/sam2/segment_image", "message"),
    ("/label-studio/predict", ""),
)


def test_errors_have_the_form_of_the_tool(http):
    for path, member in TOOLS:
        for content in (b"", b"{", b"[]", b"{}", b'{"image": 3, "b64img": 3, "tasks": 3}', b"[" * 100_000):
            answer = http.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 422), answer.text
            if answer.status_code == 422:
                assert answer.json()[member] if member else answer.text
                assert "problem+json" not in answer.headers["content-type"]


def test_only_json_is_read(http):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = http.post("/api/generate", content=b"{}", headers={"content-type": kind})
        assert (answer.status_code, set(answer.json())) == (415, {"detail"})


def test_errors_of_x_anylabeling_and_cvat(http, image64):
    answer = http.post("/x-anylabeling/v1/predict", json={"model": "another", "image": image64})
    assert (answer.status_code, answer.json()["success"]) == (404, False)
    assert answer.json()["error"]["code"] == "UNKNOWN_MODEL"
    answer = http.post("/api/function_invocations", json={"image": image64}, headers={"x-nuclio-function-name": "no"})
    assert (answer.status_code, set(answer.json())) == (404, {"error"})
    answer = http.post("/api/function_invocations", json={"image": image64})
    assert (answer.status_code, set(answer.json())) == (422, {"error"})


def test_eight_users_of_three_tools(running, picture, service_triton):
    """Each has an image of its own, and nobody's image drives out another's."""
    with Image.open(io.BytesIO(picture)) as image:
        images = [image.rotate(90 * (number % 4), expand=number % 2 == 0) for number in range(4)]
    contents = []
    for number, image in enumerate(images):
        buffer = io.BytesIO()
        image.convert("RGB").resize((400 + 10 * number, 300)).save(buffer, "PNG")
        contents.append(buffer.getvalue())
    click = [150, 120]
    with SAM2TritonClient(service_triton.grpc_url) as client:
        expected = [client.segment([click], [1], image=client.encode(content))[0].mask for content in contents]

    def use(user: int) -> None:
        number, content = user % 4, base64_of(contents[user % 4])
        for _ in range(3):
            if user % 3 == 0:
                body = {"image": content, "pos_points": [click], "neg_points": []}
                headers = {"x-nuclio-function-name": "triton-sam-sam2"}
                answer = posted(running.http, "/api/function_invocations", body, headers=headers)
                mask = np.array(answer["mask"], bool)
            elif user % 3 == 1:
                prompts = [{"points": [{"x": click[0], "y": click[1], "positive": True}]}]
                body = {"image": {"value": content}, "prompts": prompts, "format": "rle", "multimask_output": False}
                mask = rle_to_mask(posted(running.http, "/sam2/segment_image", body)["predictions"][0]["masks"])
            else:
                part = {"type": "keypointlabels", "is_positive": 1, "value": {"keypointlabels": ["cat"]}}
                height, width = expected[number].shape
                part["value"] |= {"x": 100 * click[0] / width, "y": 100 * click[1] / height}
                answer = posted(running.http, "/label-studio/predict", asked_of_label_studio(content, part))
                mask = brushed(answer["results"][0]["result"][0])
            assert np.array_equal(mask, expected[number])

    before = running.metric("triton_sam_service_encodes_total")
    with ThreadPoolExecutor(8) as users:
        for done in [users.submit(use, user) for user in range(8)]:
            done.result()
    assert running.metric("triton_sam_service_encodes_total") - before == len(contents)
    assert running.metric("triton_sam_service_requests_by_adapter_total") >= 24
