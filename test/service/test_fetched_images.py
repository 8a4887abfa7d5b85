"""Images that the service fetches: by the address that a caller sends, and of the tasks of Label Studio.

Where they come from, with which token, and how failures are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from support.conditions import PATIENCE, wait_until
from support.running_service import problem, running_service
from support.tools import CLICK, asked_of_label_studio

from triton_sam.service import public
from triton_sam.service.public import FetchPool, PrivateAddressError, is_public
from triton_sam.transport.timed_sockets import CURRENT, Call

LARGE = 1 << 20
PERSONAL = "header.payload.signature"


class Site(http.server.BaseHTTPRequestHandler):
    """A web site with an image and with everything that can go wrong; below /data, it is a Label Studio."""

    content = b""
    storage = ""
    seen: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self):
        token = self.headers.get("authorization")
        self.seen.append((self.path, token))
        moved = {"/moved": "/a.jpg", "/circle": "/circle", "/data/circle": "/data/circle"}
        if self.path.startswith("/data/upload/1/a.jpg"):
            self.answer(200 if token in ("Bearer access", "Token legacy") else 401, self.content)
        elif self.path == "/a.jpg":
            self.answer(200, self.content)
        elif self.path in moved:
            self.answer(302, b"", moved[self.path])
        elif self.path.startswith("/data/elsewhere"):
            self.answer(302, b"", self.storage)
        elif self.path.startswith("/to/"):
            self.answer(302, b"", self.path.removeprefix("/to/"))
        elif self.path == "/text":
            self.answer(200, b"hello")
        elif self.path.endswith("/large"):
            self.answer(200, bytes(LARGE + 1))
        elif self.path.endswith("/slow"):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b".")
                    time.sleep(0.05)
        else:
            self.answer(404, b"")

    def do_POST(self):
        """Return an access token, and close the connection when the client has closed it or sends another request."""
        self.protocol_version = "HTTP/1.1"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(200 if body == {"refresh": PERSONAL} else 401, json.dumps({"access": "access"}).encode())
        self.wfile.flush()
        self.rfile.readline()

    def answer(self, status, content, location=None):
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        if location:
            self.send_header("location", location)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except OSError:
            self.close_connection = True


@pytest.fixture(scope="module")
def site(picture):
    """The address of the site. It runs a second time, as the storage that Label Studio leads to."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    Site.content, Site.storage = picture, f"{urls[1]}/a.jpg"
    yield urls[0]
    for server in servers:
        server.shutdown()
        server.server_close()


def studio(site, token, **options):
    return {"adapters": ("label-studio",), "label_studio_url": site, "label_studio_token": token, **options}


@pytest.fixture(scope="module")
def fetching(light_triton, site):
    """A service that fetches images of callers and of tasks. Other services of this file have a legacy token."""
    options = studio(site, PERSONAL, label_studio_private_storage=True, image_urls=True, max_body=LARGE)
    with running_service(light_triton.url, **options) as service:
        yield service


@pytest.fixture
def reachable(monkeypatch):
    """Let this machine count as a public address."""
    monkeypatch.setattr(public, "is_public", lambda address: address == "127.0.0.1" or is_public(address))


@pytest.fixture(autouse=True)
def _nothing_was_seen():
    Site.seen.clear()


def paths():
    return [path for path, _ in Site.seen]


def by_url(service, url):
    return service.http.post("/v1/images/url", json={"url": url})


def by_task(service, address):
    region = {"type": "keypointlabels", "value": {"x": CLICK[0] / 8, "y": CLICK[1] / 6, "keypointlabels": ["cat"]}}
    body = asked_of_label_studio("", region)
    body["tasks"][0]["data"]["image"] = address
    return service.http.post("/label-studio/predict", json=body)


# --- images of callers -----------------------------------------------------------------------------------------------


def test_no_image_is_fetched_unless_the_operator_allows_it(light_triton, site):
    with running_service(light_triton.url) as service:
        assert problem(by_url(service, f"{site}/a.jpg"), 403)["code"] == "image_urls_off"
        assert Site.seen == []
        assert service.http.get("/v1/models").json()["image_urls"] is False


