"""The compose profile tls: a real nginx with the project's configuration in front of a local Triton."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import httpx
import numpy as np
import pytest
from support.conditions import PATIENCE, eventually, wait_until
from support.custom_metrics import Scrape
from support.nginx_proxy import RESOLVES, answering, free_ports, make_tls, naming, needs_nginx, needs_openssl, proxy

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.errors import InferenceError, ServerUnreachableError
from triton_sam.local_server import LocalServer
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

pytestmark = [needs_nginx, needs_openssl]


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Return a folder with certificates, and its token."""
    folder = tmp_path_factory.mktemp("tls")
    return folder, make_tls(folder)


@pytest.fixture(scope="module")
def front(tls, service_triton, tmp_path_factory):
    """Yield nginx with TLS and a token in front of a local Triton with the session model."""
    addresses = [[url.partition("://")[2]] for url in (service_triton.http_url, service_triton.grpc_url)]
    with proxy(tmp_path_factory.mktemp("nginx"), tls[0], *addresses) as running:
        headers = {"Authorization": f"Bearer {tls[1]}"}
        running.options = {"ca_certs": tls[0] / "ca.crt", "headers": headers, "timeout": 120}
        running.tls, running.token, running.triton, running.addresses = *tls, service_triton, addresses
        yield running


@pytest.fixture(params=["https", "grpcs"])
def front_url(request, front):
    return getattr(front, request.param)


def bitmap(side: int) -> bytes:
    """Return a BMP file of side x side RGB pixels. It has 3 bytes for each pixel, so that large files are cheap."""
    pixels = side * side * 3  # rows need no padding, because side is a multiple of 4
    header = b"BM" + (54 + pixels).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    header += (40).to_bytes(4, "little") + side.to_bytes(4, "little") * 2
    header += (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24)
    return header + b"\x40\x80\xc0" * (side * side)


def test_masks_through_tls_with_an_authority_and_a_token_of_our_own(front, front_url, images):
    with SAM2TritonClient(front_url, **front.options) as client:
        assert client.is_ready()
        client.set_image(images / "shapes.jpg")
        masks, _ = client.predict([[200, 180]], [1])
    with SAM2TritonClient(front_url, embeddings="client", **front.options) as client:  # 17 MB with the click
        client.set_image(images / "shapes.jpg")
        same, _ = client.predict([[200, 180]], [1])
    assert (masks[0, 0] > 0).sum() > 100
    np.testing.assert_array_equal(masks, same)


