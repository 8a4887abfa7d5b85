"""The clients of videos: prompts at any frame become the masks of the objects in all frames.

The way of a frame through a pass:

1. `Video.propagate()` checks its arguments. `frames.look_ahead()` reads the next frames in a thread, and
   `SessionFlows.upload()` sends them (`add_frames`), so that the server encodes frame t + 1 while it tracks frame t.
2. `Video._run()` carries `SessionFlows.run()`, a generator of requests without I/O. `requests.VideoModel` builds the
   request (`propagate`), and the transport sends it.
3. In the server, `sessions/video/triton_model.py` reads the request and passes it to the strand of its session.
   `VideoModel.carry_out()` takes the embeddings of the frame from the cache, and `Tracker.track()` calls memory
   attention, decoder and memory encoder.
4. The answer has a row for each object, and now and then a snapshot. `requests.VideoModel.read_segments()` makes masks.
5. If the server has lost the session, the flow sends the snapshot, the operations since then, and their frames.
"""

from .aio import AsyncSAM2VideoClient, AsyncVideo
from .sync import SAM2VideoClient
from .video import Video

__all__ = ["AsyncSAM2VideoClient", "AsyncVideo", "SAM2VideoClient", "Video"]
