"""The names of the service, and pages of other origins: who may call it, and from where."""

import socket

import pytest
from support.problems import problem

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from triton_sam.service.app import create_app
from triton_sam.service.hosts import TrustedHosts, allowed_origin
from triton_sam.service.settings import Settings

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def http(monkeypatch):
    """A client of a service without Triton."""
    monkeypatch.setattr("triton_sam.service.engine.WATCH_SECONDS", 3600)
    with TestClient(create_app(Settings(url=NOBODY)), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(
    ("host", "allowed", "trusted"),
    [
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
        ("sam.example.org:8080", ("sam.example.org",), True),
        ("SAM.example.org.", ("sam.Example.org",), True),
        ("a.b.example.org", ("*.example.org",), True),
        ("example.org", ("*.example.org",), False),
        ("evil.example", ("*",), True),
    ],
)
def test_names_of_the_service(host, allowed, trusted):
    assert TrustedHosts(create_app, allowed).trusts(host) is trusted


def test_a_request_to_another_name_is_refused(http):
    answer = http.get("/new_session_id", headers={"host": "evil.example"})
    assert problem(answer, 421)["code"] == "host"
    assert "--allowed-host" in answer.json()["detail"]
    assert http.get("/health", headers={"host": "evil.example"}).status_code == 503  # there is no Triton


def test_a_service_with_a_token_answers_to_every_name():
    app = create_app(Settings(url=NOBODY, token="secret"))
    answer = TestClient(app, base_url="http://sam").get("/new_session_id", headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        ("https://sam.example.org:8443", "sam.example.org:8443", True),
        ("https://sam.example.org:8443", "sam.example.org", True),  # nginx with $host
        ("https://a.example.net", "service:8080", True),
        ("https://evil.example", "sam.example.org", False),
        ("http://localhost:3000", "localhost:8080", False),
    ],
)
def test_pages_of_names_that_are_allowed_may_connect(origin, host, may):
    headers = Headers({"origin": origin, "host": host})
    assert allowed_origin(headers, (), ("sam.example.org", "*.example.net", "localhost", "*")) is may


def test_pages_of_other_origins_may_trace_and_learn_when_to_try_again():
    http = TestClient(create_app(Settings(url=NOBODY, origins=("https://a.example",))), base_url="http://localhost")
    origin = {"origin": "https://a.example"}
    asked = {"access-control-request-method": "GET", "access-control-request-headers": "traceparent"}
    assert http.options("/v1/models", headers={**origin, **asked}).status_code == 200
    assert "Retry-After" in http.get("/new_session_id", headers=origin).headers["access-control-expose-headers"]
