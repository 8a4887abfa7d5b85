"""Images of Label Studio's tasks: where they come from, with which token, and how failures are told."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

pytest.importorskip("fastapi")
from support.conditions import wait_until
from support.running_service import running_service
from support.small_site import SmallSite
from support.tools import CLICK

from triton_sam.service.adapters import task_images
from triton_sam.service.public import FetchPool, PrivateAddressError, is_public
from triton_sam.transport.timed_sockets import CURRENT, Call

CONFIG = """<View><Image name="image" value="$image"/><BrushLabels name="tag" toName="image"/></View>"""
PERSONAL = "header.payload.signature"


class Studio(SmallSite, http.server.BaseHTTPRequestHandler):
    """A Label Studio with one image, which it also leads to from elsewhere."""

    content = b""
    storage = ""
    seen: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self):
        self.seen.append((self.path, self.headers.get("authorization")))
        if self.path.startswith("/data/upload/1/a.jpg"):
            is_known = self.headers.get("authorization") in ("Bearer access", "Token legacy")
            self.answer(200 if is_known else 401, self.content)
        elif self.path.startswith("/data/elsewhere"):
            self.answer(302, b"", self.storage)
        elif self.path == "/data/slow":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
        elif self.path == "/data/circle":
            self.answer(302, b"", "/data/circle")
        elif self.path == "/signed":
            self.answer(200, self.content)
        else:
            self.answer(404, b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(200 if body == {"refresh": PERSONAL} else 401, json.dumps({"access": "access"}).encode())


@pytest.fixture(scope="module")
def studio(picture):
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Studio) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    Studio.content, Studio.storage = picture, f"{urls[1]}/signed"
    yield urls[0]
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(service, address):
    region = {"type": "keypointlabels", "value": {"x": CLICK[0] / 8, "y": CLICK[1] / 6, "keypointlabels": ["cat"]}}
    params = {"context": {"result": [region]}}
    body = {"tasks": [{"id": 7, "data": {"image": address}}], "label_config": CONFIG, "params": params}
    return service.http.post("/label-studio/predict", json=body)


@pytest.fixture(scope="module")
def service(service_triton, studio):
    """A service with a personal token; that of a legacy token is in the tests that start one of their own."""
    options = {"adapters": ("label-studio",), "label_studio_url": studio, "label_studio_token": PERSONAL}
    options["label_studio_private_storage"] = True
    with running_service(service_triton.grpc_url, **options) as service:
        yield service


def test_an_image_is_fetched_once(service, studio):
    Studio.seen.clear()
    for address in ("/data/upload/1/a.jpg", "/data/upload/1/a.jpg"):
        answer = ask(service, address)
        assert answer.status_code == 200, answer.text
        assert answer.json()["results"][0]["result"]
    assert len(Studio.seen) == 1
    assert ask(service, f"{studio}/data/upload/1/a.jpg").status_code == 200


def test_the_token_stays_with_label_studio(service):
    Studio.seen.clear()
    assert ask(service, "/data/elsewhere").status_code == 200
    assert [path for path, _ in Studio.seen] == ["/data/elsewhere", "/signed"]
    assert Studio.seen[0][1] is not None
    assert Studio.seen[1][1] is None


def test_failures_are_told(service, studio):
    for address, status, text in (
        ("/data/circle", 502, "redirects"),
        ("/data/missing", 502, "404"),
        ("s3://bucket/a.jpg", 502, "404"),
        ("http://169.254.169.254/latest/meta-data", 422, "Label Studio alone"),
        ("//elsewhere.example/a.jpg", 422, "Label Studio alone"),
        ("file:///etc/passwd", 422, "Label Studio alone"),
        ("data:image/png;base64,%", 422, "base64"),
    ):
        answer = ask(service, address)
        assert (answer.status_code, text in answer.text) == (status, True), (address, answer.text)


def test_a_label_studio_that_is_gone_or_refuses(service_triton, studio):
    for url, token, text in (
        (
            "http://127.0.0.1:9",
            "legacy",
            "answer at http://127.0.0.1:9: check that it runs, and the address in --label-studio-url",
        ),
        (studio, "wrong", "LABEL_STUDIO_API_KEY"),
        (studio, "a.wrong.token", "LABEL_STUDIO_API_KEY"),
    ):
        options = {"adapters": ("label-studio",), "label_studio_url": url, "label_studio_token": token}
        with running_service(service_triton.grpc_url, **options) as service:
            answer = ask(service, "/data/upload/1/a.jpg")
            assert (answer.status_code, text in answer.text) == (502, True), answer.text[:300]
            assert token not in answer.text


def test_a_storage_that_is_gone_is_not_taken_for_label_studio(service, monkeypatch):
    monkeypatch.setattr(Studio, "storage", "http://127.0.0.1:7/a.jpg")
    answer = ask(service, "/data/elsewhere?gone")
    assert answer.status_code == 502
    assert "the storage that Label Studio leads to, http://127.0.0.1:7, does not answer" in answer.text


def test_a_slow_image_ends_in_time_and_holds_up_no_other(service, studio, monkeypatch):
    """Each byte of it comes in time, but all of them never do. A socket's timeout would start anew with each."""
    monkeypatch.setattr(task_images, "SECONDS", 1.0)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(ask, service, "/data/slow")
        wait_until(lambda: ("/data/slow") in [path for path, _ in Studio.seen])
        assert ask(service, f"{studio}/data/upload/1/a.jpg?other").status_code == 200
        assert (slow.result().status_code, "within 1 s" in slow.result().text) == (504, True)


