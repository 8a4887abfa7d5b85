"""Images by address: where the operator allows it, from public addresses, and each failure has its problem."""

import http.server
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")
from support.problems import problem
from support.running_service import running_service
from support.small_site import SmallSite

from triton_sam.service import image_urls, public
from triton_sam.service.problems import Problem
from triton_sam.service.settings import Settings
from triton_sam.transport.timed_sockets import Call

LARGE = 1 << 20


class Site(SmallSite, http.server.BaseHTTPRequestHandler):
    """A web site with an image, and with everything that can go wrong."""

    content = b""

    def do_GET(self):
        self.server.seen.append(self.path)
        if self.path == "/a.jpg":
            self.answer(200, self.content)
        elif self.path == "/moved":
            self.answer(302, b"", "/a.jpg")
        elif self.path.startswith("/to/"):
            self.answer(302, b"", self.path.removeprefix("/to/"))
        elif self.path == "/circle":
            self.answer(302, b"", "/circle")
        elif self.path == "/text":
            self.answer(200, b"hello")
        elif self.path == "/large":
            self.answer(200, bytes(LARGE + 1))
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b".")
                time.sleep(0.05)
        else:
            self.answer(404, b"")

    def handle(self):
        try:
            super().handle()
        except OSError:
            self.close_connection = True


@pytest.fixture(scope="module")
def site(picture):
    Site.content = picture
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def fetching(service_triton):
    """A service that fetches images."""
    with running_service(service_triton.grpc_url, image_urls=True, max_body=LARGE) as service:
        yield service


@pytest.fixture
def reachable(monkeypatch):
    """Let this machine count as a public address."""
    original = public.is_public
    monkeypatch.setattr(public, "is_public", lambda address: address == "127.0.0.1" or original(address))


def ask(service, url):
    return service.http.post("/v1/images/url", json={"url": url})


def test_no_image_is_fetched_unless_the_operator_allows_it(service, site):
    server, url = site
    before = len(server.seen)
    assert problem(ask(service, f"{url}/a.jpg"), 403)["code"] == "image_urls_off"
    assert len(server.seen) == before
    assert service.http.get("/v1/models").json()["image_urls"] is False


def test_an_image_is_fetched_and_can_be_segmented(fetching, site, picture, reachable):
    for path in ("/a.jpg", "/moved"):
        answer = ask(fetching, site[1] + path)
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
        assert problem(ask(fetching, url), status)["code"] == code


FAILURES = (
    ("/missing", 502, "answers 404"),
    ("/circle", 502, "leads on more than"),
    ("/to/ftp://example.org/", 422, "http://"),
    ("/to/http://10.0.0.1/", 422, "not a public host"),
    ("/text", 415, "unsupported or damaged image"),
    ("/large", 413, "larger than 1 MiB"),
)


def test_each_failure_has_its_problem(fetching, site, reachable):
    for path, status, text in FAILURES:
        assert text in problem(ask(fetching, site[1] + path), status)["detail"]


def test_a_host_that_is_gone_is_told_without_the_name_of_an_error(reachable):
    end = time.monotonic() + 5
    settings = Settings("localhost:8000", image_urls=True)
    urls = image_urls.ImageUrls(settings, SimpleNamespace(fetches=None))
    with pytest.raises(Problem) as caught:
        urls._fetch("http://127.0.0.1:9/a.jpg", Call(end), end)
    assert caught.value.detail == "127.0.0.1 cannot be reached: open the address in a browser, or upload the image"


def test_a_private_address_behind_a_redirect_is_not_asked(fetching, site, monkeypatch):
    server, url = site
    asked = []

    def is_public(address):
        asked.append(address)
        return len(asked) <= 2  # the look-up and the connection of the first request

    monkeypatch.setattr(public, "is_public", is_public)
    before = len(server.seen)
    assert problem(ask(fetching, f"{url}/moved"), 422)["code"] == "private_address"
    assert server.seen[before:] == ["/moved"]


def test_a_site_that_sends_a_byte_now_and_then_does_not_hold_the_service(fetching, site, reachable, monkeypatch):
    monkeypatch.setattr(image_urls, "SECONDS", 0.4)
    began = time.monotonic()
    assert problem(ask(fetching, f"{site[1]}/slow"), 504)["code"] == "timeout"
    assert time.monotonic() - began < 3


def test_only_some_images_are_fetched_at_a_time(fetching, site, reachable):
    budget = fetching.app.state.engine.budgets.fetches
    held = [budget.take() for _ in range(budget.limit)]
    try:
        assert problem(ask(fetching, f"{site[1]}/a.jpg"), 503)["code"] == "busy"
    finally:
        for lease in held:
            lease.give()


def test_the_page_opens_an_image_at_an_address(browser, fetching, site, reachable):
    from support.running_browser import open_page

    with open_page(browser, fetching.url) as page:
        page.page.click("#choose-url")
        page.page.fill("#url", f"{site[1]}/a.jpg")
        page.page.keyboard.press("Enter")
        page.opened("a.jpg")
        page.click(200, 180)
        page.settled()
        page.page.keyboard.press("u")
        page.page.fill("#url", f"{site[1]}/missing")
        page.page.locator("#url-dialog .primary").click()
        page.wait("document.getElementById('banner').textContent.includes('answers 404')")
        assert page.page.evaluate("tritonSam.image.name") == "a.jpg"
        page.faults.clear()  # the browser reports the 502
