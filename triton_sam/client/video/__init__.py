"""The clients of videos: prompts at any frame become the masks of the objects in all frames.

The package `triton_sam.client` describes the way of a frame.
"""

from .aio import AsyncSAM2VideoClient, AsyncVideo
from .sync import SAM2VideoClient
from .video import Video

__all__ = ["AsyncSAM2VideoClient", "AsyncVideo", "SAM2VideoClient", "Video"]
