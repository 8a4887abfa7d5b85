"""A service over a server in this process, whose networks draw.

Its images show test/images/shapes.jpg, and its videos the disc of support/clip.py.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from support import clip
from support.concept_server import Arrays, ConceptServer
from support.conditions import wait_until
from support.fake_tracking import NAMES
from support.running_service import RunningService, made_up_models, running_service

from triton_sam._common.bundle import bundled
from triton_sam.concepts.instances import instance_mask
from triton_sam.concepts.query import Query, query_from
from triton_sam.families import get_family
from triton_sam.masks import mask_to_box
from triton_sam.masks.resize import full_size_masks
from triton_sam.wire import contract
from triton_sam.wire import video as wire

FAMILY = get_family("sam2")
SIDE = 640
"""Side of the encoder's image for videos. The disc moves by whole columns of the logits."""
LOW = SIDE // 4
TABLE: Any = FAMILY.at(SIDE).tracking
REACH = 16
"""Points within so many pixels of inside() find an object. The grid has at least one of them."""
SCORES = (0.9375, 0.8125, 0.625, 0.375, 0.1875, 0.125)
"""The scores of the instances, highest first, up to the rounding of exp()."""
SIZE = (800, 600)
NOTHING = "nothing"
"""Texts that begin with it have no instances."""
GONE = 99
"""The frame of images without the disc."""


@functools.cache
def _labels() -> list[np.ndarray]:
    """Return the drawn objects, bool (600,800) each, from top to bottom."""
    labels = np.asarray(Image.open(bundled("test/images") / "shapes_labels.png"))
    masks = [labels == number for number in np.unique(labels) if number]
    return sorted(masks, key=lambda mask: float(np.argwhere(mask)[:, 0].mean()))


@functools.cache
def _logits(side: int) -> np.ndarray:
    """Return the logits of the drawn objects, (N,side,side)."""
    drawn = [Image.fromarray(mask).convert("L") for mask in _labels()]
    small = [np.asarray(each.resize((side, side), Image.Resampling.BOX), np.float32) for each in drawn]
    return np.stack(small) / 12.75 - 10


@functools.cache
def shapes() -> list[np.ndarray]:
    """Return the masks that words find, bool (600,800) each."""
    return [instance_mask(logits, SIZE, 0.5) for logits in _logits(288)]


@functools.cache
def objects() -> list[np.ndarray]:
    """Return the masks that clicks and searches for everything find, bool (600,800) each."""
    return [full_size_masks(logits, SIZE, FAMILY, (0.0,))[0] for logits in _logits(256)]


