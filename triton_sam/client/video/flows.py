"""The sequences of requests behind the calls of a video, written once for both clients.

The server stores the state of a session, and may lose it: it restarts, another replica answers, or the session was idle
for too long. To restore it, `SessionFlows` keeps the last snapshot that the server sent, the operations since then, and
the frames that they need.

A failed call changes nothing: if it is uncertain whether the server did the operation, the session is abandoned, and
restored without the operation at the next call.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common import strict_json
from ...errors import (
    ImageError,
    InferenceError,
    InputError,
    SamError,
    ServerBusyError,
    UnknownImageError,
    UnknownSessionError,
    VideoError,
)
from ...families.base import Family, FloatArray, Size
from ...masks.resize import full_size_masks
from ...masks.rle import BoolArray
from ...masks.segment import VideoSegment
from ...transport.base import Tensors
from ...wire import video as wire
from ...wire.contract import ENCODED_MASKS, IOU_PREDICTIONS, MASKS, OUTPUT_FORMAT
from ...wire.pair import FULL_SIZE, Request, read_full_size
from ..flows import Flow, Notice
from ..session_image import text
from .frames import SessionFrames

ROWS = (wire.FRAME_INDEXES, wire.OBJECT_IDS, wire.OBJECT_SCORES, IOU_PREDICTIONS)
"""The outputs of each row in addition to the mask."""
WITH_LOGITS, WITH_MASKS = (*ROWS, MASKS), (*ROWS, ENCODED_MASKS)
"""The outputs of rows with logits, and of rows with encoded full-size masks."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation that changes a session, and can be repeated in another session.

    Args:
        frame: index of the frame whose pixels the operation needs; None if it needs none.
        changes: whether it changes the session. Only these operations are repeated in a restored session.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    frame: int | None = None
    mask: BoolArray | None = None
    changes: bool = True


@dataclass(frozen=True)
class VideoModel:
    """Builds requests and reads answers for one video model.

    Args:
        variant: name of the models, for example "sam2.1_large"; None for the family's default.
    """

    family: Family
    variant: str | None = None

    @cached_property
    def name(self) -> str:
        """Triton name of the model, for example ``sam2_video``."""
        return wire.video_model(self.family, self.variant)

    def request(
        self,
        operation: str,
        session: str | None,
        arguments: Mapping[str, Any],
        frames: Mapping[int, bytes] | None = None,
        mask: BoolArray | None = None,
        snapshot: bytes | None = None,
        outputs: tuple[str, ...] = (wire.RESULT,),
    ) -> Request:
        """Build the request of an operation."""
        if frames:
            arguments = {**arguments, "frame_indexes": list(frames)}
        inputs: dict[str, npt.NDArray[Any]] = {
            wire.OPERATION: text(operation.encode()),
            wire.ARGUMENTS: text(strict_json.dumps(arguments).encode()),
        }
        if session is not None:
            inputs[wire.SESSION_ID] = text(session.encode())
        if frames:
            inputs[wire.FRAMES] = np.array(list(frames.values()), np.object_)
        if mask is not None:
            inputs[wire.MASK] = mask
        if snapshot is not None:
            inputs[wire.SNAPSHOT] = text(snapshot)
        if ENCODED_MASKS in outputs:
            inputs[OUTPUT_FORMAT] = text(FULL_SIZE.name.encode())
        return Request(self.name, inputs, outputs)

    def read_result(self, outputs: Tensors) -> dict[str, Any]:
        """Return the JSON result of an answer."""
        try:
            result = json.loads(bytes(outputs[wire.RESULT].flat[0]))
        except (ValueError, IndexError) as error:
            raise InferenceError(f"{self.name} sent a result that is not JSON") from error
        if not isinstance(result, dict):
            raise InferenceError(f"{self.name} sent a result that is not a JSON object")
        return result

    def read_logits(self, outputs: Tensors) -> dict[int, FloatArray]:
        """Return the logits (h,w) of each object in an answer about one frame."""
        self._check(outputs, outputs[MASKS], dimensions=4)
        return {int(id_): logits[0] for id_, logits in zip(outputs[wire.OBJECT_IDS], outputs[MASKS], strict=True)}

    def read_segments(self, outputs: Tensors, size: Size, frame: int) -> dict[int, VideoSegment]:
        """Return the full-size masks of an answer about one frame, by object. This is slow for large frames."""
        has_logits = MASKS in outputs
        masks = outputs[MASKS] if has_logits else outputs[ENCODED_MASKS]
        self._check(outputs, masks, dimensions=4 if has_logits else 1)
        segments = {}
        for row, content in enumerate(masks):
            object_id = int(outputs[wire.OBJECT_IDS][row])
            if has_logits:
                (mask,) = full_size_masks(content[0], size, self.family)
            else:
                mask = read_full_size(content, self.name)
            segments[object_id] = VideoSegment(
                mask=mask,
                score=float(outputs[IOU_PREDICTIONS][row]),
                logits=np.array(content[0], np.float32) if has_logits else None,
                object_index=row,
                object_id=object_id,
                frame=frame,
                object_score=float(outputs[wire.OBJECT_SCORES][row]),
            )
        return segments

    def _check(self, outputs: Tensors, masks: npt.NDArray[Any], dimensions: int) -> None:
        rows = len(outputs[wire.OBJECT_IDS])
        if masks.ndim != dimensions or any(len(outputs[name]) != rows for name in ROWS) or len(masks) != rows:
            raise InferenceError(f"{self.name} sent masks of shape {masks.shape} for {rows} object(s)")


