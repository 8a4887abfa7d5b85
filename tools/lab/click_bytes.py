#!/usr/bin/env python
"""Count the bytes of clicks over HTTP, with headers.

The script clicks on the objects of the demo images and asks for masks in each output format. It uses the server at
--url, or starts a local Triton with the built-in model. The exit code is 1 when a threshold is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from triton_sam._common.bundle import bundled
from triton_sam.errors import ConfigurationError, SamError
from triton_sam.local_server import LocalServer
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import contract

REQUEST_LIMIT = 1_000
ANSWER_LIMITS = {"logits": 300_000, "rle": 10_000, "png": 10_000, "png_base64": 13_500}


class Counter:
    """Forwards a loopback port to a server and counts the bytes of both directions.

    Attributes:
        url: HTTP URL of the loopback port.
        request: number of bytes sent to the server.
        answer: number of bytes received from the server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.request = self.answer = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            for name, source, sink in (("request", client, server), ("answer", server, client)):
                threading.Thread(target=self._carry, args=(name, source, sink), daemon=True).start()

    def _carry(self, name: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                # Bytes are counted before they are forwarded, so that the count is complete when the answer arrives.
                setattr(self, name, getattr(self, name) + len(content))
                sink.sendall(content)


def clicks() -> Iterator[tuple[bytes, dict[str, np.ndarray[Any, Any]]]]:
    """Yield the image file and the prompt tensors of each object in the demo."""
    folder = bundled("test/images")
    for entry in json.loads((folder / "demo.json").read_text(encoding="utf-8")):
        for thing in entry["objects"]:
            content = (folder / entry["image"]).read_bytes()
            if "box" in thing:
                yield content, {contract.BOXES: np.array([thing["box"]], np.float32)}
            else:
                yield content, {contract.POINT_COORDS: np.array([[thing["point"]]], np.float32)}


def measure(url: str) -> dict[str, list[tuple[int, int]]]:
    """Return the bytes of the request and of the answer of each click, by output format."""
    parsed = parse_url(url)
    if parsed.is_grpc or parsed.is_secure:
        raise ConfigurationError(f"bytes are counted over plain HTTP, and not over {url}: name an http:// URL")
    with contextlib.closing(Transport(parsed)) as direct:
        direct.ready_models()  # so that the error of an unreachable server contains its URL instead of the counter's
    counter = Counter(str(parse_url(url)))
    transport = Transport(parse_url(counter.url))
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in contract.output_formats()}
    for content, prompt in clicks():
        uploaded = transport.infer("sam2", {contract.IMAGE: np.array([content], np.object_)}, [contract.IMAGE_ID])
        for name in contract.output_formats():
            masks = contract.MASKS if name == "logits" else contract.ENCODED_MASKS
            wanted = np.array([name.encode()], np.object_)
            inputs = {contract.IMAGE_ID: uploaded[contract.IMAGE_ID], contract.OUTPUT_FORMAT: wanted, **prompt}
            before = counter.request, counter.answer
            transport.infer("sam2", inputs, [masks, contract.IOU_PREDICTIONS, contract.IMAGE_ID])
            found[name].append((counter.request - before[0], counter.answer - before[1]))
    transport.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="HTTP URL of a running server with the model sam2")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if args.url is None:
            server = stack.enter_context(LocalServer(bundled("model_repository"), models=["sam2"]))
            args.url = server.http_url
        try:
            found = measure(args.url)
        except SamError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    missed = False
    for name, pairs in found.items():
        requests, answers = zip(*pairs, strict=True)
        missed |= max(requests) >= REQUEST_LIMIT or max(answers) >= ANSWER_LIMITS[name]
        print(
            f"{name:10} {len(pairs)} clicks: request {min(requests)} to {max(requests)} bytes, "
            f"answer {min(answers)} to {max(answers)}, median {statistics.median(answers):.0f}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
