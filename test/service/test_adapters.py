"""Adapters: the masks of each tool's form equal those of the client, and its errors have the form of the tool."""

import io
import itertools

import numpy as np
import pytest
from PIL import ExifTags, Image
from support import cvat_requests
from support.contents import encoded
from support.running_service import posted, running_service, service_without_triton
from support.tools import BEARER, BOX, CLICK, TOKEN, TOOLS, base64_of, osam_mask

from triton_sam.annotate.prompts import mask_logits
from triton_sam.families import get_family
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.adapters.registry import ADAPTERS
from triton_sam.service.adapters.roboflow import pixel_polygons

SHAPE = (600, 800)
POSITIVE = {"x": CLICK[0], "y": CLICK[1], "positive": True}


@pytest.fixture(scope="module")
def all_adapters(service_triton):
    with running_service(service_triton.grpc_url, adapters=tuple(ADAPTERS)) as all_adapters:
        yield all_adapters


@pytest.fixture(scope="module")
def http(all_adapters):
    return all_adapters.http


def wanted(triton_client, name, **prompt):
    """Return what a tool is to get: the best of three masks, or the single one."""
    found = triton_client.segment(**prompt, multimask_output=name == "osam")
    return max(found, key=lambda each: each.score)


@pytest.mark.parametrize("name", TOOLS)
def test_masks_of_clicks_and_boxes_equal_those_of_the_client(all_adapters, http, picture, image64, triton_client, name):
    tool = TOOLS[name]
    all_adapters.upload(picture)
    encodes = all_adapters.metric("triton_sam_service_encodes_total")
    for request, prompt in ((tool.click, {"point_coords": [CLICK]}), (tool.box, {"box": BOX})):
        answer = posted(http, tool.path, request(image64), headers=tool.headers)
        assert tool.agrees(tool.mask(answer, SHAPE), wanted(triton_client, name, **prompt).mask)
    assert all_adapters.metric("triton_sam_service_encodes_total") == encodes


@pytest.mark.parametrize("name", TOOLS)
def test_errors_have_the_form_of_the_tool(http, name):
    tool = TOOLS[name]
    bodies = (b"", b"{", b"[]", b"{}", b'{"image": 3, "b64img": 3, "tasks": 3}', b"[" * 100_000)
    kinds = ("text/plain", "application/x-www-form-urlencoded", "")
    calls = [(body, "application/json", (200, 422)) for body in bodies] + [(b"{}", kind, (415,)) for kind in kinds]
    for body, kind, statuses in calls:
        answer = http.post(tool.path, content=body, headers={**tool.headers, "content-type": kind})
        assert answer.status_code in statuses, (body[:50], kind, answer.text)
        if answer.status_code != 200:
            assert answer.json()[tool.fault] if tool.fault else answer.text
            assert "problem+json" not in answer.headers["content-type"]


# --- access ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded():
    """A service with a token, without a Triton."""
    with service_without_triton(token=TOKEN, adapters=tuple(ADAPTERS), max_body=1 << 20) as http:
        yield http


@pytest.mark.parametrize("name", TOOLS)
def test_tokens_as_each_tool_sends_them(guarded, name):
    tool = TOOLS[name]
    if tool.listed:
        assert guarded.get(tool.listed).status_code == 401
        for sent in (tool.token, BEARER):
            assert guarded.get(tool.listed, **sent).status_code in (200, 503)  # there is no Triton
    else:
        assert guarded.post(tool.path, json={}, **tool.token).status_code == 422
        refused = guarded.post(tool.path, json={})
        assert (refused.status_code, TOKEN in refused.text) == (401, False)


def test_a_token_in_the_url_is_for_roboflow_alone(guarded):
    assert "api_key" in guarded.post("/sam2/embed_image?api_key=wrong", json={}).json()["message"]
    assert guarded.get(f"/v1/models?api_key={TOKEN}").status_code == 401
    for path in ("/label-studio/health", "/x-anylabeling/health", "/sam/version/"):  # monitoring needs no token
        assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("name", TOOLS)
def test_large_bodies_and_many_values_are_refused(guarded, name):
    tool = TOOLS[name]
    for body in ({"image": "A" * (2 << 20)}, {"image": "", "prompt": {"points": [[1, 2]] * 400_000}}):
        answer = guarded.post(tool.path, json=body, headers={**tool.headers, **BEARER["headers"]})
        assert answer.status_code == 413
        assert answer.json()[tool.fault] if tool.fault else answer.text


def test_an_adapter_that_is_off_answers_nothing_and_the_command_knows_all(service, image64):
    from triton_sam.commands.service import TOOLS as NAMES

    assert set(NAMES) == set(ADAPTERS) == set(TOOLS)
    for tool in TOOLS.values():
        assert service.http.post(tool.path, json=tool.click(image64), headers=tool.headers).status_code == 404


# --- what one tool has -----------------------------------------------------------------------------------------------


