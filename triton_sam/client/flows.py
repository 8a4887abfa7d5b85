"""The sequences of requests behind the calls of a client.

A flow is a generator. It yields a `Request`, and the driver then sends it the answer, or throws the error that came
instead. The return value of the generator is the result of the call. Flows do no I/O: the client sends the requests
(see `drivers`), so that a test only needs a list of answers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from ..errors import InferenceError, ModelNotReadyError
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, plain_source
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Request
from .clicks import Click
from .lacks import Lack
from .session_model import read_upload, upload

Result = TypeVar("Result")
Flow = Generator[Request, Tensors, Result]


class EncodeFlows:
    """Flows that encode an image.

    Args:
        pair: the models.
        uses_session_model: whether to send images to the session model.
        may_fall_back: whether to send images to the encoder instead while the server has no session model.
    """

    def __init__(self, pair: ModelPair, *, uses_session_model: bool, may_fall_back: bool) -> None:
        self._pair = pair
        self._uses_session_model = uses_session_model
        self._may_fall_back = may_fall_back
        self._lack = Lack()

    def encode(self, source: ImageSource) -> Flow[ImageEmbeddings]:
        """Encode an image, on the server or for this side, depending on where the embeddings are kept.

        Raises:
            ImageError: the source is not a usable image.
            ServerError: the request failed.
        """
        source = plain_source(source)  # an open file can be read only once, and a fallback needs it again
        if self._uses_session_model and not self._lack.is_known:
            request, content = upload(self._pair, source)
            try:
                outputs = yield request
            except ModelNotReadyError as error:
                if not self._may_fall_back:
                    raise
                self._fall_back(error)
            else:
                return read_upload(self._pair, outputs, content)
        return (yield from self.encode_here(source))

    def encode_here(self, source: ImageSource) -> Flow[ImageEmbeddings]:
        """Encode an image and keep the embeddings on this side.

        Raises:
            ImageError: the source is not a usable image.
            ServerError: the request failed.
        """
        request, size = self._pair.encode(source)
        outputs = yield request
        return self._pair.read_embeddings(outputs, size)

    def _fall_back(self, error: ModelNotReadyError) -> None:
        """Switch to the encoder for a while."""
        megabytes = contract.embedding_bytes(self._pair.family) / 1e6
        self._lack.note(
            f"the server has no session model {self._pair.session_model!r} ready: this client keeps the embeddings and "
            f"sends them with each click ({megabytes:.1f} MB). Serve the session model, or give embeddings='client' "
            f"if this is what you want ({error})"
        )


def ask(click: Click) -> Flow[Tensors]:
    """Send a click and return the answer. If the server has lost the image, send the click again with the image.

    A click of more objects than a request may have is sent in parts.

    Raises:
        SamError: the request failed.
    """
    answers = []
    for part in click.parts:
        request = click.request(part)
        try:
            outputs = yield request
        except InferenceError as error:
            for again in click.again(request, error):
                outputs = yield again
            click.answered(outputs, at_once=False)
        else:
            click.answered(outputs, at_once=True)
        answers.append(outputs)
    return click.joined(answers)
