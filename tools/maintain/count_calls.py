"""Count the functions of triton_sam that a click and a video frame call, and those between `setup` and its files.

    python tools/maintain/count_calls.py [click | frame | setup] [--list]

For a click and a frame, a real client calls a real session model or video model over HTTP, all in this process;
functions stand in for the networks. The server is that of the tests, `test/support/in_process.py`, which this tool
imports. A function counts if most repetitions call it; comprehensions do not count.

For `triton-sam setup sam2 tiny`, a local server has the checkpoint. A function counts if it waits while the request for
the file is sent, or while the files are installed: these are the functions that lead from the command line there.
`--list` prints the functions in the order of their first calls.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.server
import json
import math
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

ROOT = Path(__file__).parents[2]
PACKAGE = str(ROOT / "triton_sam")
sys.path[:0] = [str(ROOT), str(ROOT / "test")]
REPETITIONS = 10
INFER = re.compile("/v2/models/(?P<model>[^/]+)/infer")
LENGTH = "Inference-Header-Content-Length"
CLIENT, MODEL, AROUND, IMAGES, WAY = "client", "model", "around the model", "opening images", "on the way"
FILES_AROUND = tuple(
    f"{PACKAGE}/sessions/{name}.py"
    for name in ("bls", "tasks", "python_model", "image/triton_model", "video/triton_model")
)
"""The queue, the clocks, the calls to other models and the metrics of a session model."""
FILES_OF_IMAGES = tuple(f"{PACKAGE}/inputs/{name}" for name in ("images.py", "header.py", "deep.py", "video/"))
"""Reading a frame from its source and decoding its image file, on both sides. For a click, set_image() does this."""


class Calls:
    """Records function calls in this thread and in all threads that start after its creation."""

    def __init__(self) -> None:
        self._notes: list[tuple[str, CodeType]] | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and self._notes is not None and code.co_filename.startswith(PACKAGE):
            thread = threading.current_thread()
            is_client = thread is threading.main_thread() or thread.name.startswith("triton-sam")
            side = CLIENT if is_client else AROUND if code.co_filename.startswith(FILES_AROUND) else MODEL
            self._notes.append((IMAGES if code.co_filename.startswith(FILES_OF_IMAGES) else side, code))

    def of(self, work: Callable[[], object]) -> dict[str, list[tuple[CodeType, int]]]:
        """Repeat some work. Return, for each side, its functions in order and their calls per repetition."""
        runs = []
        for _ in range(REPETITIONS):
            self._notes = []
            work()
            runs.append(self._notes)
        self._notes = None
        return {
            side: _usual([[code for where, code in run if where == side] for run in runs])
            for side in (CLIENT, MODEL, AROUND, IMAGES)
        }


def _usual(runs: Sequence[Sequence[CodeType]]) -> list[tuple[CodeType, int]]:
    runs = [[code for code in run if code.co_name == "<lambda>" or not code.co_name.startswith("<")] for run in runs]
    often = Counter(code for run in runs for code in set(run))
    order = dict.fromkeys(code for run in runs for code in run)
    return [
        (code, sorted(run.count(code) for run in runs)[len(runs) // 2]) for code in order if often[code] > len(runs) / 2
    ]


class _Server(http.server.ThreadingHTTPServer):
    """Listens on a free port for a server in this process."""

    def __init__(self, triton: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.triton = triton


class _Handler(http.server.BaseHTTPRequestHandler):
    """Forwards inferences over HTTP to a server in this process."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        from support.pb_utils import Request

        size = int(self.headers[LENGTH])
        head, data = json.loads(self.rfile.read(size)), self.rfile.read(int(self.headers["Content-Length"]) - size)
        inputs, offset = {}, 0
        for each in head["inputs"]:
            size = each["parameters"]["binary_data_size"]
            content = data[offset : offset + size]
            offset += size
            if each["datatype"] == "BYTES":
                array = np.array([content[4:]], np.object_)
            else:
                array = np.frombuffer(content, triton_to_np_dtype(each["datatype"]))
            inputs[each["name"]] = array.reshape(each["shape"])
        found = INFER.fullmatch(self.path)
        assert found is not None
        model = found["model"]
        wanted = [each["name"] for each in head["outputs"]]
        number = self.server.triton.record(model, inputs, wanted)
        self._answer(self.server.triton.answer(model, Request(wanted, inputs), number))

    def _answer(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        outputs, body = [], []
        for name, array in arrays.items():
            content = array.tobytes()
            if array.dtype == np.object_:
                content = b"".join(len(each).to_bytes(4, "little") + each for each in array.ravel())
            kind = np_to_triton_dtype(array.dtype)
            parameters = {"binary_data_size": len(content)}
            outputs.append({"name": name, "shape": array.shape, "datatype": kind, "parameters": parameters})
            body.append(content)
        head = json.dumps({"outputs": outputs}).encode()
        self.send_response(200)
        self.send_header(LENGTH, str(len(head)))
        self.send_header("Content-Length", str(len(head) + sum(map(len, body))))
        self.end_headers()
        self.wfile.write(b"".join([head, *body]))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def over_http(triton: Any) -> Iterator[str]:
    """Yield the URL of a server in this process."""
    server = _Server(triton)
    with server, triton:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_port}"
        server.shutdown()


