"""The bytes of clicks over HTTP, with headers, for the objects of the demo images and in each output format."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from triton_sam._common.bundle import bundled
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


@pytest.mark.slow
def test_bytes_of_a_click_stay_below_their_thresholds(service_triton):
    counter = Counter(service_triton.http_url)
    transport = Transport(parse_url(counter.url))
    for content, prompt in clicks():
        uploaded = transport.infer("sam2", {contract.IMAGE: np.array([content], np.object_)}, [contract.IMAGE_ID])
        for name, limit in ANSWER_LIMITS.items():
            masks = contract.MASKS if name == "logits" else contract.ENCODED_MASKS
            wanted = np.array([name.encode()], np.object_)
            inputs = {contract.IMAGE_ID: uploaded[contract.IMAGE_ID], contract.OUTPUT_FORMAT: wanted, **prompt}
            before = counter.request, counter.answer
            transport.infer("sam2", inputs, [masks, contract.IOU_PREDICTIONS, contract.IMAGE_ID])
            assert 0 < counter.request - before[0] < REQUEST_LIMIT, name
            assert 0 < counter.answer - before[1] < limit, name
    transport.close()
