"""Two servers behind a round-robin proxy: clients survive lost images, and a server that dies and starts again."""

import os
import re
import signal
import threading
import time
import urllib.request
from collections import Counter

import numpy as np
import pytest
from support.nginx_proxy import free_ports, make_tls, needs_nginx, needs_openssl, proxy

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.local_server import LocalServer

pytestmark = [needs_nginx, needs_openssl, pytest.mark.slow]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """Yield two local servers behind nginx without its hash, so that each request goes to the next server."""
    tls, folder = tmp_path_factory.mktemp("tls"), tmp_path_factory.mktemp("nginx")
    token = make_tls(tls)
    ports = free_ports(6)
    servers = [
        LocalServer(
            bundled("model_repository"),
            models=["sam2"],
            http_port=ports[3 * number],
            grpc_port=ports[3 * number + 1],
            metrics_port=ports[3 * number + 2],
            heal=False,  # the test starts the killed server itself
        )
        for number in range(2)
    ]
    http = [f"127.0.0.1:{ports[3 * number]}" for number in range(2)]
    grpc = [f"127.0.0.1:{ports[3 * number + 1]}" for number in range(2)]
    try:
        for server in servers:
            server.start()
        with proxy(folder, tls, http, grpc, sticky=False) as running:
            running.options = {
                "ca_certs": tls / "ca.crt",
                "headers": {"Authorization": f"Bearer {token}"},
                "timeout": 300,
            }
            running.servers, running.grpc = servers, grpc
            yield running
    finally:
        for server in servers:
            server.stop()


def cache_hits(server) -> int:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as answer:
        found = re.search(r"triton_sam_cache_hits_total\S* (\d+)", answer.read().decode())
    return int(found[1]) if found else 0


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
                assert min(cache_hits(first), cache_hits(second)) > killed // 10  # both servers have answered clicks
                os.kill(second.pid, signal.SIGKILL)
            elif number == back:
                second.wait(60)
                starter = threading.Thread(
                    target=second.start
                )  # on the same ports, with an empty cache, while clicks continue
                starter.start()
            masks, _ = client.predict([[200, 180]], [1])
            answers[np.array_equal(masks, expected)] += 1
        starter.join(300)
        assert answers == {True: clicks}
        # The server works again: it received the image, and later clicks found it. nginx tries the server every 5 s.
        deadline = time.monotonic() + 120
        while cache_hits(second) < 10 and time.monotonic() < deadline:
            client.predict([[200, 180]], [1])
        assert cache_hits(second) >= 10
