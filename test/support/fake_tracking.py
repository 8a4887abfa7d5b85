"""Trivial models of a tracker. Every output depends on every input, so that a wrong input is visible."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from support.contents import encoded
from support.fuzzing import text

from triton_sam.families import get_family
from triton_sam.families.tables import ENCODER
from triton_sam.families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from triton_sam.sessions.video.model import VideoModel, VideoModelSettings
from triton_sam.sessions.video.models import TrackingModels
from triton_sam.wire import video

SIDE = 64
FAMILY = get_family("sam2").at(SIDE)
assert FAMILY.tracking is not None
TABLE = FAMILY.tracking
SIZE = (20, 12)
FRAME_BYTES = 24


class FakeModels:
    """Records the calls; rows of one call do not affect each other."""

    objects_at_a_time = 8

    def __init__(self):
        self.attended = []
        self.decoded = []
        self.remembered = []
        self.encodes = 0

    def run(self, role, held, arrays, outputs, is_kept):
        """Run a model; see sessions.images.Run."""
        compute = {
            ENCODER: self.encode,
            MEMORY_ATTENTION: self.attend,
            TRACKING_DECODER: self.decode,
            MEMORY_ENCODER: self.remember,
            MASK_PROMPT: self.prompt_mask,
        }
        answer = compute[role]({**held, **arrays})
        found = answer if isinstance(answer, dict) else {TABLE.models[role].output_names[0]: answer}
        assert set(found) >= set(outputs), role
        return found

    def encode(self, given):
        self.encodes += 1
        value = np.float32(given["image"].mean())
        return {name: np.full(2, value, np.float32) for name in FAMILY.encoder.output_names}

    def attend(self, given):
        self.attended.append(given)
        pointers = given["object_pointers"]
        total = (given["memories"].mean(axis=(2, 3, 4)) / (1 + given["memory_ages"])).sum(1)
        if pointers.shape[1]:
            total = total + (pointers[:, :, 0] / (1 + given["pointer_ages"])).sum(1)
        return _value(given) + np.float32(0.37) * total.astype(np.float32)

    def decode(self, given):
        coords, mask = given["point_coords"], given.get("mask_input")
        self.decoded.append(given)
        # All embeddings of a frame are equal. Conditioned embeddings have a value for each object.
        embeddings = given["image_embeddings"]
        is_plain = np.array_equal(embeddings, given["high_res_feats_0"])
        value = np.full(len(coords), embeddings[0]) if is_plain else embeddings
        value = value + 0.01 * (coords.sum((1, 2)) + given["point_labels"].sum(1)) + given["multimask"]
        if mask is not None:
            value = value + mask.mean((1, 2, 3)) + given["mask_prompt"]
        value = np.sin(value).astype(np.float32)
        low = FAMILY.mask_size
        ramp = np.linspace(-1, 1, low * low, dtype=np.float32).reshape(1, 1, low, low)
        pointers = value[:, None] * np.linspace(1, 2, TABLE.pointer_channels, dtype=np.float32)
        return {
            "masks": value[:, None, None, None] + ramp,
            "iou_predictions": np.abs(value)[:, None],
            "object_score_logits": value[:, None],
            "object_pointers": pointers.astype(np.float32),
        }

    def remember(self, given):
        masks, is_prompted = given["masks"], bool(given["is_prompted"][0])
        self.remembered.append((len(masks), is_prompted))
        value = masks.mean((1, 2, 3)) + 0.5 * given["object_score_logits"][:, 0] + 0.25 * is_prompted + _value(given)
        shape = TABLE.memory_shape
        ramp = np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(1, *shape)
        return (value.reshape(-1, *[1] * len(shape)) * ramp).astype(np.float32)

    def prompt_mask(self, given):
        mask = given["mask"]
        small = mask.reshape(len(mask), 1, SIDE // 4, 4, SIDE // 4, 4).mean((3, 5)).astype(np.float32)
        return {"mask_input": small, "masks": small * 20 - 10}


def _value(given):
    return given["image_embeddings"][0]


NAMES = {role: f"sam2_{role}" for role in (ENCODER, *TABLE.models)}
"""Triton's names of the models by role."""


