"""Sources of the frames of a video: a video file, a folder, a list, a generator, a camera."""

from .base import Frame, FrameSource
from .opening import VideoSource, open_frames

__all__ = ["Frame", "FrameSource", "VideoSource", "open_frames"]
