"""The modern face of the service and its limits, on a real Triton."""

import asyncio
import base64
import io
import json
import logging
import re
import struct
import threading
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from triton_sam import SAM2TritonClient
from triton_sam.errors import ConfigurationError
from triton_sam.masks.rle import rle_to_mask

pytest.importorskip("fastapi")
from support.running_service import running_service, wait_until

from triton_sam.service.engine import check_image
from triton_sam.service.logs import LOGGER, JsonFormatter
from triton_sam.service.middleware import same_token
from triton_sam.service.page import STATIC
from triton_sam.service.problems import Problem
from triton_sam.service.settings import Settings

POINT = {"points": [[200, 180]]}
BOXES = [[90, 70, 310, 290], [430, 60, 700, 230]]


@pytest.fixture(scope="module")
def picture(images):
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture(scope="module")
def image(service, picture):
    return service.upload(picture)


@pytest.fixture(scope="module")
def client(service_triton, picture):
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(picture)
        yield client


@pytest.fixture
def segment(service, image):
    def ask(body, **headers):
        return service.http.post(f"/v1/images/{image['id']}/segment", json=body, headers=headers)

    return ask


def problem(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    members = answer.json()
    assert members["status"] == status
    assert members["title"]
    assert members["detail"]
    assert "Traceback" not in members["detail"]
    assert members["request_id"] == answer.headers["x-request-id"]
    return members


def test_an_image_is_uploaded_once(service, picture, image):
    assert (image["width"], image["height"], image["bytes"], image["models"]) == (800, 600, len(picture), ["sam2"])
    encodes = service.metric("triton_sam_service_encodes_total")
    answer = service.http.post("/v1/images", files={"image": picture})
    assert answer.json() == image
    assert answer.headers["location"] == f"/v1/images/{image['id']}"
    assert service.metric("triton_sam_service_encodes_total") == encodes
    assert service.http.get(f"/v1/images/{image['id']}").json() == image


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
        ({}, "nothing to go by"),
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
    assert "JSON" in problem(cut, 422)["detail"]
    problem(service.http.post(segment_url, content=b"\xff\xfe"), 422)
    problem(segment(POINT, accept="text/html"), 406)
    problem(service.http.get(segment_url), 405)
    problem(service.http.get("/nowhere"), 404)
    problem(service.http.get("/v1/images/xyz"), 422)
    assert problem(service.http.get(f"/v1/images/{'0' * 32}"), 404)["code"] == "unknown_image"
    assert problem(service.http.post(f"/v1/images/{'0' * 32}/segment", json=POINT), 404)["code"] == "unknown_image"
    problem(service.http.post("/v1/images"), 422)
    problem(service.http.post("/v1/images", headers={"content-type": "multipart/form-data"}, content=b"x"), 400)


def png_of(width, height):
    """A PNG whose header says so, with next to nothing behind it."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def zip_bomb():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(50_000_000))
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("route", ["/v1/images", "/embedded_model", "/prediction"])
@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"<!doctype html><html><body>no picture</body></html>", 415),
        (zip_bomb(), 415),
        (png_of(30_000, 30_000), 413),
        (png_of(12_000, 12_000), 413),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", 415),
        (png_of(64, 64)[:60], (415, 422)),
        (bytes(200_000_000), 413),
    ],
    ids=["0-bytes", "html", "zip-bomb", "30000x30000", "12000x12000", "eps", "cut", "200MB"],
)
def test_bad_uploads(service, route, content, status):
    data = {"x": "1", "y": "1"} if route == "/prediction" else {}
    answer = service.http.post(route, files={"image": ("a.png", content)}, data=data)
    assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text
    problem(answer, answer.status_code)
    assert service.http.get("/health").status_code == 200


def test_a_body_without_a_length_is_counted(service):
    def pieces():
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        for _ in range(70):
            yield bytes(1 << 20)
        yield b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b"}
    problem(service.http.post("/v1/images", content=pieces(), headers=headers), 413)


def test_a_damaged_picture_is_the_senders_fault(service, picture):
    answer = service.http.post("/v1/images", files={"image": picture[: len(picture) // 2]})
    assert "image" in problem(answer, 422)["detail"]


def test_pictures_lie_upright(service, picture):
    with Image.open(io.BytesIO(picture)) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", exif=exif)
    assert check_image(buffer.getvalue(), 100) == (600, 800)
    uploaded = service.upload(buffer.getvalue())
    assert (uploaded["width"], uploaded["height"]) == (600, 800)
    shown = service.http.get(f"/v1/images/{uploaded['id']}/preview")
    with Image.open(io.BytesIO(shown.content)) as preview:
        assert (preview.format, preview.size) == ("JPEG", (600, 800))


def test_a_16_bit_tiff_can_be_shown(service):
    buffer = io.BytesIO()
    Image.fromarray((np.arange(100 * 120, dtype=np.uint16) * 3).reshape(100, 120)).save(buffer, "TIFF")
    uploaded = service.upload(buffer.getvalue())
    shown = service.http.get(f"/v1/images/{uploaded['id']}/preview")
    assert shown.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(shown.content)) as preview:
        low, high = preview.getextrema()[0]
        assert high - low > 240
    assert service.http.delete(f"/v1/images/{uploaded['id']}").status_code == 204
    problem(service.http.get(f"/v1/images/{uploaded['id']}/preview"), 404)
    problem(service.http.delete(f"/v1/images/{uploaded['id']}"), 404)


def test_answers_carry_an_id(service):
    assert service.http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert service.http.get("/health", headers={"x-request-id": "a b\tc"}).headers["x-request-id"] != "a b\tc"


def test_a_client_that_goes_away_is_noticed(service, picture):
    before = service.metric("triton_sam_service_cancelled_total")

    async def leave():
        body = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + picture + b"\r\n--b--\r\n"
        host, port = service.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /embedded_model HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()

    asyncio.run(leave())
    wait_until(lambda: service.metric("triton_sam_service_cancelled_total") > before)


def test_metrics_and_openapi(service):
    text = service.http.get("/metrics").text
    assert "triton_sam_service_triton_up 1.0" in text
    assert "process_resident_memory_bytes" in text
    document = service.http.get("/openapi.json").json()
    assert "/v1/images/{image_id}/segment" in document["paths"]
    assert "HTTPValidationError" not in json.dumps(document)
    example = document["components"]["schemas"]["SegmentRequest"]["examples"][0]
    assert example["points"]
    for path in ("/", "/docs", "/static/app.js", "/static/style.css", "/static/samples/shapes.jpg", "/favicon.ico"):
        assert service.http.get(path).status_code == 200
    assert service.http.get("/static/../settings.py").status_code == 404
    assert service.http.get("/static/samples/..%2f..%2fdemo.json").status_code == 404


def test_the_page_needs_nothing_from_elsewhere():
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), path.name


@pytest.mark.parametrize(
    ("path", "status"),
    [(path, 200) for path in ("/", "/docs", "/static/app.js", "/static/samples/shapes.jpg", "/health", "/v1/models")]
    + [("/v1/images/none", 422), ("/nowhere", 404)],
)
def test_every_answer_is_safe_to_show(service, path, status):
    answer = service.http.get(path)
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda given, expected: compared.append((given, expected)) or False)
    assert not same_token("guess", "secret")
    assert compared == [(b"guess", b"secret")]
    monkeypatch.undo()
    assert same_token("sécret", "sécret")
    assert not same_token("\udcff", "secret")  # what a header may hold


def test_nothing_may_call_from_elsewhere_by_default(service):
    answer = service.http.get("/health", headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_token_origins_and_limits(service_triton, picture):
    options = {"token": "secret", "origins": ("https://mine.example",), "max_body": 1 << 20, "max_megapixels": 0.1}
    with running_service(service_triton.grpc_url, **options) as guarded:
        assert guarded.http.get("/").status_code == guarded.http.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            answer = guarded.http.get("/v1/models", headers=headers)
            assert problem(answer, 401)["code"] == "token"
            assert answer.headers["www-authenticate"] == "Bearer"
        guarded.http.headers["authorization"] = "Bearer secret"
        assert guarded.http.get("/v1/models").status_code == 200
        problem(guarded.http.post("/v1/images", files={"image": picture}), 413)
        problem(guarded.http.post("/v1/images", files={"image": bytes(2 << 20)}), 413)
        mine = guarded.http.get("/health", headers={"origin": "https://mine.example"})
        assert mine.headers["access-control-allow-origin"] == "https://mine.example"
        assert (
            "access-control-allow-origin" not in guarded.http.get("/health", headers={"origin": "https://a.b"}).headers
        )
        preflight = {"origin": "https://mine.example", "access-control-request-method": "POST"}
        assert guarded.http.options("/v1/images", headers=preflight).status_code == 200


def test_too_many_at_a_time_and_too_slow(service_triton, picture):
    with running_service(service_triton.grpc_url, max_requests=1, timeout=0.001) as narrow:
        assert problem(narrow.http.post("/prediction", files={"image": picture}, data={"x": 1, "y": 1}), 504)
    with running_service(service_triton.grpc_url, max_requests=1) as narrow:
        statuses = []

        def embed():
            statuses.append(narrow.http.post("/embedded_model", files={"image": picture}).status_code)

        threads = [threading.Thread(target=embed) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 503}


def test_settings_that_cannot_work():
    nan = float("nan")
    for options in ({"max_body": 0}, {"token": ""}, {"timeout": -1}, {"timeout": nan}, {"max_megapixels": nan}):
        with pytest.raises(ConfigurationError):
            Settings(**options)


def test_log_lines_are_json():
    record = LOGGER.makeRecord(
        LOGGER.name, logging.INFO, "f", 1, "request", None, None, extra={"fields": {"status": 200}}
    )
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["message"], entry["status"], entry["level"]) == ("request", 200, "info")


def test_a_picture_is_judged_by_its_header_alone():
    with pytest.raises(Problem) as caught:
        check_image(png_of(60_000, 60_000), 1e9)
    assert caught.value.status == 413