def test_qupath_refines_a_mask_and_shows_candidates(http, image64, triton_client):
    clicked = triton_client.segment([CLICK], [1])[0]
    body = TOOLS["qupath"].click(image64)
    [plain] = posted(http, "/sam/", body)
    [refined] = posted(http, "/sam/", {**body, "b64mask": base64_of(clicked.to_png())})
    assert plain["properties"]["quality"] == pytest.approx(clicked.score, abs=1e-6)
    logits = mask_logits(clicked.mask, get_family("sam2"))
    expected = triton_client.segment([CLICK], [1], mask_input=logits[None, None])[0]
    assert refined["properties"]["quality"] == pytest.approx(expected.score, abs=1e-6) != plain["properties"]["quality"]
    blue = encoded(Image.fromarray(clicked.mask[..., None] * np.uint8([0, 0, 4])))
    assert posted(http, "/sam/", {**body, "b64mask": base64_of(blue)}) == [refined]
    cut = base64_of(clicked.to_png()[:-40])
    for mask, words in (("?", "b64mask: send"), (base64_of(b"no image"), "unsupported"), (cut, "b64mask: ")):
        refused = http.post("/sam/", json={**body, "b64mask": mask})
        assert refused.status_code in (415, 422)
        assert words in refused.json()["detail"]
    fewer = http.post("/sam/", json={**body, "point_coords": [CLICK, CLICK]})
    assert (fewer.status_code, "send one for each" in fewer.text) == (422, True)
    candidates = posted(http, "/sam/", {**body, "multimask_output": True})
    expected = [each for each in triton_client.segment([CLICK], [1], multimask_output=True) if each.box]
    assert [each["properties"]["quality"] for each in candidates] == pytest.approx([each.score for each in expected])


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


def test_roboflow_gets_several_objects_as_polygons(http, image64, triton_client):
    prompts = TOOLS["roboflow"].click(image64)["prompts"] + TOOLS["roboflow"].box(image64)["prompts"]
    body = {**TOOLS["roboflow"].click(image64), "prompts": {"prompts": prompts}, "format": "json"}
    predictions = posted(http, "/sam2/segment_image", body)["predictions"]
    expected = [triton_client.segment([CLICK], [1])[0], triton_client.segment(box=BOX)[0]]
    assert [each["masks"] for each in predictions] == [pixel_polygons(each.mask) for each in expected]
    assert [each["confidence"] for each in predictions] == pytest.approx([each.score for each in expected], abs=1e-6)


def test_roboflow_refines_the_masks_of_earlier_calls(http, image64, triton_client):
    points = [POSITIVE, {"x": 260, "y": 200, "positive": False}]
    body = {**TOOLS["roboflow"].click(image64), "load_logits_from_cache": True}

    def asked(count, **more):
        answer = posted(http, "/sam2/segment_image", {**body, "prompts": [{"points": points[:count]}], **more})
        return rle_to_mask(answer["predictions"][0]["masks"])

    first = triton_client.segment([CLICK], [1])[0]
    both = [CLICK, [260, 200]], [1, 0]
    plain, refined = triton_client.segment(*both)[0].mask, triton_client.segment(*both, mask_input=first.logits)[0].mask
    assert not np.array_equal(plain, refined)
    asked(1)
    assert np.array_equal(asked(2), plain)  # nothing was saved
    assert np.array_equal(asked(1, save_logits_to_cache=True), first.mask)
    assert np.array_equal(asked(2), refined)
    assert np.array_equal(asked(2, load_logits_from_cache=False), plain)


def test_roboflow_prefers_a_known_id_to_the_image_beside_it(all_adapters, picture, image64, triton_client):
    """Its contract wants an image in each request, so clients send a placeholder beside the id."""
    http, file = all_adapters.http, io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    image, pixel = {"value": image64}, {"value": base64_of(file.getvalue())}
    clicked = triton_client.segment([CLICK], [1])[0].mask
    named = {"image_id": "known", "prompts": [{"points": [POSITIVE]}], "format": "rle", "multimask_output": False}

    def found(**members):
        [prediction] = posted(http, "/sam2/segment_image", {**named, **members})["predictions"]
        return rle_to_mask(prediction["masks"])

    unknown = http.post("/sam2/segment_image", json=named)
    assert (unknown.status_code, "image_id" in unknown.json()["message"]) == (422, True)
    assert posted(http, "/sam2/embed_image", {"image": image, "image_id": "known"})["image_id"] == "known"
    assert np.array_equal(found(), clicked)
    for placeholder in (pixel, {"value": "none"}, {"type": "url", "value": "https://elsewhere.example"}):
        assert np.array_equal(found(image=placeholder), clicked)
    posted(http, "/sam2/embed_image", {"image": pixel, "image_id": "known"})
    assert np.array_equal(found(), clicked)
    assert http.delete(f"/v1/images/{all_adapters.upload(picture)['id']}").status_code == 204
    assert http.post("/sam2/segment_image", json=named).status_code == 404
    assert found(image=pixel).shape == (1, 1)  # what the id stood for is gone


