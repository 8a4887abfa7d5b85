"""The synchronous client of videos."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from ...errors import ConfigurationError, SamError
from ...families import get_family
from ...inputs.prompts import PromptArray
from ...inputs.video.opening import VideoSource, open_frames
from ...inputs.video.stream import DEFAULT_WINDOW
from ...masks.segment import VideoSegment
from ...transport.base import BaseTransport, Tensors
from ...transport.options import Busy
from ...transport.triton import Transport
from ...transport.url import parse_url
from ...wire import video as wire
from ..flows import carry
from ..spellings import also_spelled
from .base import OnProgress, Pass, Segments, VideoCore, VideoOptions, row_outputs
from .lookahead import look_ahead
from .requests import Operation, VideoModel


class SAM2VideoClient:
    """Follows objects through videos on a Triton server.

    Several threads may use one client, each with videos of its own.

    Examples:
        >>> with SAM2VideoClient("localhost:8000") as client, client.open("clip.mp4") as video:
        ...     video.add(frame=0, object_id=1, points=[[210, 350]], labels=[1])
        ...     for frame, segments in video.propagate():
        ...         segments[1].to_png(f"{frame:05}.png")

    Args:
        url: ``host:port`` (HTTP), ``http://``, ``https://``, ``grpc://`` or ``grpcs://``. None: the environment
            variable TRITON_URL, else localhost:8000.
        variant: other models than the default ones, for example "sam2.1_large" for ``sam2.1_large_video``.
            ``model_name`` is a second spelling.
        model_type: SAM family that can follow objects: "sam2" or "edgetam".
        timeout: seconds that one request may take. A call that restores a lost session sends several requests.
        retries: how often a request is repeated if the connection cannot be made or breaks. This is safe because the
            server counts the requests of a session, and does none of them twice.
        headers: HTTP headers or gRPC metadata for every request.
        ca_certs: PEM file with the certificates to trust, for https and grpcs.
        busy: what to do when the server refuses a request because too many wait there, or because all sessions are in
            use. "raise" a ServerBusyError at once, or "wait": repeat the request, with pauses that grow to a second,
            until the timeout.
        transport: sends the requests instead of a connection to ``url``; see SAM2TritonClient.

    Raises:
        ConfigurationError: an argument is invalid. The constructor opens no connection.
    """

    @also_spelled(ConfigurationError, model_name="variant")
    def __init__(
        self,
        url: str | None = None,
        variant: str | None = None,
        *,
        model_type: str = "sam2",
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
        busy: Busy = "raise",
        transport: BaseTransport | None = None,
    ) -> None:
        self._model = VideoModel(get_family(model_type), variant)
        self._server = server = parse_url(url)
        if transport is None:
            transport = Transport(
                server, timeout=timeout, retries=retries, headers=headers, ca_certs=ca_certs, busy=busy
            )
        self._transport: BaseTransport = transport

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._server)!r}, model={self._model.name!r})"

    def open(
        self,
        source: VideoSource,
        *,
        quality: int | None = None,
        every: int = 1,
        ahead: int = 2,
        snapshot_every: int = 16,
        window: int = DEFAULT_WINDOW,
    ) -> Video:
        """Open a video and start its session on the server.

        Args:
            source: a video file, a folder of image files (in the natural order of their names), a list of images
                (paths, encoded bytes, Pillow images, uint8 arrays), an array (T,H,W,3), a generator of images, a URL,
                or the number of a camera. Generators, URLs and cameras are streams: their end is not known.
            quality: how pixels are sent. None: without loss, as PNG. 1..100: as JPEG of this quality, which takes a
                third of the bytes or less, but changes the masks slightly. Image files are always sent unchanged.
            every: distance between tracked frames. With 5, the server sees a video of the frames 0, 5, 10, ...; prompts
                are possible at these frames alone. Indexes of frames are always those of the source.
            ahead: number of frames that are sent before they are tracked, so that their encoding overlaps.
            snapshot_every: number of frames after which the client takes the next snapshot of the session. If the
                server loses the session, at most so many frames are tracked again. A snapshot has some MB for each
                object.
            window: number of frames of a stream that the client keeps for prompts.

        Raises:
            VideoError: the source is missing, empty, damaged or not a video.
            MissingDependencyError: the source needs PyAV, which the extra ``video`` installs.
            ConfigurationError: an argument is out of range.
            ServerBusyError: the server has no place for another session.
            ServerError: see triton_sam.errors.
        """
        options = VideoOptions(quality, every, ahead, snapshot_every, window)
        frames = open_frames(source, quality, window)
        with contextlib.ExitStack() as opened:
            opened.callback(frames.close)
            video = Video(self._model, frames, options, self._transport)
            opened.pop_all()
            opened.callback(video._close_quietly)
            video._start()
            opened.pop_all()
        return video

    def is_ready(self) -> bool:
        """Whether the server answers and has the video model of this client ready."""
        with self._transport.one_call():
            return self._transport.is_ready() and self._model.name in self._transport.ready_models()

    def close(self) -> None:
        """Close the connections. Close the videos first."""
        self._transport.close()

    def __enter__(self) -> SAM2VideoClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Video(VideoCore):
    """An open video, see SAM2VideoClient.open(). Several threads may use it; their calls wait for each other.

    If the server loses the session of the video, the client restores it, and the masks stay the same. A call that fails
    has changed nothing and can be repeated.
    """

    def __init__(self, model: VideoModel, source: Any, options: VideoOptions, transport: BaseTransport) -> None:
        super().__init__(model, source, options)
        self._transport = transport
        self._lock = threading.RLock()
        self._is_closed = False

    def _start(self) -> None:
        carry(self._flows.start(), self._transport)

    def add(
        self,
        frame: int,
        object_id: int,
        points: PromptArray = None,
        labels: PromptArray = None,
        box: PromptArray = None,
        mask: PromptArray = None,
        clear_old_points: bool = True,
        *,
        logits: bool = True,
    ) -> VideoSegment:
        """Add a prompt for one object at one frame; this adds the object if it is new, and corrects it otherwise.

        Args:
            frame: index of the frame, from 0.
            object_id: any whole number of 64 bits.
            points: (N,2) points, x and y in pixels of the frame.
            labels: (N,): 1 foreground, 0 background. None: all foreground.
            box: (4,) as x1,y1,x2,y2 in pixels.
            mask: (H,W), the object in this frame; it replaces points and box.
            clear_old_points: whether the prompt replaces the earlier points of this object at this frame.
            logits: whether the segment carries its logits; see propagate().

        Returns:
            The mask of the object in this frame.

        Raises:
            PromptError: the prompt has a wrong shape, type or range, there is no such frame, or a limit of the server
                is reached.
            VideoError: the frame cannot be read, for example because a stream does not keep it any more.
            ServerError: see triton_sam.errors.
        """
        operation = self._prompt(frame, object_id, points, labels, box, mask, clear_old_points)
        index, checked_id = operation.arguments["frame_index"], operation.arguments["object_id"]
        return self._segments(self._run(operation, row_outputs(logits)), index)[checked_id]

    def propagate(
        self,
        start: int | None = None,
        count: int | None = None,
        reverse: bool = False,
        *,
        logits: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Generator[tuple[int, Segments], None, None]:
        """Track all objects from frame to frame.

        The frames are tracked while you iterate: the client never runs ahead of you, except that it sends the next
        frames. So leave the loop to stop early, or call cancel(). Then correct the objects and go on from any frame.

        Args:
            start: index of the first frame; None: the first frame that has a prompt.
            count: maximum number of frames; None: up to the end of the video.
            reverse: whether to go towards frame 0.
            logits: whether the segments carry their logits, which take 256 KB for each object and frame on the wire
                (1024 px). Without them, the server makes the full-size masks and sends some KB.
            on_progress: is called after each frame with the number of frames done and of all frames (None: unknown).

        Yields:
            The index of a frame, and the masks of all objects by object id.

        Raises:
            PromptError: there is no prompt, or no frame ``start``.
            VideoError: a frame cannot be read.
            ServerError: see triton_sam.errors.
        """
        current = self._pass(start, count, reverse, row_outputs(logits), on_progress)
        return self._propagate(current)

    def clear(self, frame: int, object_id: int) -> None:
        """Remove the prompts of an object at a frame.

        Raises:
            PromptError: there is no such frame or object.
            ServerError: see triton_sam.errors.
        """
        self._run(self._clearing(frame, object_id))

    def remove(self, object_id: int) -> None:
        """Remove an object.

        Raises:
            PromptError: there is no such object.
            ServerError: see triton_sam.errors.
        """
        self._run(self._removal(object_id))

    def reset(self) -> None:
        """Remove all objects. The frames stay.

        Raises:
            ServerError: see triton_sam.errors.
        """
        self._run(Operation(wire.RESET_SESSION))

    def close(self) -> None:
        """End the session and close the source. Errors of the server are ignored: it ends idle sessions by itself.

        Later calls raise a ConfigurationError.
        """
        self.cancel()
        try:
            with self._lock:
                self._is_closed = True
                carry(self._flows.close(), self._transport)
        finally:
            self._frames.source.close()

    def _close_quietly(self) -> None:
        with contextlib.suppress(SamError):
            self.close()

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _propagate(self, current: Pass) -> Generator[tuple[int, Segments], None, None]:
        with contextlib.closing(self._track(current)) as tracked:
            for index, answer in tracked:
                yield self._frames.outside(index), self._segments(answer, index)

    def _track(self, current: Pass) -> Generator[tuple[int, Tensors], None, None]:
        """Track the frames of a pass; yield each index of the session with the answer."""
        indexes = look_ahead(current.order, self._prepare_and_send, self._options.ahead, current.stop)
        with contextlib.closing(indexes):
            for done, index in enumerate(indexes):
                answer = self._run(self._tracking(index, current.reverse, is_first=done == 0), current.outputs)
                if current.on_progress is not None:
                    current.on_progress(done + 1, current.total)
                yield index, answer

    def _prepare_and_send(self, index: int, sends: bool) -> bool:
        if not self._prepare(index):
            return False
        if sends:
            carry(self._flows.upload(index), self._transport)
        return True

    def _run(self, operation: Operation, outputs: tuple[str, ...] = ()) -> Tensors:
        """Do an operation and note it."""
        flow = self._flows.run(operation, outputs)
        with self._lock:
            if self._is_closed:  # else the operation would begin another session
                raise ConfigurationError("this video is closed: open it again")
            try:
                answer = carry(flow, self._transport)
            finally:
                flow.close()
            self._note(operation, answer)
        return answer
