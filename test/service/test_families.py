"""The service and its page over a Triton with all families: the same masks as the Python client's."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of all families takes minutes
pytest.importorskip("torch")
pytest.importorskip("segment_anything")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
local_server = pytest.importorskip("triton_sam.local_server")

from support.family_exports import SERVED as FAMILIES  # noqa: E402
from support.running_service import running_service  # noqa: E402

from triton_sam import SamTritonClient  # noqa: E402
from triton_sam.masks.rle import rle_to_mask  # noqa: E402

NEW_FAMILIES = ("sam1", "sam3")
MOBILE = [("mobilesam", "mobilesam", True), ("my_mobile", "mobilesam", False)] if "mobilesam" in FAMILIES else []
EDGE = [("edgetam", "edgetam", True)] if "edgetam" in FAMILIES else []
HQ = [("samhq", "samhq", True)] if "samhq" in FAMILIES else []
BOX = [180, 60, 420, 330]


@pytest.fixture(scope="module")
def triton(families_server):
    return families_server


@pytest.fixture(scope="module")
def service(triton):
    with running_service(triton.grpc_url) as running:
        yield running


@pytest.fixture(scope="module")
def photo(images):
    return (images / "coffee.jpg").read_bytes()


def client_of(triton, family, photo):
    client = SamTritonClient(triton.grpc_url, family)
    client.set_image(photo)
    return client


def test_models_are_listed(service):
    listed = service.http.get("/v1/models").json()["models"]
    assert [(model["name"], model["family"], model["keeps_images"]) for model in listed] == [
        ("sam1", "sam1", True),
        ("sam2", "sam2", True),
        ("my_sam", "sam2", False),  # an alias has no session model of its own
        ("sam3", "sam3", True),
        *MOBILE,
        *EDGE,
        *HQ,
    ]
    assert [model["name"] for model in listed if model["default"]] == ["sam2"]
    assert {model["family"]: model["takes_mask"] for model in listed} == {name: name != "sam3" for name in FAMILIES}
    assert service.http.get("/models").json()["models"] == {
        "sam1": ["sam1"],
        "sam2": ["sam2", "my_sam"],
        "sam3": ["sam3"],
        **({"mobilesam": [name for name, *_ in MOBILE]} if MOBILE else {}),
        **({"edgetam": ["edgetam"]} if EDGE else {}),
        **({"samhq": ["samhq"]} if HQ else {}),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_v1_masks_equal_the_python_clients(service, triton, photo, family):
    image = service.upload(photo, model=family)
    assert family in image["models"]
    with client_of(triton, family, photo) as client:
        for prompt, body in (
            ({"point_coords": [[300, 200]], "point_labels": [1]}, {"points": [[300, 200]]}),
            ({"box": BOX, "multimask_output": True}, {"box": BOX, "multimask": True}),
        ):
            expected = client.segment(**prompt)
            answer = service.http.post(f"/v1/images/{image['id']}/segment", json={**body, "model": family})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == family
            for mask, wanted in zip(answer.json()["masks"], expected, strict=True):
                np.testing.assert_array_equal(rle_to_mask(mask["rle"]), wanted.mask)
                assert mask["score"] == pytest.approx(wanted.score, abs=1e-5)


@pytest.mark.parametrize("family", NEW_FAMILIES)
def test_the_contract_of_2024(service, triton, photo, family):
    with client_of(triton, family, photo) as client:
        (expected,) = client.segment([[300, 200]], [1])
    form, point = {"model_version": family}, {"x": "300", "y": "200"}
    answer = service.http.post("/prediction", data={**form, **point}, files={"image": photo})
    np.testing.assert_array_equal(pixels(answer) == 255, expected.mask)
    legacy_embeddings = service.http.post("/embedded_model", data=form, files={"image": photo})
    assert len(base64.b64decode(legacy_embeddings.text)) == 4 * 256 * (64 if family == "sam1" else 72) ** 2
    answer = service.http.post(
        "/from_model",
        data={**form, **point, "img_x": "600", "img_y": "400"},
        files={"model": legacy_embeddings.content},
    )
    np.testing.assert_array_equal(pixels(answer) == 255, expected.mask)


def pixels(answer):
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as picture:
        return np.asarray(picture)
