"""A TCP proxy with faults on demand, between a client and a working server."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time

FAULTS = ("refuse", "reset", "late_reset", "swallow", "silent", "dribble", "half_close")
PAUSE = 0.4
"""Seconds after which "late_reset" breaks the connection."""


class FaultyProxy:
    """Listens on a free loopback port and forwards to `target` according to `mode`, which applies to new connections.

    pass: forward all. refuse: close immediately. reset: cut the answer after some bytes, with RST;
    late_reset: the same after a while. swallow: accept and read slowly. silent: forward the request, never the answer.
    dribble: a byte of the answer every 0.2 s. half_close: close the direction of the answer after some bytes, and keep
    the connection.

    Attributes:
        asked, answered: bytes of the requests and of the answers of all connections.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.mode = "pass"
        self.connections = self.asked = self.answered = 0
        self._target = target
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the reading thread, which otherwise keeps the socket open
            _reset(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client, self.mode), daemon=True).start()

    def _serve(self, client: socket.socket, mode: str) -> None:
        self._open.add(client)
        with contextlib.suppress(OSError, ValueError):
            if mode == "refuse":
                _reset(client)
            elif mode == "swallow":
                _wait_for_end(client)
            else:
                with socket.create_connection(self._target) as server:
                    self._open.add(server)
                    self._forward(client, server, mode)
                self._open.discard(server)
        client.close()
        self._open.discard(client)

    def _forward(self, client: socket.socket, server: socket.socket, mode: str) -> None:
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if client in ready:
                data = client.recv(1 << 16)
                if not data:
                    break
                self.asked += len(data)
                server.sendall(data)
            if server in ready:
                data = server.recv(1 << 16)
                self.answered += len(data)
                if not data or not _answer(client, data, mode):
                    break


def _answer(client: socket.socket, data: bytes, mode: str) -> bool:
    """Forward a part of the answer according to the mode; return whether to continue."""
    if mode == "pass":
        client.sendall(data)
    elif mode in ("reset", "late_reset"):
        time.sleep(PAUSE if mode == "late_reset" else 0)
        client.sendall(data[:40])
        _reset(client)
        return False
    elif mode == "half_close":
        client.sendall(data[:40])
        client.shutdown(socket.SHUT_WR)
        _wait_for_end(client)
        return False
    elif mode == "dribble":
        for byte in data:
            client.sendall(bytes([byte]))
            time.sleep(0.2)
    return True


def _wait_for_end(client: socket.socket) -> None:
    """Keep the connection open until the peer closes it."""
    while client.recv(1 << 16):
        time.sleep(0.05)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