def computed_by(models):
    """Return a function that computes the models of a tracker by Triton's names, with the real tensors."""
    roles = {name: role for role, name in NAMES.items()}
    return lambda name, inputs, wanted: models.run(roles[name], {}, inputs, wanted, False)


def frame_file(number, size=SIZE):
    """Return a different image file for each number."""
    return encoded(Image.new("RGB", size, (number % 256, number // 256 % 256, 77)))


class Error(AssertionError):
    """A refused request, with the reason in ``error``."""

    def __init__(self, error):
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class Server:
    """A video model without Triton, and requests to it.

    Args:
        frames: number of frames that fit into the cache.
        options: fields of VideoModelSettings.
    """

    def __init__(self, frames=1000, models=None, **options):
        self.models = cast(Any, models or FakeModels())
        self.counts: Counter[str] = Counter()
        self.threads = ThreadPoolExecutor(4)
        settings = VideoModelSettings(**options)
        models = TrackingModels(FAMILY, self.models.run, self.models.objects_at_a_time)
        self.model = VideoModel(FAMILY, models, frames * FRAME_BYTES, "weights", settings, self.threads)

    def ask(self, operation, session=None, tensors=None, snapshot=False, output_format=None, **arguments):
        """Send one request; return the outputs, with the result parsed from JSON."""
        inputs = {video.OPERATION: text(operation.encode()), **(tensors or {})}
        if session is not None:
            inputs[video.SESSION_ID] = text(session.encode())
        if arguments:
            inputs[video.ARGUMENTS] = text(json.dumps(arguments).encode())
        if output_format:
            inputs["output_format"] = text(output_format.encode())
        reply = self.model.answer(inputs, wants_snapshot=snapshot)
        self.counts.update(reply.counts)
        if reply.error is not None:
            raise Error(reply.error)
        return {**reply.tensors, "result": json.loads(reply.tensors["result"][0])}

    def start(self, **arguments):
        return Client(self, self.ask("start_session", **arguments)["result"])


class Client:
    """One session, whose frames are images of their index plus ``shift``."""

    def __init__(self, server, result, shift=0):
        self.server = server
        self.result = result
        self.id = result["session_id"]
        self.step = 0
        self.shift = shift

    def add_frames(self, *indexes, size=SIZE):
        files = np.array([frame_file(index + self.shift, size) for index in indexes], np.object_)
        return self.server.ask("add_frames", self.id, {"frames": files}, frame_indexes=list(indexes))

    def do(self, operation, **arguments):
        """Run an operation that has a step."""
        answer = self.server.ask(operation, self.id, step=self.step + 1, **arguments)
        self.step += 1
        return answer

    def click(self, frame, object_id=1, points=((3, 4),), **arguments):
        self.add_frames(frame)
        return self.do("add_prompt", frame_index=frame, object_id=object_id, points=points, **arguments)

    def track(self, frames, first=True, **arguments):
        """Track frames one by one; return the masks by frame and object."""
        masks = {}
        for frame in frames:
            self.add_frames(frame)
            answer = self.do("propagate", frame_index=frame, first=first, **arguments)
            first = False
            masks.update(rows(answer))
        return masks


def kept_bytes(tracker):
    """Return the size of the outputs that a tracker has, which it also counts itself."""
    size = sum(memory.nbytes for memory in tracker.objects.values())
    assert tracker.kept_bytes == size
    return size


def rows(answer):
    """Return the masks of an answer by frame and object."""
    keys = zip(answer["frame_indexes"].tolist(), answer["object_ids"].tolist(), strict=True)
    return dict(zip(keys, answer["masks"], strict=True))


def refused(kind: type[Exception], words: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Check that a call ends with one error of a kind, whose one line holds some words."""
    with pytest.raises(Error) as caught:
        call(*args, **kwargs)
    assert type(caught.value.error) is kind, caught.value
    message = str(caught.value.error)
    assert words in message
    assert "\n" not in message
