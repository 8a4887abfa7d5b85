"""What the clients have in common besides the requests themselves: server, family, current image."""

from __future__ import annotations

from typing import Any, Literal, get_args

from ..errors import ConfigurationError, NoImageError
from ..families import get_family
from ..families.base import Family
from ..inputs.embeddings import ImageEmbeddings
from ..transport.url import ServerUrl, parse_url
from ..wire.pair import ModelPair
from .clicks import Click, EmbeddingsClick, SessionClick
from .flows import EncodeFlows
from .session_image import SessionImage
from .session_model import fits

EmbeddingsPlace = Literal["auto", "server", "client"]


class ClientCore:
    """Base of the sync and the async client: everything that is no call.

    Raises:
        ConfigurationError: an argument that cannot work. No connection is made yet.
    """

    def __init__(
        self,
        url: str | None,
        model_type: str,
        model_name: str | None,
        *,
        embeddings: EmbeddingsPlace = "client",
    ) -> None:
        if embeddings not in get_args(EmbeddingsPlace):
            raise ConfigurationError(f"embeddings={embeddings!r}: one of {', '.join(get_args(EmbeddingsPlace))}")
        self._pair = ModelPair(get_family(model_type), model_name)
        self._flows = EncodeFlows(
            self._pair, uses_session_model=embeddings != "client", may_fall_back=embeddings == "auto"
        )
        self._server: ServerUrl = parse_url(url)
        self._embeddings: ImageEmbeddings | None = None

    @property
    def url(self) -> str:
        """The server's URL, with scheme and port."""
        return str(self._server)

    @property
    def family(self) -> Family:
        """The SAM family that this client speaks: tensor names, frame, value range."""
        return self._pair.family

    @property
    def image_embeddings(self) -> ImageEmbeddings | None:
        """Encoder outputs of the current image; None before set_image(). Assign saved ones to go on without encoding.

        Where the server keeps them, they are fetched when you first look at a tensor or save them: the image is
        prepared here and goes through the encoder once more.

        Raises:
            ConfigurationError: (on assignment) another encoder made them than the one of this client.
            InputError: (on assignment) a tensor is missing or has another shape or type.
        """
        return self._embeddings

    @image_embeddings.setter
    def image_embeddings(self, embeddings: ImageEmbeddings) -> None:
        self._pair.check_origin(embeddings)
        if not isinstance(embeddings, SessionImage):  # its tensors are not here, and are checked when they come
            embeddings.check()
        self._embeddings = embeddings

    def _click(
        self,
        image: ImageEmbeddings | None,
        point_coords: Any,
        point_labels: Any,
        box: Any,
        mask_input: Any,
        multimask_output: bool,
        logits: bool = True,
    ) -> Click:
        """Check a prediction's arguments; image None is the current one. The click is yet to be prepared.

        Raises:
            NoImageError: no image has been set.
            PromptError: a prompt of the wrong shape, type or range.
        """
        embeddings = image if image is not None else self._embeddings
        if embeddings is None:
            raise NoImageError("no image yet: call set_image() first")
        self._pair.check_origin(embeddings)
        prompts = self._pair.prompts(embeddings, point_coords, point_labels, box, mask_input)
        if isinstance(embeddings, SessionImage) and fits(prompts):
            return SessionClick(self._pair, embeddings, prompts, multimask_output, logits)
        return EmbeddingsClick(self._pair, embeddings, prompts, multimask_output, logits)

    def _prepared_click(self, *arguments: Any, **options: Any) -> Click:
        """Return a click that can be sent; see _click(). It may wait for the server."""
        click = self._click(*arguments, **options)
        click.prepare()
        return click
