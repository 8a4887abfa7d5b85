"""The modern API's limits, answers to bad uploads, headers, tokens and settings, on a real Triton."""

import http.client
import io
import itertools
import re
import socket
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile
from support.conditions import PATIENCE
from support.contents import encoded, zipped
from support.running_service import problem, running_service, upload_in_pieces

from triton_sam.service import connections
from triton_sam.service.page import STATIC
from triton_sam.service.problems import Problem
from triton_sam.service.quotas import same_token
from triton_sam.service.store import check_image


@pytest.fixture(autouse=True)
def _the_rest_of_a_body_may_come_late(monkeypatch):
    monkeypatch.setattr(connections, "LINGER_SECONDS", PATIENCE)
    monkeypatch.setattr(connections, "LINGER_PAUSE", PATIENCE)


def png_of(width, height):
    """A PNG whose header says so, with next to nothing behind it."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_uploads(service):
    """Each content goes to one of the routes in turns, which share the code that judges it, and a huge one to each."""
    contents = {
        "0 bytes": (b"", 400),
        "html": (b"<!doctype html><html><body>no picture</body></html>", 415),
        "zip bomb": (zipped({"a.png": bytes(50_000_000)}, zipfile.ZIP_DEFLATED), 415),
        "30000x30000": (png_of(30_000, 30_000), 413),
        "12000x12000": (png_of(12_000, 12_000), 413),
        "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", 415),
        "cut": (png_of(64, 64)[:60], 422),
        "70 MB": (bytes(70_000_000), 413),
    }
    routes = itertools.cycle(("/v1/images", "/embedded_model", "/prediction"))
    for kind, (content, status) in contents.items():
        for _ in range(3 if status == 413 else 1):
            route = next(routes)
            data = {"x": "1", "y": "1"} if route == "/prediction" else {}
            answer = service.http.post(route, files={"image": ("a.png", content)}, data=data)
            assert answer.status_code == status, (kind, route, answer.text)
            problem(answer, status)
    assert service.http.get("/health").status_code == 200


@pytest.mark.parametrize("connection", ["keep-alive", "close"])  # proxies and urllib send the second one
def test_an_early_answer_lets_its_client_send_the_rest(service, connection):
    """A connection that is closed while its client sends is reset, and the client or a proxy loses the answer."""
    address = service.url.removeprefix("http://")
    host, _, port = address.partition(":")

    def ask(head):
        stream.sendall(f"{head}\r\nHost: {address}\r\nConnection: {connection}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(stream)
        answer.begin()
        answer.read()
        return answer.status

    with socket.create_connection((host, int(port)), timeout=PATIENCE) as stream:
        assert ask(f"POST /v1/images HTTP/1.1\r\nContent-Type: image/png\r\nContent-Length: {70 << 20}") == 413
        for _ in range(70):
            stream.sendall(bytes(1 << 20))
        if connection == "close":
            assert stream.recv(1) == b""
        else:
            assert ask("GET /health HTTP/1.1") == 200


def test_a_body_without_a_length_is_counted(service):
    problem(upload_in_pieces(service.http, 70, 1 << 20), 413)


def test_pictures_lie_upright(service, picture):
    with Image.open(io.BytesIO(picture)) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        content = encoded(image, "JPEG", exif=exif)
    assert check_image(content, 100) == (600, 800)
    uploaded = service.upload(content)
    assert (uploaded["width"], uploaded["height"]) == (600, 800)
    shown = service.http.get(f"/v1/images/{uploaded['id']}/preview")
    with Image.open(io.BytesIO(shown.content)) as preview:
        assert (preview.format, preview.size) == ("JPEG", (600, 800))
    assert service.http.delete(f"/v1/images/{uploaded['id']}").status_code == 204
    problem(service.http.get(f"/v1/images/{uploaded['id']}/preview"), 404)
    problem(service.http.delete(f"/v1/images/{uploaded['id']}"), 404)


def test_answers_carry_an_id(service):
    assert service.http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert service.http.get("/health", headers={"x-request-id": "a b\tc"}).headers["x-request-id"] != "a b\tc"
    answer = service.http.get("/health", headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_needs_nothing_from_elsewhere():
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), path.name


def test_every_answer_is_safe_to_show(service):
    shown = ("/", "/docs", "/static/app.js", "/static/samples/shapes.jpg", "/health", "/v1/models")
    for path, status in {**dict.fromkeys(shown, 200), "/v1/images/none": 404, "/nowhere": 404}.items():
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
        assert "Retry-After" in mine.headers["access-control-expose-headers"]
        other = guarded.http.get("/health", headers={"origin": "https://a.b"})
        assert "access-control-allow-origin" not in other.headers
        preflight = {"origin": "https://mine.example", "access-control-request-method": "POST"}
        preflight["access-control-request-headers"] = "traceparent"
        assert guarded.http.options("/v1/images", headers=preflight).status_code == 200


def test_a_request_that_takes_too_long(service_triton, picture):
    with running_service(service_triton.grpc_url, max_requests=1, timeout=0.001) as narrow:
        assert problem(narrow.http.post("/prediction", files={"image": picture}, data={"x": 1, "y": 1}), 504)


# --- HEIC photographs, which the service keeps as PNG, so that Triton can read them ----------------------------------


def heic_of(image):
    pytest.importorskip("pillow_heif").register_heif_opener()
    return encoded(image, "HEIF", quality=90)


@pytest.fixture(scope="module")
def photograph(images):
    with Image.open(images / "shapes.jpg") as image:
        return heic_of(image)


def upload(service, content):
    return service.http.post("/v1/images", content=content, headers={"Content-Type": "image/heic"})


def test_a_photograph_is_kept_as_png_with_the_same_pixels(service, photograph):
    answer = upload(service, photograph)
    assert answer.status_code == 201
    info = answer.json()
    assert (info["width"], info["height"]) == (800, 600)
    kept = service.http.get(f"/v1/images/{info['id']}/content").content
    with Image.open(io.BytesIO(kept), formats=("PNG",)) as image, Image.open(io.BytesIO(photograph)) as original:
        assert np.array_equal(np.asarray(image), np.asarray(original.convert("RGB")))
    assert upload(service, kept).json() == upload(service, photograph).json() == info  # one id, by the PNG
    assert service.http.get("/v1/models").json()["heic"] is True


def test_pixels_are_counted_before_they_are_decoded(monkeypatch):
    content = heic_of(Image.new("RGB", (120, 100)))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    assert check_image(content, 0.012) == (120, 100)
    with pytest.raises(Problem, match="120 x 100 pixels") as caught:
        check_image(content, 0.011)
    assert caught.value.status == 413


def test_a_photograph_on_its_side_is_stored_upright(service):
    image, exif = Image.new("RGB", (80, 60), (200, 30, 60)), Image.Exif()
    exif[0x0112] = 6
    image.info["exif"] = exif.tobytes()  # pillow-heif writes it as the property of the file that counts
    content = heic_of(image)
    info = upload(service, content).json()
    assert (info["width"], info["height"]) == check_image(content, 1) == (60, 80)


@pytest.mark.slow
def test_the_page_opens_a_photograph(page, photograph):
    assert page.page.get_attribute("#file", "accept").endswith(",.heic,.heif")
    file = {"name": "IMG_0001.HEIC", "mimeType": "", "buffer": photograph}
    page.page.set_input_files("#file", [file, {**file, "name": "IMG_0002.heic"}])
    page.opened("IMG_0001.HEIC")
    page.click(200, 180)
    page.settled()
    assert page.page.evaluate("tritonSam.image.width") == 800
