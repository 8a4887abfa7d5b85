"""Small servers for tests of the proxy: an HTTP server with one answer for each path, and a name server."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator, Mapping


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
