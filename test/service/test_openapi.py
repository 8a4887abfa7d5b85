"""Requests made up from the OpenAPI document: whatever comes, the service answers, and never with 500 or above."""

import importlib
import json
import subprocess
import sys

import hypothesis
import pytest
import schemathesis

EXAMPLES = 15
"""Requests an operation: 11 operations, and edge cases besides."""


@pytest.fixture(scope="module")
def with_large(light_triton, tmp_path_factory):
    """A service that also has a large image."""
    from support.large_images import draw, write_tiff
    from support.running_service import running_service

    folder = tmp_path_factory.mktemp("large")
    write_tiff(folder / "slide.tif", draw([(10, 10, 90, 90)], (700, 500)), levels=2)
    with running_service(light_triton.url, large_images=str(folder)) as running:
        yield running


def _drive(service, images):
    """Send made-up requests, most of them about an image that exists; return the statuses."""
    known = service.upload((images / "shapes.jpg").read_bytes())["id"]
    large = [each["id"] for each in service.http.get("/v1/large").json().get("images", ())]
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    statuses = []

    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def ask(case):
            if "image_id" in (case.path_parameters or {}) and case.method != "DELETE" and len(statuses) % 4:
                case.path_parameters["image_id"] = known
            if "large_id" in (case.path_parameters or {}) and len(statuses) % 4:
                case.path_parameters["large_id"] = large[0]
            if case.path.endswith("/everything") and isinstance(case.body, dict):
                case.body |= {"points_per_side": 1, "crop_n_layers": 0}  # a search by thousands of points takes minutes
            answer = case.call(timeout=120)
            statuses.append(answer.status_code)
            assert answer.status_code < 500, f"{case.method} {case.path}: {answer.status_code} {answer.text[:300]}"
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == ["application/problem+json"]

        ask()
    return statuses


@pytest.mark.slow
def test_made_up_requests(with_large, images):
    statuses = _drive(with_large, images)
    assert len(statuses) >= 140
    assert {200, 404, 422} <= set(statuses)


# --- the document ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(with_large):
    return with_large.http.get("/openapi.json").json()


def test_schemas_have_unique_titles(document):
    schemas = document["components"]["schemas"]
    assert {"ProblemDetails", "SegmentRequest", "SegmentAnswer", "FindAnswer", "ImageInfo", "Models"} <= set(schemas)
    titles = [schema.get("title", name) for name, schema in schemas.items()]
    assert sorted(set(titles)) == sorted(titles)
    assert all(name.replace("-", "_") == name for name in schemas)  # no "Rle-Input" beside "Rle-Output"
    assert {"label", "text_index", "score", "box", "rle"} <= set(schemas["FoundInstance"]["properties"])
    assert schemas["FindRequest"]["examples"][0] == {"text": "yellow school bus"}
    assert schemas["SegmentRequest"]["examples"][0]["points"]
    assert "HTTPValidationError" not in json.dumps(document)


# --- a generated client ----------------------------------------------------------------------------------------------

IMAGES = [f"image/{kind}" for kind in ("jpeg", "png", "webp", "tiff", "bmp", "gif", "heic", "heif")]
FILES = [*IMAGES, "application/zip", "application/gzip", "application/x-npz", "video/mp4"]
BINARY = dict.fromkeys(FILES, "application/octet-stream")
"""Types that openapi-python-client knows only if its configuration says so."""


@pytest.fixture(scope="module")
def generated(with_large, tmp_path_factory):
    """A package that openapi-python-client has made of the document; it may warn of nothing."""
    pytest.importorskip("openapi_python_client")
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(with_large.http.get("/openapi.json").text)
    options = {"content_type_overrides": BINARY, "post_hooks": [], "package_name_override": "generated_sam"}
    (folder / "config.json").write_text(json.dumps(options))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    files = ["--path", "openapi.json", "--config", "config.json", "--output-path", "generated_sam"]
    done = subprocess.run([*command, *files], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield importlib.import_module
    sys.path.remove(str(folder))


@pytest.mark.nightly
def test_a_generated_client_gets_every_answer(with_large, generated, images):
    """Generated classes hold the masks, the objects and the instances, not only the status."""
    models = generated("generated_sam.models")
    known = with_large.upload((images / "shapes.jpg").read_bytes())["id"]
    with generated("generated_sam").Client(base_url=with_large.url, timeout=60) as client:

        def call(module, *values, **options):
            answer = generated(f"generated_sam.api.{module}").sync(*values, client=client, **options)
            assert type(answer).__name__ != "ProblemDetails", answer
            return answer

        assert call("v1.look_v1_images_image_id_get", known).width == 800
        body = models.SegmentRequest.from_dict({"points": [[200, 180]]})
        segmented = call("v1.segment_v1_images_image_id_segment_post", known, body=body)
        assert segmented.masks[0].rle.size == [600, 800]
        everything = {"points_per_side": 2, "pred_iou_thresh": 0, "stability_score_thresh": 0}
        body = models.EverythingRequest.from_dict(everything)
        found = call("v1.everything_v1_images_image_id_everything_post", known, body=body)
        assert found.objects[0].rle.size == [600, 800]
        (large,) = call("v1_large_images.list_images_v1_large_get").images
        body = models.LargeSegmentRequest.from_dict({"points": [[20, 20]]})
        assert call("v1_large_images.segment_object_v1_large_large_id_segment_post", large.id, body=body).masks
        preview = call("v1.preview_v1_images_image_id_preview_get", known)
        assert preview.payload.read(2) == b"\xff\xd8"
    assert "rle" in models.FoundInstance.__annotations__
    assert "objects" in models.FrameMasks.__annotations__
