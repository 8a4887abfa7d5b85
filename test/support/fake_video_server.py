"""A video model without Triton: the server's contract over a tiny tracker whose masks depend on everything before.

A mask is a number that is drawn from the frame, the prompts, and the last outputs. So a client that repeats too little,
too much, or in another order gets other masks.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import pickle
import threading
import uuid

import numpy as np

from triton_sam.errors import InferenceError, ServerBusyError, ServerUnreachableError
from triton_sam.wire import video as wire

SIDE = 8
MEMORIES = 6


class RefusedError(Exception):
    """The server refuses a request with a code of the contract."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


class Tracker:
    """The state of one session: prompts and outputs, all of them numbers."""

    def __init__(self, num_frames):
        self.num_frames = num_frames
        # id -> {"prompts": {frame: number}, "new": set of frames, "outputs": {frame: number}, "starts": set of frames}
        self.objects = {}
        self.step = 0

    def add(self, frame, object_id, content, words):
        entry = self.objects.setdefault(object_id, {"prompts": {}, "new": set(), "outputs": {}, "starts": set()})
        if frame not in entry["outputs"] or not entry["starts"]:
            entry["starts"].add(frame)
        value = draw("prompt", content, words, entry["outputs"].get(frame))
        entry["prompts"][frame] = value
        entry["new"].add(frame)
        return {id_: self.at(id_, frame) for id_ in self.objects}

    def at(self, object_id, frame):
        entry = self.objects[object_id]
        return entry["prompts"].get(frame, entry["outputs"].get(frame, 0))

    def begin(self, content_of):
        """Encode the memories of new prompts, which needs their frames."""
        for entry in self.objects.values():
            for frame in sorted(entry["new"]):
                entry["outputs"][frame] = draw("memory", content_of(frame), entry["prompts"][frame])
        for entry in self.objects.values():
            entry["new"].clear()

    def track(self, frame, content, reverse):
        step = 1 if reverse else -1
        rows = {}
        for object_id, entry in self.objects.items():
            if frame not in entry["prompts"]:
                near = [entry["outputs"].get(frame + step * age) for age in range(1, MEMORIES + 1)]
                entry["outputs"][frame] = draw("track", content, sorted(entry["prompts"].items()), near, reverse)
            rows[object_id] = self.at(object_id, frame)
        return rows

    def forget(self, operation, frame, object_id):
        """Remove an object, its prompt at a frame, or all objects."""
        if operation == wire.REMOVE_OBJECT:
            del self.objects[object_id]
        elif operation == wire.CLEAR_PROMPTS:
            self.objects[object_id]["prompts"].pop(frame, None)
            self.objects[object_id]["new"].discard(frame)
            self.objects[object_id]["starts"].discard(frame)
        else:
            assert operation == wire.RESET_SESSION
            self.objects.clear()
        return {id_: self.at(id_, frame) for id_ in self.objects}