def count_click() -> dict[str, list[tuple[CodeType, int]]]:
    """Return the functions of a click on an image in the server's cache."""
    calls = Calls()
    from support.in_process import ImageServer

    from triton_sam import SAM2TritonClient

    with over_http(ImageServer()) as url, SAM2TritonClient(url) as client:
        client.set_image(np.zeros((480, 640, 3), np.uint8))
        client.predict([[100, 100]], [1])
        return calls.of(lambda: client.predict([[200, 180]], [1]))


def count_frame() -> dict[str, list[tuple[CodeType, int]]]:
    """Return the functions of a frame during tracking."""
    calls = Calls()
    from support.video_server import VideoServer

    from triton_sam import SAM2VideoClient

    frames = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(REPETITIONS + 20)]
    with over_http(VideoServer()) as url, SAM2VideoClient(url) as client, client.open(frames) as video:
        video.add(0, 1, points=[[10, 20]])
        passed = video.propagate()
        for _ in range(4):
            next(passed)
        found = calls.of(lambda: next(passed))
        passed.close()
        return found


def count_setup() -> dict[str, list[tuple[CodeType, int]]]:
    """Return the functions from the command line to the request for the checkpoint, and to the installer."""
    from support.file_server import Server

    from triton_sam import cli
    from triton_sam.download import catalogue
    from triton_sam.repository.install import install

    goals = {install.__code__, http.client.HTTPConnection.putrequest.__code__}
    found: dict[CodeType, None] = {}

    def note(frame: FrameType | None, event: str, _: object) -> None:
        if event == "call" and frame is not None and frame.f_code in goals:
            stack = []
            while frame is not None:
                stack.append(frame.f_code)
                frame = frame.f_back
            found.update(dict.fromkeys(code for code in reversed(stack) if code.co_filename.startswith(PACKAGE)))

    with tempfile.TemporaryDirectory() as folder, Server() as server, server.running():
        os.chdir(folder)
        server.content = _tiny_checkpoint()
        row = replace(
            catalogue.find("sam2", "tiny"),
            url=server.url + server.where,
            bytes=len(server.content),
            sha256=hashlib.sha256(server.content).hexdigest(),
        )
        catalogue.catalogue = lambda: (row,)
        sys.setprofile(note)
        status = cli.main(["setup", "sam2", "tiny", "--model-repository", "models", "--quiet"])
        sys.setprofile(None)
        os.chdir(ROOT)
    assert status == 0
    return {WAY: [(code, 1) for code in found]}


def _tiny_checkpoint() -> bytes:
    """Return a safetensors file with the tensors of SAM2.1 tiny, all zeros."""
    from triton_sam.export.templates import templates
    from triton_sam.families.sam2 import SAM2

    layout = next(template.layout for template in templates(SAM2) if template.size == "tiny")
    head, end = {}, 0
    for name, shape in layout.items():
        start, end = end, end + 4 * math.prod(shape)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


COUNTS = {"click": count_click, "frame": count_frame, "setup": count_setup}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=COUNTS, help="default: all")
    parser.add_argument("--list", action="store_true", help="print each function, and its calls")
    args = parser.parse_args()
    for what in [args.what] if args.what else COUNTS:
        for side, found in COUNTS[what]().items():
            print(f"{what}, {side}: {len(found)} functions, {sum(number for _, number in found)} calls")
            for code, number in found if args.list else ():
                place = f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_firstlineno}"
                print(f"  {number:3} {place:45} {getattr(code, 'co_qualname', code.co_name)}")


if __name__ == "__main__":
    main()