def test_x_anylabeling_lists_its_models(http, image64):
    models = http.get("/x-anylabeling/v1/models").json()["data"]
    assert "button_add_point" in [each["name"] for each in models["sam2"]["widgets"]]
    assert models["sam2"]["display_name"] == "sam2"
    assert http.get("/x-anylabeling//v1/models").json()["data"] == models  # the address ended with a slash
    assert http.get("/x-anylabeling/v1/models/sam2/info").json()["data"]["model_id"] == "sam2"
    body = TOOLS["x-anylabeling"].click(image64)
    rings = [each["points"] for each in posted(http, "/x-anylabeling/v1/predict", body)["data"]["shapes"]]
    assert all(ring[0] == ring[-1] for ring in rings)
    assert posted(http, "/x-anylabeling/v1/predict", {"model": "sam2", "image": image64})["data"]["shapes"] == []
    answer = http.post("/x-anylabeling/v1/predict", json={**body, "model": "another"})
    assert (answer.status_code, answer.json()["success"]) == (404, False)
    assert answer.json()["error"]["code"] == "UNKNOWN_MODEL"


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("name", ["x-anylabeling", "osam"])
def test_some_tools_show_images_as_they_are_stored(http, picture, name, form):
    """X-AnyLabeling's window and osam's server ignore the EXIF orientation, so their points do, too."""
    tool, photo = TOOLS[name], Image.open(io.BytesIO(picture))
    found = []
    for turn in (1, 6):
        exif = photo.getexif()
        exif[ExifTags.Base.Orientation] = turn
        stored = encoded(photo, form, exif=exif)
        found.append(tool.mask(posted(http, tool.path, tool.click(base64_of(stored))), SHAPE))
    assert found[0].any()
    assert np.array_equal(*found)


def test_the_requests_of_the_gateway_of_cvat(http, image64, triton_client):
    """The clicks and boxes that CVAT's own gateway sent."""
    assert cvat_requests.read_functions(http)["triton-sam-sam2"] == []
    for request in cvat_requests.calls_of("triton-sam-sam2"):
        sent = request["body"]
        box = None if sent["obj_bbox"] is None else list(itertools.chain(*sent["obj_bbox"]))
        labels = [1] * len(sent["pos_points"]) + [0] * len(sent["neg_points"])
        points = [*sent["pos_points"], *sent["neg_points"]]
        expected = triton_client.segment(points or None, labels or None, box=box)[0]
        answer = cvat_requests.send(http, request, image64)
        assert np.array_equal(np.array(answer["mask"], bool), expected.mask)
        assert answer["points"] == np.reshape(expected.to_polygons()[0], (-1, 2)).tolist()
    for headers, status in (({"x-nuclio-function-name": "no"}, 404), ({}, 422)):
        answer = http.post("/api/function_invocations", json={"image": image64}, headers=headers)
        assert (answer.status_code, set(answer.json())) == (status, {"error"})


# --- osam: its rule for the mask of an answer, and embeddings that stand for images ----------------------------------


POINT = {"points": [CLICK], "point_labels": [1]}


@pytest.fixture
def generate(http):
    def generate(status=200, **members):
        answer = http.post("/api/generate", json={"model": "sam2:latest", **members})
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["detail"]

    return generate


def test_a_request_without_a_prompt_is_a_click_in_the_middle(generate, triton_client, image64):
    answer = generate(image=image64)
    best = max(triton_client.segment([[400, 300]], multimask_output=True), key=lambda each: each.score)
    assert np.array_equal(osam_mask(answer["annotations"][0], SHAPE), best.mask)
    assert answer["model"] == "sam2:latest"


def test_the_embedding_of_an_answer_takes_the_place_of_the_image(generate, image64):
    first = generate(image=image64, prompt=POINT)
    embedding = first["image_embedding"]
    assert (embedding["original_height"], embedding["original_width"]) == SHAPE
    assert np.array(embedding["embedding"], np.float32).ndim == 3  # osam's types want it
    assert generate(image_embedding=embedding, prompt=POINT) == first
    assert generate(image_embedding=embedding, image="no image", prompt=POINT) == first


def test_embeddings_of_other_programs_are_refused(generate, image64):
    real = {"original_height": 600, "original_width": 800, "embedding": np.zeros((256, 4, 4)).tolist()}
    features = [{"shape": [1, 1, 1], "dtype": "float32", "data": "AAAAAA=="}]
    [mine] = [generate(image=image64)["image_embedding"]]
    for embedding in (
        {**real, "extra_features": []},
        {**mine, "extra_features": features},
        {**mine, "embedding": [[[0.5, 300, "a", None]]]},
        {**mine, "embedding": [[["7"] * 16]]},
        {**mine, "embedding": [[[1.0] * 4096]]},
        {"embedding": 3},
        {},
    ):
        assert "only those of this service's answers" in generate(422, image_embedding=embedding)
        assert generate(image_embedding=embedding, image=image64)["image_embedding"] == mine
    unknown = {**mine, "embedding": [[[7.0] * len(mine["embedding"][0][0])]]}
    assert "upload it again" in generate(404, image_embedding=unknown)
    assert generate(image_embedding=unknown, image=image64)["image_embedding"] == mine
    assert "send an image" in generate(422)
