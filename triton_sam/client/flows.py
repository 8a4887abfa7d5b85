"""What the calls of a client ask of the server, one request after the other, written once for both clients.

A flow is a generator: it yields a `Request` and is sent the answer, or has the error thrown in that came instead of
one. What it returns is the result of the call. No flow does I/O: a client carries the requests (see `drivers`), and a
test needs nothing but a list of answers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from ..errors import InferenceError, ModelNotReadyError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..transport.base import Tensors
from ..wire.contract import read_error
from ..wire.pair import ModelPair, Request
from .clicks import Click
from .session_model import Fetch, read_upload, upload

Result = TypeVar("Result")
Flow = Generator[Request, Tensors, Result]


class EncodeFlows:
    """Flows that encode an image; they remember whether the server turned out to have no session model.

    Args:
        pair: the models.
        uses_session_model: images go to the session model.
        may_fall_back: they go to the encoder where the server has no session model.
    """

    def __init__(self, pair: ModelPair, *, uses_session_model: bool, may_fall_back: bool) -> None:
        self._pair = pair
        self._uses_session_model = uses_session_model
        self._may_fall_back = may_fall_back

    def encode(self, source: ImageSource, fetch: Fetch) -> Flow[ImageEmbeddings]:
        """Encode an image where its embeddings are to be kept.

        Args:
            source: the image.
            fetch: gets the embeddings of an image that the server keeps, when somebody wants them on this side.

        Raises:
            ImageError: not a usable image.
            ServerError: what came instead of an answer, in its proper type.
        """
        if self._uses_session_model:
            request, content = upload(self._pair, source)
            try:
                outputs = yield request
            except (InferenceError, ModelNotReadyError) as error:
                self._fall_back(error)
            else:
                return read_upload(self._pair, outputs, content, fetch)
        return (yield from self.encode_here(source))

    def encode_here(self, source: ImageSource) -> Flow[ImageEmbeddings]:
        """Encode an image and keep the embeddings on this side.

        Raises:
            ImageError: not a usable image.
            ServerError: what came instead of an answer.
        """
        request, size = self._pair.encode(source)
        outputs = yield request
        return self._pair.read_embeddings(outputs, size)

    def _fall_back(self, error: InferenceError | ModelNotReadyError) -> None:
        """Go on with the encoder when the server has no session model and need not have one."""
        if isinstance(error, InferenceError):
            meant = read_error(error)
            raise meant from (None if meant is error else error)
        if not self._may_fall_back:
            raise error
        self._uses_session_model = False


def ask(click: Click) -> Flow[Tensors]:
    """Send a click; once more, with the image, where the server that kept the image has lost it. Return the answer.

    Args:
        click: prepared.

    Raises:
        SamError: what came instead of an answer, in its proper type.
    """
    try:
        outputs = yield click.request
    except InferenceError as error:
        for request in click.again(error):
            outputs = yield request
    else:
        click.answered()
    return outputs


def predict(click: Click) -> Flow[tuple[FloatArray, FloatArray]]:
    """Send a click as ask() does, and return its low-resolution logits (P,M,h,w) and scores (P,M)."""
    return click.low_res((yield from ask(click)))
