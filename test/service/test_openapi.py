"""Requests made up from the OpenAPI document: whatever comes, the service answers, and never with 500 or above."""

import pytest

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")
hypothesis = pytest.importorskip("hypothesis")

QUICK, THOROUGH = 15, 260
"""Requests an operation: 11 operations, and edge cases besides."""


def _drive(service, images, examples):
    """Send made-up requests, most of them about an image that exists; return the statuses."""
    known = service.upload((images / "shapes.jpg").read_bytes())["id"]
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    statuses = []

    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def ask(case):
            if "image_id" in (case.path_parameters or {}) and case.method != "DELETE" and len(statuses) % 4:
                case.path_parameters["image_id"] = known
            if case.path.endswith("/everything") and isinstance(case.body, dict):
                case.body |= {"points_per_side": 1, "crop_n_layers": 0}  # a search by thousands of points takes minutes
            answer = case.call(timeout=120)
            statuses.append(answer.status_code)
            assert answer.status_code < 500, f"{case.method} {case.path}: {answer.status_code} {answer.text[:300]}"
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == ["application/problem+json"]

        ask()
    return statuses


def test_made_up_requests(service, images):
    statuses = _drive(service, images, QUICK)
    assert len(statuses) >= 100
    assert {200, 422} <= set(statuses)


@pytest.mark.slow
def test_two_thousand_made_up_requests(service, images):
    assert len(_drive(service, images, THOROUGH)) >= 2000


def test_the_document_names_the_refusals_and_what_is_open(service):
    paths = service.http.get("/openapi.json").json()["paths"]
    assert {"401", "421", "429", "503"} <= set(paths["/new_session_id"]["get"]["responses"])
    assert {"408", "413"} <= set(paths["/cancel_pending"]["post"]["responses"])
    assert paths["/health"]["get"]["security"] == []


def test_the_document_is_sound(service):
    """Every answer that is described has a schema that can be read, and every route has an example or a description."""
    document = service.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert {"ProblemDetails", "SegmentRequest", "SegmentAnswer", "FindAnswer", "ImageInfo", "Models"} <= set(schemas)
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            assert operation["description"], (verb, path)
            assert "422" not in operation["responses"] or "problem+json" in str(operation["responses"]["422"])
