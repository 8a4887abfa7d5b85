"""Runs the project's nginx configuration on free ports, in front of servers on this machine or of small stand-ins."""

from __future__ import annotations

import contextlib
import http.server
import os
import random
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triton_sam._common.bundle import checkout

from .programs import running_program

ROOT = checkout() or Path.cwd()  # the proxy is tested only in a checkout
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def nginx_version() -> tuple[int, ...]:
    """Return the version of nginx; (0,) if it is not installed."""
    if NGINX is None:
        return (0,)
    text = subprocess.run([NGINX, "-v"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r"nginx/([\d.]+)", text)
    return tuple(map(int, found[1].split("."))) if found else (0,)


RESOLVES = nginx_version() >= (1, 27, 3)
"""Whether this nginx supports `resolve`, like the image of docker-compose.yml. Debian's nginx is older."""
needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx program (Debian: apt install nginx-light)")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl program")


def free_ports(count: int) -> tuple[int, ...]:
    """Return different free ports.

    They are below the ports of outgoing connections, so that they are still free when a server restarts.
    """
    ports: set[int] = set()
    while len(ports) < count:
        port = random.randint(12000, 31999)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.add(port)
    return tuple(ports)


def make_tls(folder: Path) -> str:
    """Create certificates for this machine with the project's script; return the first token."""
    script = ROOT / "deploy/nginx/make_certificates.sh"
    command = ["bash", str(script), "--directory", str(folder), "localhost", "127.0.0.1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    token = re.search(r"token: (\w+)", done.stdout)
    assert token is not None, done.stdout
    return token[1]


def configure(
    folder: Path,
    tls: Path,
    ports: tuple[int, int],
    http: Sequence[str],
    grpc: Sequence[str],
    sticky: bool = True,
    name_server: str = "127.0.0.1",
    service: str = "",
) -> Path:
    """Copy deploy/nginx's files with other ports, paths and servers, without directives that an old nginx lacks.

    Args:
        folder: the folder for the copies and for nginx's own files.
        tls: the folder of make_tls().
        ports: the ports of HTTPS and gRPC.
        http: host:port of the servers' HTTP endpoints.
        grpc: host:port of their gRPC endpoints.
        sticky: False removes the hash, for plain round-robin.
        name_server: address:port of the name server for servers given by name.
        service: host:port of the service with the page; "" if it has no token.

    Returns:
        The main configuration file.
    """
    text = (ROOT / "deploy" / "nginx" / "nginx.conf").read_text()
    for old, new in (
        ("/tmp/", f"{folder}/"),
        ("/etc/nginx/upstreams.conf", str(folder / "upstreams.conf")),
        ("/etc/nginx/tls", str(tls)),
        ("listen 8443", f"listen 127.0.0.1:{ports[0]}"),
        ("listen 8444", f"listen 127.0.0.1:{ports[1]}"),
        ("/dev/stderr", str(folder / "error.log")),
        ("/dev/stdout", str(folder / "access.log")),
        # The files are in a folder that only the user of the test may access.
        ("worker_processes auto;", "worker_processes 2; daemon off; " + ("user root;" if os.geteuid() == 0 else "")),
    ):
        assert old in text, old
        text = text.replace(old, new)
    upstreams = (ROOT / "deploy" / "nginx" / "upstreams.conf").read_text()
    for port, addresses in (("8000", http), ("8001", grpc)):
        line = re.search(rf"( *server )triton:{port}(.*)", upstreams)
        assert line is not None, upstreams
        upstreams = upstreams.replace(line[0], "\n".join(f"{line[1]}{address}{line[2]}" for address in addresses))
    if nginx_version() < (1, 25, 1):
        text = re.sub(r"( ssl);\n *http2 on;", r"\1 http2;", text)
    if not RESOLVES:
        upstreams = upstreams.replace(" resolve ", " ")
    resolver = (ROOT / "deploy" / "nginx" / "resolver.conf.template").read_text()
    assert "${NGINX_LOCAL_RESOLVERS}" in resolver
    (folder / "resolver.conf").write_text(resolver.replace("${NGINX_LOCAL_RESOLVERS}", name_server))
    page = (ROOT / "deploy" / "nginx" / "service.conf.template").read_text()
    assert "${SERVICE_SERVER}" in page
    (folder / "service.conf").write_text(page.replace("${SERVICE_SERVER}", service))
    if not sticky:
        upstreams = re.sub(r"(?m)^ *hash .*\n", "", upstreams)
    (folder / "upstreams.conf").write_text(upstreams)
    (folder / "nginx.conf").write_text(text)
    return folder / "nginx.conf"


@contextlib.contextmanager
def proxy(
    folder: Path, tls: Path, http: Sequence[str], grpc: Sequence[str], **options: Any
) -> Iterator[SimpleNamespace]:
    """Run nginx with the files of configure()."""
    https_port, grpcs_port = free_ports(2)
    path = configure(folder, tls, (https_port, grpcs_port), http, grpc, **options)
    with running_nginx(path, https_port):
        yield SimpleNamespace(
            https=f"https://localhost:{https_port}",
            grpcs=f"grpcs://localhost:{grpcs_port}",
            access_log=folder / "access.log",
            conf=path,
        )


@contextlib.contextmanager
def running_nginx(config: Path, port: int) -> Iterator[None]:
    """Run nginx with a configuration that listens on a port. Its output is in error.log in the same folder."""
    assert NGINX is not None, "the test lacks needs_nginx"

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    log = config.with_name("error.log")
    with running_program([NGINX, "-c", config, "-e", log], log, listens, 60):
        yield


@contextlib.contextmanager
def answering(
    address: tuple[str, int], statuses: Mapping[str, int], body: bytes = b"{}"
) -> Iterator[tuple[int, list[str]]]:
    """Answer requests with the status of their path, or 200. Yields the port and a growing list of all paths."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(self.path)
            self.send_response(statuses.get(self.path, 200))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815 - names of http.server

        def log_message(self, *args: object) -> None:
            """Stay quiet."""

    with http.server.ThreadingHTTPServer(address, Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port, seen
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def naming(lookup: Callable[[], str]) -> Iterator[str]:
    """Run a name server that answers every question for an A record with lookup(). Yields its address:port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.1)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    question, client = server.recvfrom(512)
                except TimeoutError:
                    continue
                end = question.index(0, 12) + 5  # after the name, its type and its class
                is_a = question[end - 4 : end - 2] == b"\0\1"
                record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(lookup()) if is_a else b""
                head = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_a else b"\0\0") + b"\0\0\0\0"
                server.sendto(head + question[12:end] + record, client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()
