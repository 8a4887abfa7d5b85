"""The names of the service, and pages of other origins: who may call it, and from where."""

import functools
import socket

import pytest
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from support.running_service import NOBODY, problem, service_without_triton

from triton_sam.service.adapters.registry import ADAPTERS
from triton_sam.service.app import create_app
from triton_sam.service.hosts import TrustedHosts, check_origin
from triton_sam.service.problems import Problem
from triton_sam.service.settings import ServiceSettings


@pytest.fixture
def http():
    with service_without_triton() as client:
        yield client


NAMES = (
    ("localhost:5000", (), True),
    ("127.0.0.1", (), True),
    ("[::1]:80", (), True),
    ("192.0.2.7:5000", (), True),
    ("page.localhost", (), True),
    (socket.gethostname(), (), True),
    (socket.getfqdn(), (), True),
    ("", (), True),
    ("evil.example", (), False),
    ("localhost.evil.example", (), False),
    ("127.0.0.1.evil.example", (), False),
    ("[::1].evil.example", (), False),
    ("sam.example.org:8080", ("sam.example.org",), True),
    ("SAM.example.org.", ("sam.Example.org",), True),
    ("a.b.example.org", ("*.example.org",), True),
    ("example.org", ("*.example.org",), False),
    ("evil.example", ("*",), True),
)


def test_names_of_the_service():
    for host, allowed, trusted in NAMES:
        assert TrustedHosts(create_app, allowed).trusts(host) is trusted, host


def test_a_request_to_another_name_is_refused(http):
    answer = http.get("/new_session_id", headers={"host": "evil.example"})
    assert problem(answer, 421)["code"] == "host"
    assert "--allowed-host" in answer.json()["detail"]
    assert http.get("/health", headers={"host": "evil.example"}).status_code == 503  # there is no Triton


def test_a_service_with_a_token_answers_to_every_name():
    app = create_app(ServiceSettings(url=NOBODY, token="secret"))
    answer = TestClient(app, base_url="http://sam").get("/new_session_id", headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200


CALLERS = (
    ({"host": "sam.example.org:8443"}, True),  # no browser
    ({"origin": "https://sam.example.org:8443", "host": "sam.example.org:8443"}, True),
    ({"origin": "https://sam.example.org:8443", "host": "sam.example.org"}, True),  # nginx with $host
    ({"origin": "https://a.example.net", "host": "service:8080"}, True),
    ({"origin": "https://mine.example", "host": "service:8080"}, True),
    ({"origin": "https://public.example", "host": "service:8080", "sec-fetch-site": "same-origin"}, True),
    ({"host": "localhost:8080", "sec-fetch-site": "none"}, True),
    ({"origin": "https://evil.example", "host": "sam.example.org"}, False),
    ({"origin": "http://localhost:3000", "host": "localhost:8080", "sec-fetch-site": "same-site"}, False),
    ({"host": "localhost:8080", "sec-fetch-site": "cross-site"}, False),
    ({"origin": "null", "host": "localhost:8080"}, False),  # a file, or a page in a sandbox
    ({"origin": "", "host": ""}, False),
)


def test_who_may_change_something_or_open_a_socket():
    for headers, may in CALLERS:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        allowed = ("sam.example.org", "*.example.net", "localhost", "*")
        for kind in (
            {"type": "websocket"},
            *({"type": "http", "method": each} for each in ("POST", "PUT", "DELETE", "X")),
        ):
            check = functools.partial(check_origin, {**kind, "headers": raw}, ("https://mine.example",), allowed)
            if may:
                check()
                continue
            with pytest.raises(Problem) as caught:
                check()
            assert (caught.value.status, caught.value.code) == (403, "origin")
        check_origin({"type": "http", "method": "GET", "headers": raw}, (), ())


FOREIGN = {"origin": "http://evil.example"}
ROUTES = (
    "/v1/images", "/v1/images/url", "/v1/images/0/segment", "/v1/videos", "/v1/exports", "/prediction",
    "/embedded_model", "/cancel_pending", "/api/generate", "/sam/", "/sam/upload/", "/label-studio/predict",
    "/x-anylabeling/v1/video/init", "/sam2/segment_image", "/api/function_invocations", "/nowhere",
)  # fmt: skip


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_foreign_page_can_post_to_no_route(token):
    """Forms and text/plain need no preflight: a browser sends them from any page to this machine."""
    with service_without_triton(adapters=tuple(ADAPTERS), token=token) as http:
        for path in ROUTES:
            answer = http.post(path, files={"image": b"x"}, headers=FOREIGN)
            assert (answer.status_code, "origin" in answer.text) == (403, True), path
            assert http.post(path, files={"image": b"x"}).status_code != 403, path
        assert http.delete("/v1/images/0", headers=FOREIGN).status_code == 403
        assert http.get("/health", headers=FOREIGN).status_code == 503  # there is no Triton
        both = {**FOREIGN, "host": "evil.example"}  # a name of the service that only a token makes trusted
        for headers, status in ((FOREIGN, 403), (both, 401 if token else 421)):
            with (
                pytest.raises(WebSocketDenialResponse) as refused,
                http.websocket_connect("ws://localhost/live", headers=headers),
            ):
                pass
            assert refused.value.status_code == status