def test_a_large_image_names_the_option(service_triton, studio):
    options = {"adapters": ("label-studio",), "label_studio_url": studio, "label_studio_token": "legacy"}
    with running_service(service_triton.grpc_url, max_body=1 << 14, max_json=1 << 14, **options) as service:
        answer = ask(service, "/data/upload/1/a.jpg")
        assert (answer.status_code, "--max-body" in answer.text) == (413, True)


ADDRESSES = (
    ("93.184.216.34", True),
    ("2606:2800:220:1::1", True),
    ("127.0.0.1", False),
    ("10.0.0.1", False),
    ("169.254.169.254", False),
    ("100.64.0.1", False),
    ("224.0.0.1", False),
    ("0.0.0.0", False),
    ("::1", False),
    ("fe80::1%eth0", False),
    ("fd00::1", False),
    ("::ffff:10.0.0.1", False),
    ("64:ff9b::a00:1", False),
    ("64:ff9b::5db8:d822", True),
    ("2002:a00:1::", False),
)


def test_public_addresses():
    for address, public in ADDRESSES:
        assert is_public(address) is public, address


def test_a_storage_in_a_private_network_is_refused_unless_it_is_allowed(service_triton, studio):
    options = {"adapters": ("label-studio",), "label_studio_url": studio, "label_studio_token": "legacy"}
    with running_service(service_triton.grpc_url, **options) as service:
        Studio.seen.clear()
        answer = ask(service, "/data/elsewhere")
        assert answer.status_code == 502
        assert "--label-studio-private-storage" in answer.text
        assert [path for path, _ in Studio.seen] == ["/data/elsewhere"]
        assert ask(service, "/data/upload/1/a.jpg").status_code == 200


def test_a_name_that_changes_its_address_is_refused(monkeypatch, studio):
    """The first look-up gives a public address, and the second one that of this machine."""
    port = int(studio.rsplit(":", 1)[1])
    answers = iter([[(2, 1, 6, "", ("93.184.216.34", port))], [(2, 1, 6, "", ("127.0.0.1", port))]])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: next(answers))
    monkeypatch.setattr(CURRENT, "call", Call(time.monotonic() + 5), raising=False)
    with pytest.raises(PrivateAddressError, match=r"127\.0\.0\.1"):
        FetchPool().request("GET", f"http://rebinding.example:{port}/signed")