def draw(*parts):
    """Return a number that depends on all parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


class FakeVideoServer:
    """Answers the requests of video clients, from any thread.

    Args:
        max_sessions: number of sessions at a time.
        cache: number of frames whose content a session keeps.
        is_older: whether it is of an earlier version: it names no frame that it lacks, nor where a pass starts.
    """

    def __init__(self, max_sessions=32, cache=1000, is_older=False):
        self.is_older = is_older
        self.sessions = {}
        self.requests = []  # (operation, arguments) of each request
        self.tracked = []  # each frame that was computed
        self.max_sessions = max_sessions
        self.cache = cache
        self.before = None  # is called with the number of a request before it is answered
        self.after = None  # is called with the number of a request after it was answered
        self.lock = threading.RLock()

    def lose_sessions(self):
        """Forget everything, as a restart does."""
        self.sessions.clear()

    def lose_frames(self):
        """Forget all frames, as a small cache does."""
        for session in self.sessions.values():
            session["frames"].clear()

    def operations(self):
        """Return the names of the operations that were asked for."""
        return [name for name, _ in self.requests]

    def answer(self, model, inputs, outputs):
        """Answer a request, or raise the error that the transport would raise."""
        with self.lock:
            number = len(self.requests)
            operation = read_text(inputs[wire.OPERATION])
            arguments = json.loads(read_text(inputs[wire.ARGUMENTS]))
            self.requests.append((operation, arguments))
            if self.before:
                self.before(number)
            try:
                answer = self._do(operation, arguments, inputs)
            except RefusedError as refusal:
                if str(refusal).startswith("BUSY"):
                    raise ServerBusyError("busy") from None
                raise InferenceError(f"{model} failed: {refusal}") from None
            if self.after:
                self.after(number)
            return {name: answer[name] for name in outputs}

    def _do(self, operation, arguments, inputs):
        if operation == wire.START_SESSION:
            return self._start(arguments, inputs)
        session = self.sessions.get(read_text(inputs[wire.SESSION_ID]))
        if session is None:
            raise RefusedError("UNKNOWN_SESSION_ID", "there is no such session")
        self._take_frames(session, arguments, inputs)
        if operation == wire.ADD_FRAMES:
            return result()
        if operation == wire.GET_SNAPSHOT:
            return {**result(), wire.SNAPSHOT: snapshot_of(session)}
        if operation == wire.CLOSE_SESSION:
            del self.sessions[read_text(inputs[wire.SESSION_ID])]
            return result()
        return self._change(session, operation, arguments, inputs)

    def _start(self, arguments, inputs):
        if len(self.sessions) >= self.max_sessions:
            raise RefusedError("BUSY", "no place for another session")
        if wire.SNAPSHOT not in inputs:
            tracker = Tracker(arguments["num_frames"])
        else:
            assert arguments == {}
            tracker = pickle.loads(inputs[wire.SNAPSHOT][0])
            tracker.step = 0
        name = uuid.uuid4().hex
        self.sessions[name] = {"tracker": tracker, "frames": {}, "last": None}
        return result(session_id=name, next_step=1)

    def _take_frames(self, session, arguments, inputs):
        contents = inputs.get(wire.FRAMES, ())
        indexes = arguments.get("frame_indexes", [])
        if len(contents) != len(indexes):
            raise RefusedError("BAD_VIDEO", "frames and frame_indexes differ")
        for index, content in zip(indexes, contents, strict=True):
            if content.startswith(b"damaged"):
                raise RefusedError("BAD_IMAGE", "not an image")
            session["frames"].pop(index, None)
            session["frames"][index] = content

    def _change(self, session, operation, arguments, inputs):
        tracker, step = session["tracker"], arguments["step"]
        if step == tracker.step and session["last"] is not None:
            return session["last"]
        if step != tracker.step + 1:
            raise RefusedError("BAD_PROMPT", f"step {step} follows {tracker.step}")
        changed = copy.deepcopy(tracker)
        try:
            frame, rows = self._compute(changed, operation, arguments, session, inputs)
        finally:
            while len(session["frames"]) > self.cache:
                del session["frames"][next(iter(session["frames"]))]
        changed.step = step
        session["tracker"] = changed
        values = {"object_ids": list(changed.objects), "step": step}
        if not self.is_older:
            starts = [start for entry in changed.objects.values() for start in entry["starts"]]
            values[wire.FIRST_PROMPTED_FRAME] = min(starts, default=None)
        session["last"] = {**result(**values), **rows_of(frame, rows), wire.SNAPSHOT: snapshot_of(session)}
        return session["last"]

    def _compute(self, tracker, operation, arguments, session, inputs):
        def content_of(frame):
            if frame not in session["frames"]:
                code = "UNKNOWN_IMAGE_ID" if self.is_older else f"UNKNOWN_FRAME {frame} UNKNOWN_IMAGE_ID"
                raise RefusedError(code, "a frame is not here")
            return session["frames"][frame]

        frame, rows = arguments.get("frame_index", 0), {}
        if operation == wire.ADD_PROMPT:
            words = [arguments.get(name) for name in ("points", "labels", "box", "clear_old_points")]
            if wire.MASK in inputs:
                words.append(inputs[wire.MASK].tobytes())
            if arguments["object_id"] == 666:
                raise RefusedError("BAD_PROMPT", "max_objects is reached")
            rows = tracker.add(frame, arguments["object_id"], content_of(frame), words)
        elif operation == wire.PROPAGATE:
            if not tracker.objects:
                raise RefusedError("BAD_PROMPT", "no prompts")
            if arguments.get("first"):
                tracker.begin(content_of)
            rows = tracker.track(frame, content_of(frame), arguments["reverse"])
            self.tracked.append(frame)
        else:
            rows = tracker.forget(operation, frame, arguments.get("object_id"))
        return frame, rows


def read_text(tensor):
    return tensor[0].decode()


def text(content):
    return np.array([content], np.object_)


def result(**values):
    return {wire.RESULT: text(json.dumps(values).encode())}


def snapshot_of(session):
    return text(pickle.dumps(session["tracker"]))


def rows_of(frame, rows):
    """Return the outputs of rows; the number of an object becomes the bits of its mask."""
    bits = [[(value >> place) & 1 for place in range(32)] for value in rows.values()]
    masks = np.zeros((len(rows), 1, SIDE, SIDE), np.float32)
    for mask, pattern in zip(masks, bits, strict=True):
        mask[0, :4] = np.array(pattern, np.float32).reshape(4, SIDE) * 2 - 1
    run_lengths = [
        json.dumps({"size": [48, 64], "counts": [value % 3072, 3072 - value % 3072]}) for value in rows.values()
    ]
    encoded = np.empty(len(rows), np.object_)
    encoded[:] = [content.encode() for content in run_lengths]
    return {
        wire.FRAME_INDEXES: np.full(len(rows), frame, np.int64),
        wire.OBJECT_IDS: np.array(list(rows), np.int64),
        "masks": masks,
        "encoded_masks": encoded,
        wire.OBJECT_SCORES: np.array([value % 100 - 50 for value in rows.values()], np.float32),
        "iou_predictions": np.full(len(rows), 0.5, np.float32),
    }


class VideoTransport:
    """A BaseTransport whose server is a FakeVideoServer."""

    def __init__(self, server):
        self.server = server

    @contextlib.contextmanager
    def one_call(self):
        yield

    def infer(self, model, inputs, outputs):
        return self.server.answer(model, inputs, outputs)

    def is_ready(self):
        return True

    def ready_models(self):
        return {"sam2_video": "1"}

    def model_config(self, model):
        return {}

    def close(self):
        pass


class AsyncVideoTransport:
    """An AsyncBaseTransport whose server is a FakeVideoServer."""

    def __init__(self, server):
        self.server = server

    async def in_time(self, call, end=None):
        return await call

    async def infer(self, model, inputs, outputs):
        return await asyncio.to_thread(self.server.answer, model, inputs, outputs)

    async def is_ready(self, model):
        return model == "sam2_video"

    async def close(self):
        pass


def unreachable():
    return ServerUnreachableError("gone")
