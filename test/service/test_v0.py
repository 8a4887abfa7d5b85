"""The contract of the SAM service of 2024, on a real Triton, also as its old clients speak it."""

import base64
import functools
import gzip
import http.client
import io
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.contents import zipped

from triton_sam import SAM2TritonClient
from triton_sam.service.api import v0
from triton_sam.service.problems import Problem

SIZE = {"img_x": "800", "img_y": "600"}
NO_EMBEDDINGS = "model: this file is damaged, or holds no image embeddings: send what /embedded_model answers with enc"


@pytest.fixture(scope="module")
def expected(service_triton, picture):
    """Embeddings, and the mask at (200, 180), as the Python client gives them."""
    with SAM2TritonClient(service_triton.http_url, embeddings="client") as client:
        client.set_image(picture)
        return client.image_embeddings, client.segment([[200, 180]], [1])[0].mask


@pytest.fixture(scope="module")
def text(service, picture):
    answer = service.http.post("/embedded_model", files={"image": ("a.jpg", picture)})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.content


def multipart(fields, picture=None):
    """A body as Java's Apache HttpClient builds it, byte by byte."""
    boundary = "vSTq0Fm1fNVD5EMvHOpcQJ0C7mXqYyTqQpj"
    parts = []
    if picture is not None:
        parts.append(
            b'Content-Disposition: form-data; name="image"; filename="null"\r\n'
            b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\n\r\n" + picture
        )
    for name, value in fields.items():
        parts.append(
            f'Content-Disposition: form-data; name="{name}"\r\nContent-Type: text/plain; charset=ISO-8859-1\r\n'
            f"Content-Transfer-Encoding: 8bit\r\n\r\n{value}".encode()
        )
    body = b"".join(b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts)
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def old_client(service, path, fields, picture=None):
    """Send a request and return (status, headers, raw body), without any convenience."""
    connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=120)
    body, headers = multipart(fields, picture)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def embedding_of(text):
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").reshape(1, 256, 64, 64)


def mask_of(png):
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        return np.asarray(image) > 0


def test_session_ids_are_new_uuids_in_plain_text(service):
    answers = [service.http.get("/new_session_id") for _ in range(2)]
    assert all(answer.headers["content-type"].startswith("text/plain") for answer in answers)
    assert len({uuid.UUID(answer.text) for answer in answers}) == 2


def test_an_old_client_gets_gzip_of_base64(service, picture, expected):
    fields = {"session_id": str(uuid.uuid4()), "cancel_pending": "true"}
    status, headers, body = old_client(service, "/embedded_model?encoding=compress", fields, picture)
    assert status == 200
    assert headers["Content-Type"] == "application/gzip"
    assert headers["Content-Encoding"] == "gzip"
    np.testing.assert_array_equal(embedding_of(gzip.decompress(body)), expected[0]["image_embeddings"])


def test_an_old_client_cancels_without_an_image(service):
    fields = {"session_id": str(uuid.uuid4()), "cancel_pending": "true"}
    assert old_client(service, "/embedded_model", fields)[0] == 200
    assert service.http.post("/embedded_model", data=fields).status_code == 200


@pytest.mark.parametrize("form", ["text", "gzip", "npz"])
def test_masks_from_an_embedding(service, picture, text, expected, form):
    if form == "npz":
        answer = service.http.post("/embedded_model", params={"encoding": "npz"}, files={"image": picture})
        assert answer.status_code == 200
        model = answer.content
    else:
        model = text if form == "text" else gzip.compress(text)
    answer = service.http.post("/from_model", files={"model": model}, data={"x": "200", "y": "180", **SIZE})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    np.testing.assert_array_equal(mask_of(answer.content), expected[1])
    other = {"x": "200", "y": "180", "img_x": "400", "img_y": "300"}
    answer = service.http.post("/from_model", files={"model": model}, data=other)
    assert (answer.status_code, "the embedding is of 800 x 600 pixels" in answer.json()["detail"]) == (422, True)


def test_an_unknown_embedding_is_refused_in_plain_words(service):
    model = base64.b64encode(np.zeros((1, 256, 64, 64), "<f4").tobytes())
    data = {"x": "1", "y": "1", "model_version": "sam2", **SIZE}
    answer = service.http.post("/from_model", files={"model": model}, data=data)
    assert answer.status_code == 422
    assert answer.json()["code"] == "unknown_embedding"


def compressed_npz():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(50_000_000, np.uint8))
    return buffer.getvalue()


DAMAGED = (
    b"",
    b"no base64!",
    b"AAAA",
    gzip.compress(bytes(100_000_000)),
    b"PK\x03\x04damaged",
    b"\x1f\x8b\x00",
)


def test_damaged_embeddings_are_refused(service):
    for model in (*DAMAGED, compressed_npz()):
        answer = service.http.post("/from_model", files={"model": ("m", model)}, data={"x": "1", "y": "1", **SIZE})
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert not model.startswith(b"PK\x03\x04damaged") or answer.json()["detail"].startswith(NO_EMBEDDINGS)


def test_an_npz_with_many_members_is_refused_before_it_is_read(monkeypatch):
    content = zipped({f"{number}.npy": b"" for number in range(65)})
    monkeypatch.setattr("numpy.load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(Problem, match=NO_EMBEDDINGS):
        v0._read_npz(content)


def test_prediction(service, picture, expected):
    answer = service.http.post("/prediction", files={"image": picture}, data={"x": "200", "y": "180"})
    assert answer.status_code == 200
    np.testing.assert_array_equal(mask_of(answer.content), expected[1])
    outside = service.http.post("/prediction", files={"image": picture}, data={"x": "801", "y": "180"})
    assert outside.status_code == 422
    assert "outside" in outside.json()["detail"]


def test_cancelled_requests_answer_499_with_the_header_of_2024(service, picture):
    """An image that comes with `cancel_pending` cancels the requests before it, and only those."""

    def attempt():
        begun, mine = service.metric("triton_sam_service_encodes_total"), {"session_id": str(uuid.uuid4())}
        embed = functools.partial(service.http.post, "/embedded_model", files={"image": picture})
        with ThreadPoolExecutor(8) as pool:
            own = [pool.submit(embed, data=mine) for _ in range(8)]
            # At least one of them is at Triton or on its way, and the others are known to the service.
            wait_until(lambda: service.metric("triton_sam_service_encodes_total") > begun)
            wait_until(lambda: service.metric("triton_sam_service_requests_in_flight") > 8 - sum(map(Future.done, own)))
            assert embed(data={**mine, "cancel_pending": "True"}).status_code == 200
        answers = [each.result() for each in own]
        assert {answer.status_code for answer in answers} <= {200, 499}
        return [answer for answer in answers if answer.status_code == 499]

    while not (cancelled := attempt()):  # all may have been answered before the last one came
        pass
    assert all(answer.headers["Cancelled-By-Client"] == "1" for answer in cancelled)
