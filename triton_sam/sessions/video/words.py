"""The search for all instances of concepts in the frames of a session.

One pass of the backbone computes the feature maps of a frame for the search and its embeddings for the tracker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...concepts.instances import to_pixels
from ...concepts.query import query_from
from ...errors import InputError, UnknownImageError
from ...wire import contract, video
from ..concepts import ConceptSearch, image_id_of
from ..images import HeldImage
from ..messages import Reply, Tensors, json_tensor
from .messages import VideoRequest
from .sessions import VideoSession


class FrameSearch:
    """Answers find, and encodes frames for it."""

    def __init__(self, search: ConceptSearch) -> None:
        self._search = search

    def is_possible(self) -> bool:
        """Return whether the server has the models, and memory for the feature maps of some frames."""
        return self._search.room_for(video.SEARCHED_AHEAD) and self._search.is_ready()

    def encode(self, session: VideoSession, frames: Mapping[int, bytes], reply: Reply) -> None:
        """Encode frames for the search and for the tracker."""
        for index, content in frames.items():
            self._encode(session, index, content, reply)

    def answer(
        self, request: VideoRequest, session: VideoSession, reply: Reply, stopped: Callable[[], bool]
    ) -> Tensors:
        """Answer find.

        The feature maps leave the cache afterwards, so that it has room for the embeddings of as many frames as without
        searches.

        Args:
            stopped: returns whether the answer is no longer needed.
        """
        if request.output_format != contract.LOGITS:
            raise InputError(f"{video.FIND} returns {contract.LOGITS}, not {request.output_format}")
        frame = request.arguments["frame_index"]
        asked = self._search.read(query_from(request.arguments["query"]), logits=True)
        image = self._maps(session, request.frames, frame, reply)
        found = list(self._search.instances(asked, image, image, reply, stopped))
        self._search.drop(image_id_of(image))
        objects = [
            {
                "text_index": each.index,
                "proposal": each.proposal,
                "score": each.score,
                "box": to_pixels(each.box, image.image_size),
            }
            for each in found
        ]
        return {
            video.RESULT: json_tensor({"objects": objects}),
            contract.MASKS: self._search.stacked([each.logits for each in found]),
        }

    def _maps(self, session: VideoSession, frames: Mapping[int, bytes], frame: int, reply: Reply) -> HeldImage:
        """Return the feature maps of a frame that the request contains, or that the session has."""
        if frame in frames:
            return self._encode(session, frame, frames[frame], reply)
        image_id = session.image_ids.get(frame)
        held = None if image_id is None else self._search.get(image_id, reply)
        if held is None:
            raise UnknownImageError(f"the feature maps of frame {frame} are not here: send it again", frame=frame)
        return held

    def _encode(self, session: VideoSession, index: int, content: bytes, reply: Reply) -> HeldImage:
        image = self._search.encode(content, reply)
        session.add_frame(index, image_id_of(image), image.image_size)
        return image