def test_an_image_is_fetched_and_can_be_segmented(fetching, site, picture, reachable):
    for path in ("/a.jpg", "/moved"):
        answer = by_url(fetching, site + path)
        assert answer.status_code == 201
        info = answer.json()
        assert info == fetching.upload(picture)
        assert fetching.http.get(f"/v1/images/{info['id']}/content").content == picture
    masks = fetching.http.post(f"/v1/images/{info['id']}/segment", json={"points": [[200, 180]]})
    assert masks.status_code == 200
    assert fetching.http.get("/v1/models").json()["image_urls"] is True


ADDRESSES = (
    ("ftp://example.org/a.jpg", 422, "bad_url"),
    ("file:///etc/passwd", 422, "bad_url"),
    ("http://", 422, "bad_url"),
    ("http://[::1", 422, "bad_url"),
    ("http://example.org:99999/", 422, "bad_url"),
    ("http://example.org/a b", 422, "bad_url"),
    ("http://user:secret@example.org/", 422, "bad_url"),
    ("http://169.254.169.254/latest/meta-data", 422, "private_address"),
    ("http://[::1]:8000/", 422, "private_address"),
    ("http://localhost:8000/", 422, "private_address"),
    ("http://0x7f000001/", 422, "private_address"),
    ("https://10.0.0.1/", 422, "private_address"),
    ("http://name.invalid/", 502, "fetch_failed"),
)


def test_addresses_that_may_not_be_used_are_refused(fetching):
    for url, status, code in ADDRESSES:
        assert problem(by_url(fetching, url), status)["code"] == code


def test_only_some_images_are_fetched_at_a_time(fetching, site, reachable):
    budget = fetching.app.state.engine.budgets.fetches
    with contextlib.ExitStack() as held:
        for _ in range(budget.limit):
            held.enter_context(budget.take())
        assert problem(by_url(fetching, f"{site}/a.jpg"), 503)["code"] == "busy"


@pytest.mark.slow
def test_the_page_opens_an_image_at_an_address(browser, fetching, site, reachable):
    from support.running_browser import open_page

    with open_page(browser, fetching.url) as page:
        page.page.click("#choose-url")
        page.page.fill("#url", f"{site}/a.jpg")
        page.page.keyboard.press("Enter")
        page.opened("a.jpg")
        page.click(200, 180)
        page.settled()
        page.page.keyboard.press("u")
        page.page.fill("#url", f"{site}/missing")
        page.page.locator("#url-dialog .primary").click()
        page.wait("document.getElementById('banner').textContent.includes('answers 404')")
        assert page.page.evaluate("tritonSam.image.name") == "a.jpg"
        page.refused(502)


# --- both ------------------------------------------------------------------------------------------------------------

FAILURES = (
    (by_url, "/missing", 502, "answers 404"),
    (by_url, "/circle", 502, "sends more than 4 redirects"),
    (by_url, "/to/ftp://example.org/", 422, "http://"),
    (by_url, "/to/http://10.0.0.1/", 422, "not a public host"),
    (by_url, "/text", 415, "unsupported or damaged image"),
    (by_url, "/large", 413, "larger than 1 MiB"),
    (by_task, "/data/missing", 502, "404"),
    (by_task, "/data/circle", 502, "redirects"),
    (by_task, "/data/large", 413, "max_body"),
    (by_task, "s3://bucket/a.jpg", 502, "404"),
    (by_task, "http://169.254.169.254/latest/meta-data", 422, "only from Label Studio"),
    (by_task, "//elsewhere.example/a.jpg", 422, "only from Label Studio"),
    (by_task, "file:///etc/passwd", 422, "only from Label Studio"),
    (by_task, "data:image/png;base64,%", 422, "base64"),
)


def test_failures_are_told(fetching, site, reachable):
    for ask, path, status, text in FAILURES:
        answer = ask(fetching, site + path if ask is by_url else path)
        assert (answer.status_code, text in answer.text) == (status, True), (path, answer.text)


