"""What the clients have in common besides the requests themselves: server, family, current image."""

from __future__ import annotations

from typing import Any, Literal, get_args

from ..errors import ConfigurationError, InferenceError, ModelNotReadyError, NoImageError
from ..families import get_family
from ..families.base import Family
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.prompts import Prompts
from ..transport.url import ServerUrl, parse_url
from ..wire.contract import OutputFormat, read_error
from ..wire.pair import ModelPair, Request
from .session import SessionCalls, SessionImage

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
        self._session = SessionCalls(self._pair)
        self._uses_session: bool | None = {"auto": None, "server": True, "client": False}[embeddings]
        self._may_fall_back = embeddings == "auto"
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

    def _session_failed(self, error: InferenceError | ModelNotReadyError) -> None:
        """Go on with the encoder when a server turns out to have no session model and need not have one.

        Raises:
            SamError: what else the failed upload of an image means.
        """
        if isinstance(error, InferenceError):
            meant = read_error(error)
            raise meant from (None if meant is error else error)
        if not self._may_fall_back:
            raise error
        self._uses_session = False

    def _click(
        self,
        image: ImageEmbeddings | None,
        point_coords: Any,
        point_labels: Any,
        box: Any,
        mask_input: Any,
        multimask_output: bool,
        output_format: OutputFormat = "logits",
    ) -> tuple[Request, Prompts]:
        """Check a prediction's arguments and build its request; see _checked() and _request()."""
        embeddings, prompts = self._checked(image, point_coords, point_labels, box, mask_input)
        return self._request(embeddings, prompts, multimask_output, output_format), prompts

    def _checked(
        self, image: ImageEmbeddings | None, point_coords: Any, point_labels: Any, box: Any, mask_input: Any
    ) -> tuple[ImageEmbeddings, Prompts]:
        """Check a prediction's arguments; image None is the current one.

        Raises:
            NoImageError: no image has been set.
            PromptError: a prompt of the wrong shape, type or range.
        """
        embeddings = image if image is not None else self._embeddings
        if embeddings is None:
            raise NoImageError("no image yet: call set_image() first")
        self._pair.check_origin(embeddings)
        return embeddings, self._pair.prompts(embeddings, point_coords, point_labels, box, mask_input)

    def _request(
        self,
        embeddings: ImageEmbeddings,
        prompts: Prompts,
        multimask_output: bool,
        output_format: OutputFormat = "logits",
    ) -> Request:
        """Build a prediction's request; where the prompt is too large for the session model, embeddings are waited for.

        Only a session model knows other formats than logits: whoever asks for one looks at the kind of the request.
        """
        if isinstance(embeddings, SessionImage) and self._session.fits(prompts):
            return self._session.click(embeddings, prompts, multimask_output, output_format)
        return self._pair.decode(embeddings, prompts, multimask_output)