def test_masks_by_the_command_line_through_tls(front, images, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_TOKEN", front.options["headers"]["Authorization"].removeprefix("Bearer "))
    server = ["--url", front.https, "--ca-certs", str(front.options["ca_certs"])]
    assert main(["predict", str(images / "shapes.jpg"), "--point", "200,180", *server]) == 0
    assert "object 0: score " in capsys.readouterr().out
    assert main(["models", *server]) == 0
    assert "sam2_decoder" in capsys.readouterr().out.partition("server ")[2]
    assert main(["models", *server, "--token", "wrong"]) == 1
    assert "refuses access" in capsys.readouterr().err


def test_a_wrong_token_is_refused(front, images):
    for url, header in (
        (front.https, None),
        (front.grpcs, "Bearer wrong"),
        (front.https, "Bearer "),
        (front.grpcs, "Basic Zmlyc3Q6"),
    ):
        options = {**front.options, "headers": {"Authorization": header} if header else None}
        with (
            SAM2TritonClient(url, **options) as client,
            pytest.raises(InferenceError, match="refuses access") as caught,
        ):
            client.set_image(images / "shapes.jpg")
        assert "needs a token" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_certificate_of_an_unknown_authority_is_refused(front, front_url, images):
    options = {**front.options, "ca_certs": None, "retries": 0}
    with SAM2TritonClient(front_url, **options) as client, pytest.raises(ServerUnreachableError):
        client.set_image(images / "shapes.jpg")


def test_an_image_of_25_megabytes_is_taken_and_one_of_200_refused(front, front_url):
    with SAM2TritonClient(front_url, **front.options) as client:
        picture = bitmap(2900)
        assert 25e6 < len(picture) < 26e6
        client.set_image(picture)
        client.predict([[200, 180]], [1])
        picture = bitmap(8168)
        assert len(picture) > 200e6
        with pytest.raises(InferenceError, match="takes no request of that size") as caught:
            client.set_image(picture)
        assert "\n" not in str(caught.value)
        client.predict([[200, 180]], [1])  # the earlier image is still set


def test_clients_cannot_change_the_server(front, front_url):
    transport = Transport(parse_url(front_url), **front.options)
    with pytest.raises(InferenceError, match="forbids this to clients"):
        transport.load_model("sam2")
    assert "sam2" in transport.ready_models()
    transport.close()


def test_status_of_each_path(front):
    context = ssl.create_default_context(cafile=front.tls / "ca.crt")

    def status(path: str, **headers: str) -> int:
        answer = httpx.get(front.https + path, headers=headers, verify=context, timeout=60)
        return answer.status_code if answer.is_success or answer.status_code == 404 or "error" in answer.json() else 0

    assert status("/v2/health/ready") == 200  # for load balancers
    assert status("/v2") == 401
    assert status("/v2", Authorization=f"Bearer {front.token}") == 200
    assert status("/v2/logging", Authorization=f"Bearer {front.token}") == 403
    assert status("/v2/systemsharedmemory/status", Authorization=f"Bearer {front.token}") == 403
    assert status("/metrics", Authorization=f"Bearer {front.token}") == 404
    assert front.token not in front.access_log.read_text()


def test_the_service_and_its_websocket_through_tls(front, tmp_path, images):
    from support.running_service import running_service
    from websockets import connect

    context = ssl.create_default_context(cafile=front.tls / "ca.crt")
    token = {"Authorization": "Bearer of-the-service"}
    with contextlib.ExitStack() as held:
        service = held.enter_context(running_service(front.triton.grpc_url, token="of-the-service"))
        address = service.url.removeprefix("http://")
        url = held.enter_context(proxy(tmp_path, front.tls, *front.addresses, service=address)).https
        http = held.enter_context(httpx.Client(base_url=url, verify=context, timeout=120))
        assert http.get("/").headers["content-type"].startswith("text/html")
        assert http.get("/v1/models").status_code == 401
        large = http.post("/v1/images", content=bitmap(5000), headers={**token, "Content-Type": "image/bmp"})
        assert large.status_code == 413
        assert "larger than 64 MiB" in large.json()["detail"]
        files = {"image": (images / "shapes.jpg").read_bytes()}
        image = http.post("/v1/images", files=files, headers=token).json()["id"]
        found = http.post(f"/v1/images/{image}/segment", json={"points": [[200, 180]]}, headers=token)
        assert found.json()["masks"][0]["area"] > 100
        foreign = http.post("/v1/images", files=files, headers={**token, "Origin": "https://evil.example"})
        assert foreign.status_code == 403
        address = url.replace("https", "wss") + "/live"

        async def greet():
            # The synchronous client reads in a thread while it writes in another, which hangs Python's TLS at times.
            async with connect(address, ssl=context, origin=url, additional_headers=token) as page:
                await page.send(json.dumps({"type": "hello", "version": 2}))
                return json.loads(await asyncio.wait_for(page.recv(), PATIENCE))

        assert asyncio.run(greet())["type"] == "status"


def test_without_a_server_the_client_says_so(front, tmp_path, images):
    with proxy(tmp_path, front.tls, ["127.0.0.1:9"], ["127.0.0.1:9"]) as alone:
        for url in (alone.https, alone.grpcs):
            with (
                SAM2TritonClient(url, **{**front.options, "retries": 0}) as client,
                pytest.raises(ServerUnreachableError, match="no Triton behind the proxy"),
            ):
                client.set_image(images / "shapes.jpg")


# --- the servers behind nginx: one that is busy stays in use, and one that gets another address is found again


INFER = "/v2/models/sam2/infer"


def caller(https: str, tls: tuple[Path, str]) -> Callable[[str, str], int]:
    """Return a function that sends a request through the proxy, and returns the status of the answer."""
    folder, token = tls
    context = ssl.create_default_context(cafile=folder / "ca.crt")

    def call(method: str, path: str, header: str = f"Bearer {token}") -> int:
        connection = http.client.HTTPSConnection(https.removeprefix("https://"), context=context, timeout=PATIENCE)
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


# --- two servers behind a round-robin proxy: clients survive lost images, and a server that starts again


@pytest.fixture(scope="module")
def replicas(tls, tmp_path_factory):
    """Yield two local servers behind nginx without its hash, so that each request goes to the next server."""
    ports = free_ports(6)
    names = ("http_port", "grpc_port", "metrics_port")
    options = [dict(zip(names, each, strict=True)) for each in (ports[:3], ports[3:])]
    # The test starts the killed server itself.
    servers = [LocalServer(bundled("model_repository"), models=["sam2"], heal=False, **each) for each in options]
    http, grpc = ([f"127.0.0.1:{each[name]}" for each in options] for name in names[:2])
    try:
        for server in servers:
            server.start()
        with proxy(tmp_path_factory.mktemp("nginx"), tls[0], http, grpc, sticky=False) as running:
            headers = {"Authorization": f"Bearer {tls[1]}"}
            running.options = {"ca_certs": tls[0] / "ca.crt", "headers": headers, "timeout": 300}
            running.servers, running.grpc = servers, grpc
            yield running
    finally:
        for server in servers:
            server.stop()


def cache_hits(server) -> float:
    return Scrape(server.metrics_url).total("triton_sam_cache_hits_total")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("protocol", "clicks"),
    [
        ("grpcs", 300),
        pytest.param("grpcs", 1000, marks=pytest.mark.nightly),
        pytest.param("https", 1000, marks=pytest.mark.nightly),
    ],
)
def test_no_click_fails_while_a_server_dies_and_comes_back(replicas, protocol, clicks, images):
    first, second = replicas.servers
    killed, back = clicks // 3, 2 * clicks // 3
    with SAM2TritonClient(getattr(replicas, protocol), **replicas.options) as client:
        client.set_image(images / "shapes.jpg")
        expected, _ = client.predict([[200, 180]], [1])
        answers: Counter[bool] = Counter()
        for number in range(clicks):
            if number == killed:
                wait_until(lambda: min(cache_hits(first), cache_hits(second)) > killed // 10)  # both answered clicks
                os.kill(second.pid, signal.SIGKILL)
            elif number == back:
                second.wait(PATIENCE)
                # On the same ports, with an empty cache, while clicks continue.
                starter = threading.Thread(target=second.start)
                starter.start()
            masks, _ = client.predict([[200, 180]], [1])
            answers[np.array_equal(masks, expected)] += 1
        starter.join(300)
        assert answers == {True: clicks}
        # The server works again: it received the image, and later clicks found it. nginx tries the server every 5 s.
        eventually(lambda: cache_hits(second) >= 10 or client.predict([[200, 180]], [1]) is None, errors=URLError)
