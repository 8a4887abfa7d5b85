"""The synchronous client of videos."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from ...errors import ConfigurationError
from ...families import get_family
from ...inputs.video.base import FrameSource
from ...inputs.video.opening import VideoSource, open_frames
from ...inputs.video.sequences import DEFAULT_WINDOW
from ...transport.base import BaseTransport
from ...transport.options import Busy
from ...transport.triton import Transport
from ...transport.url import parse_url
from ..spellings import also_spelled
from .flows import VideoModel
from .frames import VideoOptions
from .video import Video


class SAM2VideoClient:
    """Follows objects through videos on a Triton server.

    Several threads may use one client, each with its own videos.

    Examples:
        >>> with SAM2VideoClient("localhost:8000") as client, client.open("clip.mp4") as video:
        ...     video.add(frame=0, object_id=1, points=[[210, 350]], labels=[1])
        ...     for frame, segments in video.propagate():
        ...         segments[1].to_png(f"{frame:05}.png")

    Args:
        url: ``host:port`` (HTTP), ``http://``, ``https://``, ``grpc://`` or ``grpcs://``. None: the environment
            variable TRITON_URL, else localhost:8000.
        variant: models other than the default ones, for example "sam2.1_large" for ``sam2.1_large_video``.
            ``model_name`` is a second spelling.
        model_type: SAM family that can follow objects: "sam2", "edgetam" or "sam3".
        timeout: seconds that one request may take. A call that restores a lost session sends several requests.
        retries: maximum number of retries if the connection cannot be made or breaks. Retries are safe because the
            server numbers the requests of a session, and runs none of them twice.
        headers: HTTP headers or gRPC metadata for every request.
        ca_certs: PEM file with the certificates to trust, for https and grpcs.
        busy: what to do when the server rejects a request because its queue is full or all sessions are in use.
            "raise" a ServerBusyError at once, or "wait": retry, with pauses that grow to a second, until the timeout.
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
                or the number of a camera. Generators, URLs and cameras are streams: their length is unknown.
            quality: how pixels are sent. None: lossless, as PNG. 1..100: as JPEG of this quality, which takes a third
                of the bytes or less, but changes the masks slightly. Image files are always sent unchanged.
            every: distance between tracked frames. With 5, the server receives the frames 0, 5, 10, ...; prompts are
                possible only at these frames. Frame indexes are always those of the source.
            ahead: number of frames that are sent before they are tracked, so that their encoding overlaps.
            snapshot_every: number of frames between two snapshots of the session. If the server loses the session, at
                most this many frames are tracked again. A snapshot takes a few MB for each object.
            window: number of frames of a stream that the client keeps for prompts.

        Raises:
            VideoError: the source is missing, empty, damaged or not a video.
            MissingDependencyError: the source needs PyAV, which the extra ``video`` installs.
            ConfigurationError: an argument is out of range.
            ServerBusyError: all sessions of the server are in use.
            ServerError: see triton_sam.errors.
        """
        options = VideoOptions(quality, every, ahead, snapshot_every, window)
        return self._start(open_frames(source, quality, window), options)

    def _start(self, frames: FrameSource, options: VideoOptions) -> Video:
        """Start the session of a video. After an error, its source is closed."""
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

    def __exit__(self, *_: object) -> None:
        self.close()
