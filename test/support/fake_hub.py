"""A local Hugging Face hub: an HTTP server with the few requests that huggingface_hub needs."""

from __future__ import annotations

import hashlib
import http.server
import json
import random
import re

import pytest

pytest.importorskip("huggingface_hub")
onnx = pytest.importorskip("onnx")

from triton_sam.families.sam3 import SAM3  # noqa: E402

COMMIT = "0" * 40


TOKEN = "hf_right"


DATA = random.Random(0).randbytes(300_000)


NUMBERS = {"FP32": onnx.TensorProto.FLOAT, "INT64": onnx.TensorProto.INT64}


def graph(role: str, published: str) -> bytes:
    """Return a graph with the published signature and a reference to external data."""
    spec = getattr(SAM3, role)

    def values(tensors):
        return [onnx.helper.make_tensor_value_info(t.name, NUMBERS[t.dtype], t.shape) for t in tensors]

    weight = onnx.TensorProto(name="w", data_type=1, dims=[75_000], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=f"{published}_data")
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], role, values(spec.inputs), values(spec.outputs), [weight])
    )
    return model.SerializeToString()


def published_files() -> dict[str, bytes]:
    files = {}
    for role, stem in (("encoder", "vision_encoder"), ("decoder", "prompt_encoder_mask_decoder")):
        for ending in ("", "_fp16"):
            name = f"{stem}{ending}.onnx"
            files[f"onnx/{name}"] = graph(role, name)
            files[f"onnx/{name}_data"] = DATA + name.encode()
    return files


def checkpoint_files() -> dict[str, bytes]:
    """Return the files of the gated repository: two files that a download needs, and two others."""
    return {"config.json": b"{}", "model.safetensors": DATA, "sam3.pt": b"pickle", "assets/x.json": b"{}"}


def lfs(content: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        hub = self.server
        self.path = self.requestline.split()[1]  # http.server replaces two leading slashes with one
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
        hub.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.path.startswith("/api/"):
            self.answer_api()
            return
        if hub.gate is not None and self.headers.get("Authorization") != f"Bearer {hub.gate}":
            self.reply(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "log in"}, body)
            return
        if hub.refusal is not None or match is None or match[2] not in hub.files:
            code, error = hub.refusal or (404, "EntryNotFound")
            self.reply(code, b"", {"X-Error-Code": error, "X-Error-Message": "no\nsecond line"}, body)
            return
        content = hub.files[match[2]]
        digest = hashlib.sha256(hub.stated.get(match[2], content)).hexdigest()
        if match[2].endswith(".json"):
            digest = digest[:40]  # a small file: git's hash
        headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        headers["ETag"] = f'"{digest}"'
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.reply(206 if start else 200, content[start:], headers, body)

    def answer_api(self) -> None:
        """Answer requests for the user's name and for the files of a repository."""
        hub = self.server
        if self.path.startswith("/api/whoami"):
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            self.reply(200 if known else 401, b'{"name": "me", "auth": {"type": "access_token"}}', {}, True)
            return
        siblings = [
            {"rfilename": name, "size": len(content), "lfs": None if name.endswith(".json") else lfs(content)}
            for name, content in hub.files.items()
        ]
        content = json.dumps({"id": "facebook/sam3", "sha": COMMIT, "siblings": siblings}).encode()
        self.reply(200, content, {"Content-Type": "application/json"}, True)

    def reply(self, code: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value.replace("\n", " "))
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if body:
            limit, self.server.cut = self.server.cut, None
            if len(content) > 100_000 and self.server.cut_data is not None:
                limit, self.server.cut_data = self.server.cut_data, None
            self.wfile.write(content[:limit])
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


class FakeHub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = published_files()
        self.stated: dict[str, bytes] = {}
        self.refusal: tuple[int, str] | None = None
        self.gate: str | None = None
        self.cut: int | None = None
        self.cut_data: int | None = None
        self.requests: list[tuple[str, str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"
