"""Access to the adapters: tokens as each tool sends them, limits of uploads, and adapters that are off."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from support.running_service import running_service
from support.tools import base64_of

from triton_sam.service.adapters.registry import ADAPTERS

TOKEN = "sesame-open"


@pytest.fixture(scope="module")
def image64(picture):
    return base64_of(picture)


@pytest.fixture(scope="module")
def guarded(service_triton):
    with running_service(service_triton.grpc_url, token=TOKEN, adapters=tuple(ADAPTERS)) as guarded:
        yield guarded


TOKENS = (
    ("/sam/weights/", {"auth": ("anyone", TOKEN)}),
    ("/api/functions", {"auth": ("triton", TOKEN)}),
    ("/x-anylabeling/v1/models", {"headers": {"Token": TOKEN}}),
    ("/label-studio/versions", {"auth": ("anyone", TOKEN)}),
    ("/sam/weights/", {"headers": {"Authorization": f"Bearer {TOKEN}"}}),
)


def test_tokens_as_each_tool_sends_them(guarded):
    for path, sends in TOKENS:
        assert guarded.http.get(path).status_code == 401
        assert guarded.http.get(path, **sends).status_code == 200


def test_a_token_in_the_url_is_for_roboflow_alone(guarded, image64):
    body = {"image": {"type": "base64", "value": image64}}
    assert guarded.http.post(f"/sam2/embed_image?api_key={TOKEN}", json=body).status_code == 200
    refused = guarded.http.post("/sam2/embed_image?api_key=wrong", json=body)
    assert refused.status_code == 401
    assert "api_key" in refused.json()["message"]
    assert guarded.http.get(f"/v1/models?api_key={TOKEN}").status_code == 401


def test_paths_for_monitoring_need_no_token(guarded):
    for path in ("/label-studio/health", "/x-anylabeling/health", "/sam/version/"):
        assert guarded.http.get(path).status_code == 200


def test_uploads_count_and_values_are_bounded(service_triton, image64):
    limits = {"max_body": 1 << 20, "adapters": ("osam",)}
    with running_service(service_triton.grpc_url, **limits) as narrow:
        answer = narrow.http.post("/api/generate", json={"model": "sam2", "image": "A" * (2 << 20)})
        assert answer.status_code == 413
        assert set(answer.json()) == {"detail"}
        values = {"model": "sam2", "image": "", "prompt": {"points": [[1, 2]] * 400_000, "point_labels": []}}
        assert narrow.http.post("/api/generate", json=values).status_code == 413


def test_the_command_knows_all_adapters():
    from triton_sam.commands.service import TOOLS

    assert set(TOOLS) == set(ADAPTERS)


def test_an_adapter_that_is_off_answers_nothing(service, image64):
    assert service.http.post("/api/generate", json={"model": "sam2", "image": image64}).status_code == 404
    assert service.http.get("/sam/version/").status_code == 404
