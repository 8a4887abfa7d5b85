"""The servers behind nginx: one that is busy stays in use, and one that gets another address is found again."""

import contextlib
import http.client
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from support.conditions import wait_until
from support.nginx_proxy import RESOLVES, answering, free_ports, make_tls, naming, needs_nginx, needs_openssl, proxy

pytestmark = [needs_nginx, needs_openssl]
INFER = "/v2/models/sam2/infer"


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Return a folder with certificates, and its token."""
    folder = tmp_path_factory.mktemp("tls")
    return folder, make_tls(folder)


def caller(https: str, tls: tuple[Path, str]) -> Callable[[str, str], int]:
    """Return a function that sends a request through the proxy, and returns the status of the answer."""
    folder, token = tls
    context = ssl.create_default_context(cafile=folder / "ca.crt")

    def call(method: str, path: str, header: str = f"Bearer {token}") -> int:
        connection = http.client.HTTPSConnection(https.removeprefix("https://"), context=context, timeout=30)
        connection.request(method, path, headers={"Authorization": header})
        status = connection.getresponse().status
        connection.close()
        return status

    return call


def test_a_busy_server_keeps_its_clients(tls, tmp_path):
    """BUSY is status 503. The next server does not have the images of these clients."""
    here = ("127.0.0.1", 0)
    with answering(here, {INFER: 503}) as (first, one), answering(here, {INFER: 503}) as (second, other):
        servers = [f"127.0.0.1:{first}", f"127.0.0.1:{second}"]
        with proxy(tmp_path, tls[0], servers, servers) as running:
            call = caller(running.https, tls)
            assert [call("POST", INFER) for _ in range(6)] == [503] * 6
            assert sorted([len(one), len(other)]) == [0, 6]
            assert call("GET", "/v2") == 200


def test_a_dead_server_is_left_out(tls, tmp_path):
    with answering(("127.0.0.1", 0), {}) as (port, seen):
        servers = [f"127.0.0.1:{port}", f"127.0.0.1:{free_ports(1)[0]}"]
        with proxy(tmp_path, tls[0], servers, servers, sticky=False) as running:
            call = caller(running.https, tls)
            assert [call("POST", INFER) for _ in range(6)] == [200] * 6
            assert len(seen) == 6


def test_capitals_of_a_token_count(tls, tmp_path):
    folder, token = tls
    (folder / "tokens.map").write_text(
        (folder / "tokens.map").read_text() + '"~^Basic \\QdXNlcjpwYXNz+/=\\E$" second;\n'
    )
    with (
        answering(("127.0.0.1", 0), {}) as (port, _),
        proxy(tmp_path, folder, [f"127.0.0.1:{port}"], [f"127.0.0.1:{port}"]) as running,
    ):
        call = caller(running.https, tls)
        assert call("GET", "/v2") == 200
        assert call("GET", "/v2", "Basic dXNlcjpwYXNz+/=") == 200
        wrong = [
            f"Bearer {token.upper()}",
            "Basic DXNLCJPWYXNZ+/=",
            "Basic dXNlcjpwYXNz//=",
            f"Bearer {token}x",
            "Bearer ",
        ]
        assert token.upper() != token
        assert [call("GET", "/v2", header) for header in wrong] == [401] * len(wrong)


def test_only_a_service_with_a_token_is_led_to(tls, tmp_path):
    """The container's environment has the service's address only if there is a token for it."""
    folders = [tmp_path / name for name in ("open", "closed")]
    with answering(("127.0.0.1", 0), {}) as (port, seen):
        for folder, service, status in zip(folders, (f"127.0.0.1:{port}", ""), (200, 404), strict=True):
            folder.mkdir()
            with proxy(folder, tls[0], ["127.0.0.1:9"], ["127.0.0.1:9"], service=service) as running:
                call = caller(running.https, tls)
                assert [call(*request) for request in (("GET", "/"), ("POST", "/v1/images"))] == [status] * 2
                assert call("GET", "/v2/logging") == 403
    assert len(seen) == 2


@pytest.mark.slow
@pytest.mark.skipif(not RESOLVES, reason="this nginx is older than 1.27.3")
def test_a_server_with_a_new_address_is_found_again(tls, tmp_path):
    """A container that starts again may get another address."""
    (port,) = free_ports(1)
    address = ["127.0.0.2"]
    with naming(lambda: address[0]) as name_server, contextlib.ExitStack() as before:
        before.enter_context(answering(("127.0.0.2", port), {}))
        servers = [f"triton:{port}"]
        with proxy(tmp_path, tls[0], servers, servers, name_server=name_server) as running:
            call = caller(running.https, tls)

            wait_until(lambda: call("GET", "/v2") == 200)
            before.close()
            assert call("GET", "/v2") == 502
            address[0] = "127.0.0.3"
            with answering(("127.0.0.3", port), {}) as (_, seen):
                wait_until(lambda: call("GET", "/v2") == 200)
                assert seen
