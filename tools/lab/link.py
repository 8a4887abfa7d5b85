#!/usr/bin/env python3
"""Measure clicks over a slow network: the session model, and a client that sends embeddings with each click, in turns.

    python tools/lab/link.py 1gbit,1ms

A relay in a process of its own delays the bytes and limits their rate. It needs neither root nor kernel modules. Bytes
never arrive earlier than the rate and the delay allow. The relay does not imitate TCP's slow start over a long
distance, which favours a client that sends much.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from triton_sam._common.bundle import bundled
from triton_sam.benchmark.results import Results, times_row
from triton_sam.benchmark.table import table
from triton_sam.benchmark.target import Target
from triton_sam.benchmark.timing import Act, take_turns
from triton_sam.commands._options import run_script
from triton_sam.errors import ConfigurationError, LocalServerError
from triton_sam.local_server import LocalServer

RELAY = "--relay"
CHUNK = 1 << 16
IN_FLIGHT = 64
"""Maximum number of buffered chunks per direction: more than a fast link with a delay of 20 ms has in flight."""
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Link:
    """The rate and the delay of a network."""

    bits_per_second: float
    delay: float

    def __str__(self) -> str:
        unit = next(name for name, size in reversed(_UNITS.items()) if self.bits_per_second >= size or name == "kbit")
        return f"{self.bits_per_second / _UNITS[unit]:g}{unit},{1000 * self.delay:g}ms"


def parse_link(text: str) -> Link:
    """Parse ``RATE,DELAY``, such as ``1gbit,1ms``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit),(\d+(?:\.\d+)?)ms", text)
    if not found or float(found[1]) <= 0:
        raise ConfigurationError(f"{text!r} is not a link: write for example 1gbit,1ms")
    return Link(float(found[1]) * _UNITS[found[2]], float(found[3]) / 1000)


class EmulatedLink:
    """A context manager whose attribute ``url`` is a server at the other end of an emulated link."""

    def __init__(self, url: str, link: Link) -> None:
        self._parts = urlsplit(url)
        self._link = link

    def __enter__(self) -> EmulatedLink:
        numbers = (self._parts.port, self._link.bits_per_second, self._link.delay)
        self._relay = subprocess.Popen(
            [sys.executable, __file__, RELAY, str(self._parts.hostname), *map(str, numbers)],
            stdin=subprocess.PIPE,  # the relay ends when this pipe closes, so it never outlives this program
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._relay.stdout is not None  # it is a pipe
        port = self._relay.stdout.readline().strip()
        if not port:
            self.__exit__(None, None, None)
            raise LocalServerError("the relay that emulates a network did not start")
        self.url = f"{self._parts.scheme}://127.0.0.1:{port}{self._parts.path}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._relay.kill()
        self._relay.communicate()


class _Direction:
    """One direction of the link. All connections share its rate."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._free_at = 0.0

    def arrival(self, size: int) -> float:
        """Return the arrival time (of `time.perf_counter`) of ``size`` bytes sent now."""
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + 8 * size / self._link.bits_per_second
            return self._free_at + self._link.delay

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        """Copy bytes from one socket to another until the source ends."""
        waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(IN_FLIGHT)
        threading.Thread(target=_deliver, args=(waiting, sink), daemon=True).start()
        content = b"-"
        while content:
            try:
                content = source.recv(CHUNK)
            except OSError:
                content = b""
            waiting.put((self.arrival(len(content)), content))


def _deliver(waiting: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
    broken = False
    while True:
        due, content = waiting.get()
        time.sleep(max(0.0, due - time.perf_counter()))
        if not content:
            break
        try:
            if not broken:
                sink.sendall(content)
        except OSError:  # later bytes are still received and dropped, so that the other side does not wait
            broken = True
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _serve(host: str, port: int, link: Link) -> None:
    to_server, to_client = _Direction(link), _Direction(link)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # the process that started this one reads the port
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, port))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for direction, source, sink in ((to_server, client, server), (to_client, server, client)):
            threading.Thread(target=direction.carry, args=(source, sink), daemon=True).start()


def _relay(host: str, port: str, bits_per_second: str, delay: str) -> None:
    link = Link(float(bits_per_second), float(delay))
    threading.Thread(target=_serve, args=(host, int(port), link), daemon=True).start()
    sys.stdin.read()


def measure(link: Link, seconds: float) -> Results:
    """Return the times of clicks over a link, of both clients and both protocols."""
    results, times = Results({}), dict[str, list[float]]()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(LocalServer(bundled("model_repository")))
        target = Target(
            "sam2", None, {"http": server.http_url, "grpc": server.grpc_url}, bundled("test/images") / "coffee.jpg"
        )
        stack.callback(target.close)
        points = target.points()
        acts: dict[str, Act] = {}
        for protocol, url in target.urls.items():
            emulated = stack.enter_context(EmulatedLink(url, link))
            for who, place in (("naive", "client"), ("session", "server")):
                client = stack.enter_context(target.client(protocol, place, emulated.url))  # type: ignore[arg-type]
                client.set_image(target.content)
                acts[f"{who} {protocol}"] = lambda click=client.predict: click([next(points)])  # type: ignore[misc]
        take_turns(acts, times, seconds, min_rounds=3)
    for name, values in times.items():
        who, _, protocol = name.partition(" ")
        results.add(*times_row("link", f"click over {link}", who, values, protocol=protocol))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("link", nargs="?", default="1gbit,1ms", help="rate and delay (default: 1gbit,1ms)")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement (default: 3)")
    args = parser.parse_args()
    print(table(measure(parse_link(args.link), args.seconds)))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [RELAY]:
        _relay(*sys.argv[2:])
    else:
        sys.exit(run_script(main))
