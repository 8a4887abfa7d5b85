"""The state that both clients share: the server, the family and the current image."""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import ConfigurationError, NoImageError
from ..families import get_family
from ..families.base import Family
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.prompts import PromptArray
from ..masks.cleanup import Cleanup, check_cleanup
from ..transport.url import ServerUrl, parse_url
from ..wire.pair import ModelPair
from .clicks import Click, EmbeddingsClick, SessionClick
from .concepts import ConceptFlows
from .everything_parts import PartFlows
from .flows import EncodeFlows
from .session_image import SessionImage
from .session_model import Capabilities

EmbeddingsPlace = Literal["auto", "server", "client"]


class ClientCore:
    """Base class of the sync and the async client. It checks arguments and builds clicks, but sends no request.

    Raises:
        ConfigurationError: an argument is invalid. The constructor opens no connection.
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
            places = ", ".join(get_args(EmbeddingsPlace))
            raise ConfigurationError(f"embeddings must be one of {places}, not {embeddings!r}")
        self._pair = ModelPair(get_family(model_type), model_name)
        self._flows = EncodeFlows(
            self._pair, uses_session_model=embeddings != "client", may_fall_back=embeddings == "auto"
        )
        capabilities = Capabilities(self._pair.session_model)
        self._parts = PartFlows(self._pair, capabilities)
        self._concepts = ConceptFlows(self._pair, capabilities, is_used=embeddings != "client")
        self._server: ServerUrl = parse_url(url)
        self._embeddings: ImageEmbeddings | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, model={self._pair.variant or self.family.name!r})"

    @property
    def url(self) -> str:
        """The server's URL, with scheme and port."""
        return str(self._server)

    @property
    def family(self) -> Family:
        """The SAM family of this client, which defines tensor names, coordinate frame and value ranges."""
        return self._pair.family

    @property
    def image_embeddings(self) -> ImageEmbeddings | None:
        """The embeddings of the current image; None before set_image().

        If the server keeps them, this is a handle without tensors: encode_here() returns the tensors of an image.
        Assign saved embeddings to continue with an image without encoding it again.

        Raises:
            ConfigurationError: (on assignment) the embeddings come from another encoder than this client's.
            InputError: (on assignment) a tensor is missing, or it has a wrong shape or type.
        """
        return self._embeddings

    @image_embeddings.setter
    def image_embeddings(self, embeddings: ImageEmbeddings) -> None:
        self._pair.check_origin(embeddings)
        if not isinstance(embeddings, SessionImage):  # which has no tensors
            embeddings.check()
        self._embeddings = embeddings

    def _click(
        self,
        image: ImageEmbeddings | None,
        point_coords: PromptArray,
        point_labels: PromptArray,
        box: PromptArray,
        mask_input: PromptArray,
        multimask_output: bool,
        logits: bool = True,
        cleanup: Cleanup | None = None,
    ) -> Click:
        """Check the arguments of a prediction and return its click.

        ``image`` None stands for the current image.

        Raises:
            NoImageError: no image has been set.
            PromptError: a prompt has a wrong shape, type or range.
            InputError: ``cleanup`` is not a Cleanup.
        """
        embeddings = image if image is not None else self._embeddings
        if embeddings is None:
            raise NoImageError("there is no image yet: call set_image() first")
        self._pair.check_origin(embeddings)
        check_cleanup(cleanup)
        prompts = self._pair.prompts(embeddings, point_coords, point_labels, box, mask_input)
        if isinstance(embeddings, SessionImage):
            return SessionClick(self._pair, embeddings, prompts, multimask_output, logits, cleanup)
        return EmbeddingsClick(self._pair, embeddings, prompts, multimask_output, logits, cleanup)
