"""The clients of videos: prompts at any frame become the masks of the objects in all frames."""

from .aio import AsyncSAM2VideoClient, AsyncVideo
from .sync import SAM2VideoClient
from .video import Video

__all__ = ["AsyncSAM2VideoClient", "AsyncVideo", "SAM2VideoClient", "Video"]
