"""A server with plain sockets, whose answers and faults a test defines, and a KServe client for it."""

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time

import numpy as np
from support.conditions import PATIENCE

from triton_sam.transport.kserve import JSON_LENGTH, KServeClient
from triton_sam.transport.timed_sockets import Call
from triton_sam.transport.url import parse_url

LARGE = {"x": np.zeros(20_000_000, np.uint8)}


SMALL = {"x": np.zeros(3, np.float32)}


class Server:
    """Answers each connection on a separate thread with ``serve(connection)``; stores the read data."""

    def __init__(self, serve, context=None):
        self.requests = []
        self.connections = []
        self._threads = []
        self.asked = threading.Event()
        self.ended = threading.Event()
        self._serve, self._context = serve, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closing = False
        scheme, host = ("http", "127.0.0.1") if context is None else ("https", "localhost")
        self.url = f"{scheme}://{host}:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """End all threads before closing the connections: a thread would use the next file with the same number."""
        self._is_closing = True
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname(), 10):
            self._acceptor.join()  # the connection ends its accept(), on every system
        self._listener.close()
        self.ended.set()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for connection in self.connections:
            connection.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                if self._is_closing:
                    connection.close()
                    return
                self.connections.append(connection)
                self._threads.append(threading.Thread(target=self._run, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _run(self, connection):
        with contextlib.suppress(OSError, ValueError):
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
                self.connections.append(connection)
            self._serve(self, connection)

    def read(self, connection):
        """Read one request: its head as text and its body; None if the client has disconnected."""
        content = b""
        while b"\r\n\r\n" not in content:
            part = connection.recv(1 << 16)
            if not part:
                self.ended.set()
                return None
            content += part
        head, _, body = content.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
        while len(body) < int(fields.get("content-length", 0)):
            part = connection.recv(1 << 20)
            if not part:
                self.ended.set()
                return None
            body += part
        self.requests.append((head.decode(), fields, body))
        self.asked.set()
        return self.requests[-1]


def self_signed(folder):
    """Create a certificate of localhost with openssl; return its path, and the context of a server that has it."""
    key, path = folder / "key.pem", folder / "cert.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {path} -days 2 -subj /CN=localhost"
    subprocess.run([*make.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return path, context


@contextlib.contextmanager
def refusing_port():
    """Yield a port that refuses connections. It is bound, so that no other process listens there meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def response(content, status="200 OK", **fields):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{lines}\r\n".encode() + content


def tensors(*outputs, data=b"", **fields):
    """An answer to an inference."""
    head = json.dumps({"outputs": outputs}).encode()
    return response(head + data, **{JSON_LENGTH.replace("-", "_"): len(head)}, **fields)


DONE = tensors({"name": "y", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}}, data=b"ab")


def always(answer):
    """Behaviour: the same answer to every request."""

    def serve(server, connection):
        while server.read(connection):
            connection.sendall(answer)

    return serve


def echo(server, connection):
    """Behaviour: every input is returned as the output of the same name."""
    while request := server.read(connection):
        _, fields, body = request
        end = int(fields[JSON_LENGTH.lower()])
        connection.sendall(tensors(*json.loads(body[:end])["inputs"], data=body[end:]))


def silent(server, connection):
    while server.read(connection):
        pass


def reads_nothing(server, connection):
    server.ended.wait(PATIENCE)


def dribbles(part):
    """Behaviour: for a minute, a byte of the answer every 50 ms, starting with the head or the body."""

    def serve(server, connection):
        server.read(connection)
        head, gap, body = tensors(data=bytes(1200), padding="x" * 1200).partition(b"\r\n\r\n")
        if part == "body":
            connection.sendall(head + gap)
        for byte in body if part == "body" else head:
            connection.sendall(bytes([byte]))
            if server.ended.wait(0.05):
                break

    return serve


def call(seconds=60.0):
    return Call(time.monotonic() + seconds)


def client_of(server, **options):
    return KServeClient(parse_url(server.url), **options)


def infer(client, inputs=SMALL, outputs=("y",), seconds=60.0):
    return client.infer("model", inputs, outputs, call(seconds))
