"""The compose profile tls: a real nginx with the project's configuration in front of a local Triton."""

import contextlib
import json
import ssl
import subprocess
import urllib.error
import urllib.request

import httpx
import numpy as np
import pytest
from support.nginx_proxy import make_tls, needs_nginx, needs_openssl, proxy

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.errors import InferenceError, ServerUnreachableError
from triton_sam.local_server import LocalServer
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

pytestmark = [needs_nginx, needs_openssl]


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Yield nginx with TLS and a token in front of a local Triton with the session model."""
    tls, folder = tmp_path_factory.mktemp("tls"), tmp_path_factory.mktemp("nginx")
    token = make_tls(tls)
    repository = bundled("model_repository")
    with LocalServer(repository, models=["sam2"]) as server:
        addresses = ([server.http_url[len("http://") :]], [server.grpc_url[len("grpc://") :]])
        with proxy(folder, tls, *addresses) as running:
            running.options = {
                "ca_certs": tls / "ca.crt",
                "headers": {"Authorization": f"Bearer {token}"},
                "timeout": 120,
            }
            running.tls, running.token, running.triton = tls, token, server
            yield running


@pytest.fixture(params=["https", "grpcs"])
def url(request, front):
    return getattr(front, request.param)


def bitmap(side: int) -> bytes:
    """Return a BMP file of side x side RGB pixels. It has 3 bytes for each pixel, so that large files are cheap."""
    pixels = side * side * 3  # rows need no padding, because side is a multiple of 4
    header = b"BM" + (54 + pixels).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    header += (40).to_bytes(4, "little") + side.to_bytes(4, "little") * 2
    header += (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24)
    return header + b"\x40\x80\xc0" * (side * side)


def test_masks_through_tls_with_an_authority_and_a_token_of_our_own(front, url, images):
    with SAM2TritonClient(url, **front.options) as client:
        assert client.is_ready()
        client.set_image(images / "shapes.jpg")
        masks, _ = client.predict([[200, 180]], [1])
    with SAM2TritonClient(url, embeddings="client", **front.options) as client:  # 17 MB with the click
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


def test_a_certificate_of_an_unknown_authority_is_refused(front, url, images):
    options = {**front.options, "ca_certs": None, "retries": 0}
    with SAM2TritonClient(url, **options) as client, pytest.raises(ServerUnreachableError):
        client.set_image(images / "shapes.jpg")


def test_an_image_of_25_megabytes_is_taken_and_one_of_200_refused(front, url):
    with SAM2TritonClient(url, **front.options) as client:
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


def test_clients_cannot_change_the_server(front, url):
    transport = Transport(parse_url(url), **front.options)
    with pytest.raises(InferenceError, match="forbids this to clients"):
        transport.load_model("sam2")
    assert "sam2" in transport.ready_models()
    transport.close()


def test_status_of_each_path(front):
    context = ssl.create_default_context(cafile=front.tls / "ca.crt")

    def status(path: str, **headers: str) -> int:
        request = urllib.request.Request(front.https + path, headers=headers)
        try:
            with urllib.request.urlopen(request, context=context, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code if error.code == 404 or "error" in json.loads(error.read()) else -error.code

    assert status("/v2/health/ready") == 200  # for load balancers
    assert status("/v2") == 401
    assert status("/v2", Authorization=f"Bearer {front.token}") == 200
    assert status("/v2/logging", Authorization=f"Bearer {front.token}") == 403
    assert status("/v2/systemsharedmemory/status", Authorization=f"Bearer {front.token}") == 403
    assert status("/metrics", Authorization=f"Bearer {front.token}") == 404
    assert front.token not in front.access_log.read_text()


def test_the_service_and_its_websocket_through_tls(front, tmp_path, images):
    from support.running_service import running_service
    from websockets.sync.client import connect

    context = ssl.create_default_context(cafile=front.tls / "ca.crt")
    token = {"Authorization": "Bearer of-the-service"}
    addresses = ([front.triton.http_url[len("http://") :]], [front.triton.grpc_url[len("grpc://") :]])
    with contextlib.ExitStack() as held:
        service = held.enter_context(running_service(front.triton.grpc_url, token="of-the-service"))
        url = held.enter_context(proxy(tmp_path, front.tls, *addresses, service=service.url[len("http://") :])).https
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
        with connect(address, ssl=context, origin=url, additional_headers=token) as page:
            page.send(json.dumps({"type": "hello", "version": 2}))
            assert json.loads(page.recv(30))["type"] == "status"


def test_without_a_server_the_client_says_so(front, tmp_path, images):
    with proxy(tmp_path, front.tls, ["127.0.0.1:9"], ["127.0.0.1:9"]) as alone:
        for url in (alone.https, alone.grpcs):
            with (
                SAM2TritonClient(url, **{**front.options, "retries": 0}) as client,
                pytest.raises(ServerUnreachableError, match="no Triton behind the proxy"),
            ):
                client.set_image(images / "shapes.jpg")


def test_certificates_stay_when_the_script_runs_again(front):
    before = {path.name: path.read_bytes() for path in front.tls.iterdir()}
    script = bundled("deploy/nginx/make_certificates.sh")
    subprocess.run(["bash", script, "--directory", front.tls, "elsewhere"], check=True, capture_output=True, timeout=60)
    assert {path.name: path.read_bytes() for path in front.tls.iterdir()} == before
    assert (front.tls / "server.key").stat().st_mode & 0o077 == 0


def test_the_key_of_the_authority_is_not_where_nginx_reads(tmp_path):
    tls, key = tmp_path / "tls", tmp_path / "tls-authority" / "ca.key"
    make_tls(tls)
    assert {path.name for path in tls.iterdir()} == {"ca.crt", "server.crt", "server.key", "tokens.map"}
    assert key.stat().st_mode & 0o077 == 0
    # The script once wrote the key beside the certificates: it moves the key away, and goes on using it.
    before = key.read_bytes()
    key.rename(tls / "ca.key")
    (tls / "server.crt").unlink()
    script = bundled("deploy/nginx/make_certificates.sh")
    subprocess.run(["bash", script, "--directory", tls, "elsewhere"], check=True, capture_output=True, timeout=60)
    assert not (tls / "ca.key").exists()
    assert key.read_bytes() == before
    check = ["openssl", "verify", "-CAfile", tls / "ca.crt", tls / "server.crt"]
    assert subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0
