"""The service over all families, whose networks are made up: the same masks as the Python client's."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")

from support.in_process import InProcess, made_up_triton
from support.running_service import RunningService, running_service

from triton_sam import SamTritonClient
from triton_sam.masks.rle import rle_to_mask

FAMILIES = ("sam1", "sam2", "sam3", "mobilesam", "edgetam", "samhq")
ALIAS = "my_sam"
PAIRS = {**{name: name for name in FAMILIES}, ALIAS: "sam2"}
BOX = [180, 60, 420, 330]


@pytest.fixture(scope="module")
def triton() -> Iterator[InProcess]:
    with made_up_triton(PAIRS, FAMILIES) as server:
        yield server


@pytest.fixture(scope="module")
def service(triton: InProcess) -> Iterator[RunningService]:
    with running_service(triton.url) as running:
        yield running


@pytest.fixture(scope="module")
def photo(images) -> bytes:
    return (images / "coffee.jpg").read_bytes()


def client_of(triton: InProcess, name: str, photo: bytes) -> SamTritonClient:
    client = SamTritonClient(triton.url, PAIRS[name], model_name=name)
    client.set_image(photo)
    return client


def test_models_are_listed(service: RunningService) -> None:
    listed = service.http.get("/v1/models").json()["models"]
    assert {each["name"]: (each["family"], each["keeps_images"]) for each in listed} == {
        name: (family, name != ALIAS)  # a pair without a session model, as aliases of earlier versions
        for name, family in PAIRS.items()
    }
    assert [each["name"] for each in listed if each["default"]] == ["sam2"]
    assert {each["family"]: each["takes_mask"] for each in listed} == {name: name != "sam3" for name in FAMILIES}
    legacy = {name: [name, ALIAS] if name == "sam2" else [name] for name in FAMILIES}
    assert service.http.get("/models").json()["models"] == legacy


@pytest.mark.parametrize("name", PAIRS)
def test_v1_masks_equal_the_python_clients(service: RunningService, triton: InProcess, photo: bytes, name: str) -> None:
    image = service.upload(photo, model=name)
    assert name in image["models"]
    with client_of(triton, name, photo) as client:
        for prompt, body in (
            ({"point_coords": [[300, 200]], "point_labels": [1]}, {"points": [[300, 200]]}),
            ({"box": BOX, "multimask_output": True}, {"box": BOX, "multimask": True}),
            ({"box": [BOX, [10, 10, 90, 90]]}, {"objects": [{"box": BOX}, {"box": [10, 10, 90, 90]}]}),
        ):
            expected = client.segment(**prompt)
            assert any(0 < each.area < each.mask.size for each in expected)
            answer = service.http.post(f"/v1/images/{image['id']}/segment", json={**body, "model": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name
            for mask, wanted in zip(answer.json()["masks"], expected, strict=True):
                np.testing.assert_array_equal(rle_to_mask(mask["rle"]), wanted.mask)
                assert mask["score"] == pytest.approx(wanted.score, abs=1e-5)


@pytest.mark.parametrize("family", ["sam1", "sam3"])
def test_the_contract_of_2024(service: RunningService, triton: InProcess, photo: bytes, family: str) -> None:
    with client_of(triton, family, photo) as client:
        (expected,) = client.segment([[300, 200]], [1])
    form, point = {"model_version": family}, {"x": "300", "y": "200"}
    answer = service.http.post("/prediction", data={**form, **point}, files={"image": photo})
    np.testing.assert_array_equal(pixels(answer) == 255, expected.mask)
    embeddings = service.http.post("/embedded_model", data=form, files={"image": photo})
    assert len(base64.b64decode(embeddings.text)) == 4 * 256 * (64 if family == "sam1" else 72) ** 2
    size = {"img_x": "600", "img_y": "400"}
    answer = service.http.post("/from_model", data={**form, **point, **size}, files={"model": embeddings.content})
    np.testing.assert_array_equal(pixels(answer) == 255, expected.mask)


def pixels(answer) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as picture:
        return np.asarray(picture)