@pytest.mark.anyio
async def test_slow_sites_hold_no_threads_that_other_requests_need():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    free = threading.Event()

    def request(_):
        free.wait(PATIENCE)
        raise ValueError

    slow = asyncio.create_task(public.fetch("http://slow.example", 1, request))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "other"), PATIENCE / 2) == "other"
    free.set()
    with pytest.raises(public.FetchError):
        await slow


@pytest.mark.parametrize("ask", [by_url, by_task])
def test_a_slow_image_ends_in_time_and_holds_up_no_other(fetching, site, reachable, monkeypatch, ask):
    """Each byte of it comes in time, but all of them never do. A socket's timeout would start anew with each."""
    monkeypatch.setattr(public, "SECONDS", 1.0)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(ask, fetching, f"{site}/data/slow")
        wait_until(lambda: "/data/slow" in paths() or slow.done())
        monkeypatch.setattr(public, "SECONDS", PATIENCE)  # of the others
        assert by_task(fetching, f"{site}/data/upload/1/a.jpg?{ask.__name__}").status_code == 200
        assert slow.result().status_code == 504


PUBLIC = (
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
    ("::127.0.0.1", False),
    ("::ffff:0:127.0.0.1", False),
    ("64:ff9b:1::a00:1", False),
    ("fec0::1", False),
)


def test_public_addresses():
    for address, expected in PUBLIC:
        assert is_public(address) is expected, address


def test_a_name_that_changes_its_address_is_refused(monkeypatch, site):
    """The first look-up gives a public address, and the second one that of this machine."""
    port = int(site.rsplit(":", 1)[1])
    answers = iter([[(2, 1, 6, "", ("93.184.216.34", port))], [(2, 1, 6, "", ("127.0.0.1", port))]])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: next(answers))
    monkeypatch.setattr(CURRENT, "call", Call(time.monotonic() + 60), raising=False)
    with pytest.raises(PrivateAddressError, match=r"127\.0\.0\.1"):
        FetchPool().request("GET", f"http://rebinding.example:{port}/a.jpg")


# --- images of tasks -------------------------------------------------------------------------------------------------


def test_an_image_of_a_task_is_fetched_once(fetching, site):
    for address in ("/data/upload/1/a.jpg", "/data/upload/1/a.jpg"):
        answer = by_task(fetching, address)
        assert answer.status_code == 200, answer.text
        assert answer.json()["results"][0]["result"]
    assert len(Site.seen) == 1
    assert by_task(fetching, f"{site}/data/upload/1/a.jpg").status_code == 200


def test_the_token_stays_with_label_studio(fetching, monkeypatch):
    assert by_task(fetching, "/data/elsewhere").status_code == 200
    (first, token), (second, nothing) = Site.seen
    assert (first, second, token is None, nothing) == ("/data/elsewhere", "/a.jpg", False, None)
    monkeypatch.setattr(Site, "storage", "http://127.0.0.1:7/a.jpg")
    answer = by_task(fetching, "/data/elsewhere?gone")
    assert answer.status_code == 502
    assert "the storage that Label Studio leads to, http://127.0.0.1:7, does not answer" in answer.text


def test_a_label_studio_that_is_gone_or_refuses(light_triton, site):
    gone = "answer at http://127.0.0.1:9: check that it runs, and the address in --label-studio-url"
    for url, token, text in (
        ("http://127.0.0.1:9", "legacy", gone),
        (site, "wrong", "LABEL_STUDIO_API_KEY"),
        (site, "a.wrong.token", "LABEL_STUDIO_API_KEY"),
    ):
        with running_service(light_triton.url, **studio(url, token)) as service:
            answer = by_task(service, "/data/upload/1/a.jpg")
            assert (answer.status_code, text in answer.text) == (502, True), answer.text[:300]
            assert token not in answer.text


def test_a_storage_in_a_private_network_is_refused_unless_it_is_allowed(light_triton, site):
    with running_service(light_triton.url, **studio(site, "legacy")) as service:
        answer = by_task(service, "/data/elsewhere")
        assert answer.status_code == 502
        assert "label_studio_private_storage" in answer.text
        assert paths() == ["/data/elsewhere"]
        assert by_task(service, "/data/upload/1/a.jpg").status_code == 200