@functools.cache
def inside(number: int) -> tuple[int, int]:
    """Return the point of an object that is farthest from its edge in its middle row."""
    mask = _labels()[number]
    rows = np.flatnonzero(mask.any(axis=1))
    row = int(rows[len(rows) // 2])
    edges = np.flatnonzero(np.diff(np.pad(mask[row].astype(np.int8), 1)))
    start, end = max(zip(edges[::2], edges[1::2], strict=True), key=lambda run: run[1] - run[0])
    return int(start + end) // 2, row


def _found_by(points: np.ndarray) -> np.ndarray:
    """Return whether points (P,2) of the image find the objects, bool (P,N)."""
    places = np.array([inside(number) for number in range(len(_labels()))])
    across, down = (points[:, None] - places).transpose(2, 0, 1)
    return np.asarray(np.hypot(across, down) <= REACH)


@dataclass
class Brake:
    """Stops requests of one kind.

    Attributes:
        limit: requests with this number or a higher one wait until the limit is raised or None.
        failure: error of each request.
        seconds: how long each request takes.
        reached: set when a request has reached the limit.
    """

    limit: int | None = None
    failure: Exception | None = None
    seconds: float = 0.0
    reached: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.limit, self.failure, self.seconds = None, None, 0.0
        self.reached.clear()

    def stop(self, number: int) -> None:
        if self.limit is not None and number >= self.limit:
            self.reached.set()
        wait_until(lambda: self.limit is None or number < self.limit)
        time.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure


class DrawnServer(ConceptServer):
    """A server of "sam2", which finds the drawn objects and moves any object of a video as the disc, and of "sam3".

    SAM3 finds the drawn objects for all texts except NOTHING, without those in negative boxes.

    Attributes:
        words: stops searches for words.
        everything: stops a search for everything before it finds the object of the limit; fails after the first one.
        frames: stops a pass before the frame of the limit.
        finds: whether searches for everything find objects.
        improves: whether such a search finds an object better at its later points.
    """

    def __init__(self) -> None:
        super().__init__()
        self.add_pair("sam2", "sam2")
        self.add_session_model("sam2")
        self._videos = self.add_video_model("sam2", family="SAM2", image_size=str(SIDE), **NAMES)._model
        self._passed: Counter[bytes] = Counter()
        self.words, self.everything, self.frames = Brake(), Brake(), Brake()
        self.before = self._stop
        self.reset()

    def reset(self) -> None:
        """End what waits or fails, and forget the requests."""
        for brake in (self.words, self.everything, self.frames):
            brake.release()
        self.finds, self.improves = True, False
        self.requests.clear()

    def __exit__(self, *error: object) -> None:
        self.reset()
        super().__exit__(*error)

    def queries(self) -> list[Query]:
        """Return the query of each search for words."""
        sent = [each.inputs.get(contract.FIND) for each in self.requests]
        return [query_from(json.loads(each[0])) for each in sent if each is not None]

    def parts(self) -> list[dict[str, Any]]:
        """Return the requests of searches for everything."""
        sent = [each.inputs.get(contract.EVERYTHING_PART) for each in self.requests]
        return [json.loads(each[0]) for each in sent if each is not None]

    def tracked(self) -> list[int]:
        """Return the frames that passes have requested."""
        numbers = range(len(self.requests))
        return [self.arguments(n)["frame_index"] for n in numbers if self.operation(n) == wire.PROPAGATE]

    @property
    def sessions(self) -> list[Any]:
        """The open sessions, oldest first."""
        return list(self._videos.sessions.by_id.values())

    def prompts(self) -> dict[int, dict[int, list[list[float]]]]:
        """Return the points of each object and frame in the last session, in pixels of the clip."""
        scale = clip.WIDTH / SIDE, clip.HEIGHT / SIDE
        objects = [each for session in self.sessions[-1:] for each in list(session.tracker.objects.items())]
        return {
            object_id: {frame: (each.coords * scale).round(2).tolist() for frame, each in list(memory.points.items())}
            for object_id, memory in objects
        }

    def points(self, object_id: int, frame: int) -> list[list[float]]:
        """Return the points of an object in a frame."""
        return self.prompts().get(object_id, {}).get(frame, [])

    def _stop(self, number: int) -> None:
        inputs = self.requests[number].inputs
        if contract.FIND in inputs:
            self.words.stop(0)
        elif contract.EVERYTHING_PART in inputs:
            points = np.array(json.loads(inputs[contract.EVERYTHING_PART][0])["points"])
            found = np.flatnonzero(_found_by(points).any(axis=0))
            if found.any():  # not only the first object
                self.everything.stop(int(found.max()))
        elif self.operation(number) == wire.PROPAGATE:
            session = inputs[wire.SESSION_ID][0]
            if self.arguments(number).get("first"):
                self._passed[session] = 0
            self._passed[session] += 1
            self.frames.stop(self._passed[session] - 1)

    # --- networks ----------------------------------------------------------------------------------------------------

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = np.array([[not text.startswith(NOTHING), 0] for text in texts], np.int64)
        return ids, np.ones_like(ids)

    def draw(self, inputs: Arrays) -> np.ndarray:
        return _logits(288)[None, inputs["mask_queries"][0, :, 0].astype(int)]

    def detect(self, inputs: Arrays) -> Arrays:
        count, number = len(inputs["text_features"]), len(shapes())
        boxes = np.array([mask_to_box(mask) for mask in shapes()]) + 0.25
        scores = np.array(SCORES[:number])
        logits = np.tile(np.log(scores / (1 - scores)).astype(np.float32), (count, 1))
        logits[inputs["text_features"][:, 0, 0] == 0] = -30
        for x, y, width, height in inputs["input_boxes"][0][inputs["input_boxes_labels"][0] == 0] * (SIZE * 2):
            middles = (boxes[:, :2] + boxes[:, 2:]) / 2
            logits[:, np.all(np.abs(middles - (x, y)) <= (width / 2, height / 2), axis=1)] = -30
        return {
            "pred_boxes": np.tile(boxes / (SIZE * 2), (count, 1, 1)).astype(np.float32),
            "pred_logits": logits,
            "presence_logits": np.full((count, 1), 30, np.float32),
            "mask_queries": np.tile(np.arange(number, dtype=np.float32)[:, None], (count, 1, 1)),
            "mask_features": np.zeros((count, 4), np.float32),
        }

    def _computed(self, model: str, inputs: Arrays, wanted: tuple[str, ...]) -> Any:
        family, _, role = model.partition("_")
        if family == "sam3":
            return super()._computed(model, inputs, wanted)
        if role == "encoder":
            return {name: np.full(2, _frame(inputs["image"]), np.float32) for name in wanted}
        if role == "decoder":
            return dict(zip(wanted, self._clicked(inputs, wanted), strict=True))
        if role == "memory_encoder":  # a memory is the number of the frame, and the logits
            masks = inputs["masks"]
            memories = np.zeros((len(masks), *TABLE.memory_shape), np.float32)
            memories.reshape(len(masks), -1)[:, 0] = inputs["image_embeddings"][0]
            memories.reshape(len(masks), -1)[:, 1 : LOW * LOW + 1] = masks.reshape(len(masks), -1)
            return {wanted[0]: memories}
        if role == "memory_attention":
            memories = inputs["memories"][:, 0]
            return {wanted[0]: memories.reshape(len(memories), -1)[:, : LOW * LOW + 1]}
        if role == "mask_prompt":
            small = inputs["mask"].reshape(-1, 1, LOW, 4, LOW, 4).mean((3, 5)).astype(np.float32)
            return {"mask_input": small, "masks": small * 20 - 10}
        return _tracked(inputs)

    def _clicked(self, inputs: Arrays, wanted: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits and scores of the objects under the first points, or in the middle of boxes."""
        points, labels = inputs["point_coords"], inputs["point_labels"]
        places = np.where((labels == 2).any(axis=1)[:, None], points[:, -2:].mean(axis=1), points[:, 0])
        places = places * np.divide(SIZE, FAMILY.image_size)
        candidates = 3 if wanted[0].startswith("multimask") else 1
        logits = np.full((len(places), candidates, 256, 256), -10, np.float32)
        scores = np.full((len(places), candidates), 0.01, np.float32)
        for index, ((x, y), found) in enumerate(zip(places, _found_by(places), strict=True)):
            for number, mask in enumerate(_labels()):
                if mask[int(y), int(x)]:
                    logits[index, 0] = _logits(256)[number]
                    better = y / 1e5 if self.improves else 0
                    scores[index, 0] = 0.96 - number / 100 + better if self.finds and found[number] else 0.02
        return logits, scores


def _frame(image: np.ndarray) -> int:
    """Return the number of the clip's frame (1,3,S,S), from the first column of the disc."""
    red, _, blue = image[0]
    columns = (red - blue > 0.25).mean(axis=0) > 0.05  # a codec blurs the edges
    left = columns.argmax() * clip.WIDTH / len(columns)
    return round((left - clip.START[0] + clip.RADIUS) / clip.STEP) if columns.any() else GONE


def _tracked(inputs: Arrays) -> Arrays:
    """Compute the tracking decoder: a new disc around a prompt, a new mask, or the object of the memory."""
    frame, objects = inputs["high_res_feats_0"][0], len(inputs["point_coords"])
    masks = np.full((objects, 1, LOW, LOW), -10, np.float32)
    for index, (points, labels) in enumerate(zip(inputs["point_coords"], inputs["point_labels"], strict=True)):
        if inputs["mask_prompt"][index]:
            masks[index] = inputs["mask_input"][index] * 20 - 10
        elif (labels >= 0).any():
            masks[index, 0] = _disc(points[:2].mean(axis=0) if 2 in labels else points[0])
        else:
            memory = inputs["image_embeddings"][index]
            columns = round(float(frame - memory[0]) * clip.STEP * LOW / clip.WIDTH)
            moved = memory[1:].reshape(LOW, LOW)[:, max(0, -columns) : max(0, LOW - columns)]
            masks[index, 0, :, max(0, columns) : max(0, columns) + moved.shape[1]] = moved
    return {
        "masks": masks,
        "iou_predictions": np.full((objects, 1), 0.9, np.float32),
        "object_score_logits": np.full((objects, 1), 5, np.float32),
        "object_pointers": np.zeros((objects, TABLE.pointer_channels), np.float32),
    }


def _disc(point: np.ndarray) -> np.ndarray:
    """Return the logits (LOW,LOW) of the clip's disc around a point of the encoder's image."""
    x, y = point * (clip.WIDTH, clip.HEIGHT) / SIDE
    middles = (np.arange(LOW) + 0.5) / LOW
    rows, columns = clip.HEIGHT * middles[:, None] - 0.5, clip.WIDTH * middles - 0.5
    logits: np.ndarray = clip.RADIUS + 0.01 - np.hypot(columns - x, rows - y)
    return logits


# --- services --------------------------------------------------------------------------------------------------------


def propagation_of(service: Any, path: str) -> Any:
    """Return the propagation of a video, which is given by its path."""
    return service.app.state.videos.get(path.rpartition("/")[2]).tracking._propagation


@contextlib.contextmanager
def let_go_on(server: DrawnServer, propagation: Any) -> Iterator[None]:
    """In the block, something stops a propagation that waits at its limit. It goes on once it has heard of that."""

    is_over = threading.Event()

    def release() -> None:
        wait_until(lambda: propagation._is_stopped or is_over.is_set())
        server.frames.limit = None

    thread = threading.Thread(target=release)
    thread.start()
    try:
        yield
    except BaseException:
        is_over.set()
        raise
    finally:
        thread.join()


@dataclass
class Drawn:
    """A running service, and the server that it calls."""

    service: RunningService
    server: DrawnServer


@contextlib.contextmanager
def drawn_service(*, words: bool = False, videos: bool = True, **options: Any) -> Iterator[Drawn]:
    """Run a service with the model "sam2", which tracks ``videos``, and with ``words`` "sam3", which finds words."""
    models = made_up_models(words=words, videos=videos)
    server = DrawnServer()
    with server, running_service(server.url, {"_pairs": models}, **options) as service:
        yield Drawn(service, server)