MAX_LOSSES = 3
"""Maximum number of times that one operation restores a lost session."""
MAX_KNOWN = 256
"""Maximum number of sent frames that the client keeps a record of."""


class SessionFlows:
    """Flows of one session. Only one flow may run at a time, except upload(), which may run at the same time."""

    def __init__(self, model: VideoModel, frames: SessionFrames, snapshot_every: int) -> None:
        self._model = model
        self._frames = frames
        self._snapshot_every = snapshot_every
        self._session: str | None = None
        self._step = 0
        self._snapshot: bytes | None = None
        self._journal: list[Operation] = []
        self._unsettled: set[int] = set()  # frames with prompts whose memory the server has not encoded yet
        self._known: OrderedDict[int, None] = OrderedDict()
        self._abandoned: list[str] = []
        self._lock = threading.Lock()
        self._notice = Notice()
        self.restored = 0
        self.finds_words = False
        """Whether the server searches frames of this session for words, in the same pass of the backbone."""

    def start(self) -> Flow[None]:
        """Start the session."""
        yield from self._restore()
        self.restored = 0

    def run(self, operation: Operation, outputs: tuple[str, ...] = ()) -> Flow[Tensors]:
        """Do an operation and return its answer. If the server has lost the session, it is restored first."""
        wanted = (wire.RESULT, *outputs)
        if operation.frame is not None:
            # update_memories follows each propagate of track_words(), so it does not count as a frame.
            frames = sum(done.name != wire.UPDATE_MEMORIES for done in self._journal) + 1
            if operation.changes and frames >= self._snapshot_every:
                wanted = (*wanted, wire.SNAPSHOT)
        losses = 0
        while True:
            try:
                if self._session is None:
                    yield from self._restore()
                answer = yield from self._ask(operation, wanted)
            except UnknownSessionError as error:
                self._forget()
                losses += 1
                self._notice.log(
                    f"{self._model.name} lost the session of a video. The client restores it and tracks the frames "
                    "since the last snapshot again; later corrections of earlier frames may differ. If this happens "
                    "often, raise idle_seconds in config.pbtxt, or let one server answer all requests of a client"
                )
                if losses > MAX_LOSSES:
                    raise UnknownSessionError(
                        f"{self._model.name} lost the session {losses} times in a row: if several servers share the "
                        "requests, all requests of a client must go to one of them"
                    ) from error
            except (InputError, ServerBusyError):  # the server has rejected the request, so nothing has changed
                raise
            except BaseException:
                self._forget(close=True)
                raise
            else:
                self._note(operation, answer)
                return answer

    def upload(self, index: int, words: bool = False) -> Flow[None]:
        """Send a frame before it is needed. Failures are ignored: the frame is then sent with the operation.

        Args:
            words: whether the frame will be searched for words, by the server of the session if it can.
        """
        session = self._session
        if session is None or index in self._known:
            return
        content = self._frames.content(index)
        with contextlib.suppress(SamError):
            arguments = {wire.WORDS: True} if words and self.finds_words else {}
            yield self._model.request(wire.ADD_FRAMES, session, arguments, {index: content})
            self._remember(session, [index])

    def close(self) -> Flow[None]:
        """End the session on the server. Failures are ignored, because the server ends idle sessions."""
        self._forget(close=True)
        yield from self._close_abandoned()

    def _restore(self) -> Flow[None]:
        """Start a session from the snapshot, and repeat the operations since then."""
        yield from self._close_abandoned()
        try:
            begins = {"num_frames": self._frames.count, "frame_size": list(self._frames.source.size)}
            arguments = begins if self._snapshot is None else {}  # a snapshot contains them
            answer = yield self._model.request(wire.START_SESSION, None, arguments, snapshot=self._snapshot)
            result = self._model.read_result(answer)
            self._session = _session_id(result, self._model.name)
            self._step = int(result.get("next_step", 1)) - 1
            self.finds_words = result.get(wire.WORDS) is True
            for operation in self._journal:
                yield from self._ask(operation, (wire.RESULT,))
        except UnknownSessionError:
            self._forget()
            raise
        except BaseException:  # also GeneratorExit: the caller does not wait for the answer
            self._forget(close=True)
            raise
        self.restored += 1

    def _ask(self, operation: Operation, wanted: tuple[str, ...]) -> Flow[Tensors]:
        """Send an operation, with the frames that the server does not have."""
        session = self._session
        assert session is not None  # noqa: S101 - for the type checker
        arguments = {**operation.arguments, **({"step": self._step + 1} if operation.changes else {})}
        attached: dict[int, bytes] = {}
        if operation.frame is not None and operation.frame not in self._known:
            attached[operation.frame] = self._frames.content(operation.frame)
        while True:
            try:
                answer = yield self._model.request(
                    operation.name, session, arguments, attached, operation.mask, outputs=wanted
                )
            except UnknownImageError as error:
                if error.frame is None or error.frame in attached:
                    raise
                attached[error.frame] = self._frames.content(error.frame)
            except ImageError as error:
                frames = ", ".join(map(str, attached)) or "a frame"
                raise VideoError(f"the server cannot read frame {frames}: {error}") from error
            else:
                self._step += operation.changes
                self._remember(session, attached)
                return answer

    def _note(self, operation: Operation, answer: Tensors) -> None:
        """Record an operation that the server has done."""
        if not operation.changes:
            return
        if operation.name == wire.RESET_SESSION:
            self._journal.clear()
            self._unsettled.clear()
            self._snapshot = None
        elif wire.SNAPSHOT in answer:
            self._snapshot = bytes(answer[wire.SNAPSHOT].flat[0])
            self._journal.clear()
        else:
            self._journal.append(operation)
        if operation.name == wire.ADD_PROMPT and operation.frame is not None:
            self._unsettled.add(operation.frame)
        elif operation.arguments.get("first"):
            self._unsettled.clear()
        needed = {done.frame for done in self._journal if done.frame is not None}
        self._frames.pinned = needed | self._unsettled

    def _remember(self, session: str, indexes: Iterable[int]) -> None:
        """Record the frames that the server has, unless another flow has abandoned the session during upload()."""
        with self._lock:
            if session != self._session:
                return
            for index in indexes:
                self._known[index] = None
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def _forget(self, close: bool = False) -> None:
        """Abandon the session; with ``close``, end it on the server at the next opportunity."""
        with self._lock:
            if close and self._session is not None:
                self._abandoned.append(self._session)
            self._session = None
            self._known.clear()

    def _close_abandoned(self) -> Flow[None]:
        while self._abandoned:
            with contextlib.suppress(SamError):
                yield self._model.request(wire.CLOSE_SESSION, self._abandoned.pop(), {})


def _session_id(result: dict[str, object], model: str) -> str:
    session = result.get("session_id")
    if not isinstance(session, str) or not session:
        raise InferenceError(f"{model} sent no session_id")
    return session
