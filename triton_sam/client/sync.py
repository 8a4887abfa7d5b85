"""The synchronous client."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import ConfigurationError
from ..families import get_family
from ..families.base import Family, FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..inputs.prompts import PromptArray
from ..masks.cleanup import Cleanup
from ..masks.segment import Segment
from ..transport.base import BaseTransport
from ..transport.options import Busy
from ..transport.triton import Transport
from ..transport.url import parse_url
from ..wire.pair import ModelPair
from .clicks import make_click
from .flows import Capabilities, Flow, Notice, Result, carry
from .session_image import EncodeFlows, SessionImage
from .spellings import also_spelled, check_image_size

if TYPE_CHECKING:  # clicks do not need these imports
    from ..concepts.query import Query
    from ..concepts.video_rules import Detections
    from ..everything.parameters import Parameters
    from ..everything.search import Found, FoundObjects, Part, SearchProgress
    from .concepts import FoundInstances
    from .server_models import ServerModels

EmbeddingsPlace = Literal["auto", "server", "client"]


class SamTritonClient:
    """Segments images on a Triton server: encode an image once, then turn prompts into masks.

    Several threads may use one client. ``set_image`` sets the image for all of them; threads that work on different
    images call ``encode`` and pass the result to ``predict(..., image=...)``.

    Examples:
        >>> with SAM2TritonClient("localhost:8000") as client:
        ...     client.set_image("image.jpg")
        ...     masks, iou = client.predict(point_coords=[[512, 512]], point_labels=[1])
        ...     binary = masks[0, 0] > 0

    Args:
        url: ``host:port`` (HTTP), ``http://``, ``https://``, ``grpc://`` or ``grpcs://``. None: the environment
            variable TRITON_URL, else localhost:8000.
        model_type: SAM family: "sam1", "sam2", "sam3", "mobilesam", "edgetam" or "samhq". All behave alike.
        model_name: a variant other than the default one, for example "sam2.1_large" for the models
            ``sam2.1_large_encoder`` and ``sam2.1_large_decoder``.
        timeout: seconds that one call of the client may take, including all its requests to the server. everything()
            takes longer: each part of its search has this time.
        retries: maximum number of retries if the connection cannot be made or breaks. Retries are safe because calls
            have no side effects. A call that has reached the timeout is not retried.
        headers: HTTP headers or gRPC metadata for every call, for example ``{"Authorization": "Bearer ..."}``.
        ca_certs: PEM file with the certificates to trust, for https and grpcs.
        busy: what to do when the server rejects a call because its queue is full. "raise" a ServerBusyError at once,
            or "wait": retry, with pauses that grow to a second, until the timeout.
        embeddings: where they are kept. "server": in the session model (``sam2``), so that a click sends only an id
            and a prompt, less than 1 KB; if the server loses an image, the client sends it again. "client": in this
            process, so that every click sends them, 16.8 MB for SAM2. "auto": on the server if it has the session model
            ready when an image is encoded, else in this process, which is logged. The masks are the same in all cases.
        transport: sends the requests instead of a connection to ``url``, for example in tests or to run the models in
            this process. `triton_sam.transport.BaseTransport` lists the methods that it needs. The client then ignores
            ``timeout``, ``retries``, ``headers``, ``ca_certs`` and ``busy``.

    Raises:
        ConfigurationError: an argument is invalid. The constructor opens no connection.
    """

    @also_spelled(ConfigurationError, triton_url="url")
    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam2",
        *,
        model_name: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
        busy: Busy = "raise",
        embeddings: EmbeddingsPlace = "auto",
        transport: BaseTransport | None = None,
    ) -> None:
        if embeddings not in get_args(EmbeddingsPlace):
            places = ", ".join(get_args(EmbeddingsPlace))
            raise ConfigurationError(f"embeddings must be one of {places}, not {embeddings!r}")
        self._pair = ModelPair(get_family(model_type), model_name)
        self._keeps_embeddings = embeddings == "client"
        self._flows = EncodeFlows(
            self._pair, uses_session_model=not self._keeps_embeddings, may_fall_back=embeddings == "auto"
        )
        self._capabilities = Capabilities(self._pair.session_model)
        self._notice = Notice()
        self._embeddings: ImageEmbeddings | None = None
        self._server = parse_url(url)
        self._sends_logits = True if self._server.is_local else None
        """The meaning of ``logits=None`` in segment(); see Click."""
        self._transport: BaseTransport = transport or Transport(
            self._server, timeout=timeout, retries=retries, headers=headers, ca_certs=ca_certs, busy=busy
        )

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
            ConfigurationError: (on assignment) the embeddings come from an encoder other than this client's.
            InputError: (on assignment) a tensor is missing, or it has a wrong shape or type.
        """
        return self._embeddings

    @image_embeddings.setter
    def image_embeddings(self, embeddings: ImageEmbeddings) -> None:
        self._pair.check_origin(embeddings)
        if not isinstance(embeddings, SessionImage):  # a SessionImage has no tensors
            embeddings.check()
        self._embeddings = embeddings

    def encode(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image without making it the current one.

        Args:
            image: path, encoded bytes, Pillow image (any mode; EXIF orientation is applied) or uint8 RGB array (H,W,3).

        Raises:
            ImageError: the source is not a usable image.
            ServerError: see triton_sam.errors.
        """
        return self._carry(self._flows.encode(image))

    def encode_here(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image and return its tensors, which predict() then sends with each click. See encode().

        Use it to save the embeddings of an image, and for an object with more than 1,024 points.
        """
        return self._carry(self._flows.encode_here(image))

    @also_spelled(image_path="image")
    def set_image(self, image: ImageSource, image_size: int | None = None) -> ImageEmbeddings:
        """Encode an image and make it the current one, see encode(). After an error, the earlier image stays.

        Args:
            image: see encode(). ``image_path`` is a second spelling.
            image_size: side of the encoder's input in pixels. Omit it: only the family's own size is accepted.

        Returns:
            The embeddings, as in ``image_embeddings``.

        Raises:
            ConfigurationError: the encoder has another image_size.
        """
        check_image_size(image_size, self.family)
        self._embeddings = embeddings = self.encode(image)
        return embeddings

    def predict(
        self,
        point_coords: PromptArray = None,
        point_labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Predict low-resolution masks for P objects.

        Args:
            point_coords: (N,2) points of one object, (P,N,2) of several, or P lists of different length; x, y in
                pixels of the original image.
            point_labels: (N,) or (P,N): 1 foreground, 0 background, -2 no point. None: all foreground.
            box: (4,) or (P,4) as x1,y1,x2,y2 in pixels of the original image.
            mask_input: logits of an earlier prediction that this one refines, for example ``masks[0, 0]``; or a mask
                of their size, 256 x 256 over the whole image, bool or of 0 and 1. SAM3 does not accept it.
            multimask_output: whether to return three candidate masks for each object instead of one. Use it for a
                single click, which is often ambiguous.
            image: embeddings from encode(); None for the current image.

        Returns:
            (masks, iou): float32 logits (P,M,256,256), SAM3 (P,M,288,288), foreground where > 0, and float32 predicted
            IoU (P,M), about 0..1; M is 1, or 3 with multimask_output. SAM2's logits are clamped to -32..32, as in its
            official predictor. SAM3's single mask is the candidate with the highest score. SAM-HQ returns one mask with
            multimask_output: the best of three, as its official predictor does.

        Raises:
            NoImageError: no image has been set.
            PromptError: a prompt has a wrong shape, type or range.
            ServerError: see triton_sam.errors.
        """
        arguments = (point_coords, point_labels, box, mask_input, multimask_output)
        click = make_click(self._pair, self._embeddings, image, *arguments)
        return self._pair.low_res(click.read(self._carry(click.ask())))

    def segment(
        self,
        point_coords: PromptArray = None,
        point_labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
        logits: bool | None = None,
        cleanup: Cleanup | None = None,
    ) -> list[Segment]:
        """Predict full-size masks. Arguments and errors are those of predict(), except ``logits`` and ``cleanup``.

        Args:
            logits: whether the segments contain their logits, which take 263 KB each on the wire. Without them, a
                server that keeps the embeddings makes the full-size masks and sends a few KB; the masks are the same.
                None: only a server on this machine sends logits. Pass True to refine a mask by
                ``mask_input=segment.logits``.
            cleanup: fills holes, drops specks and more, see triton_sam.Cleanup. It does not change the scores and
                logits of the segments.

        Returns:
            One Segment for each object, or three with multimask_output, ordered by object. The masks equal those of
            the official predictor: logits are resized bilinearly to the image, and are foreground where > 0.
        """
        arguments = (point_coords, point_labels, box, mask_input, multimask_output)
        logits = self._sends_logits if logits is None else logits
        click = make_click(self._pair, self._embeddings, image, *arguments, logits, cleanup)
        return click.segments(self._carry(click.ask()))

    def everything(
        self,
        image: ImageSource | ImageEmbeddings | None = None,
        *,
        progress: Callable[[SearchProgress], None] | None = None,
        **parameters: Any,
    ) -> FoundObjects:
        """Segment all objects of an image by a grid of clicks.

        The client requests the objects under eight points at a time, in two concurrent requests; the server decodes
        and filters. If the client keeps the embeddings or the server has an earlier version, the client filters the
        masks, and logs that once. The objects are the same. After an interruption, the server finishes the parts that
        it has received.

        Args:
            image: see encode(); or an image that encode() returned. None for the current image.
            progress: called after each part, when ``step.done`` of ``step.total`` points are done. Raising an exception
                ends the search.
            parameters: fields of triton_sam.everything.parameters.Parameters, with the defaults of the family's
                official mask generator.

        Returns:
            A list of the objects in the order of the official generator. ``score`` is the predicted IoU. If the list
            is empty, its ``reason`` says how many masks each filter dropped.

        Raises:
            ConfigurationError: a parameter is out of range.
            NoImageError: there is no image.
            ImageError: the image cannot be used.
            ServerBusyError: the server's queue is full.
            ServerError: see triton_sam.errors.
        """
        from ..everything.search import FoundObjects
        from .everything import last_of, to_search

        found = last_of(self.search_steps(*to_search(self._pair, image, self._embeddings, parameters)), progress)
        return FoundObjects(found)

    def search_steps(
        self, image: ImageSource, parameters: Parameters, embeddings: ImageEmbeddings | None = None
    ) -> Generator[SearchProgress | Found, None, None]:
        """Yield the steps of a search for all objects, and finally the result; see client.everything.search()."""
        from .everything import search, see_by_clicks

        def see(part: Part) -> Found:
            return self.see_part(part) or see_by_clicks(part, self._pair, self._carry)

        return search(self.encode, see, image, parameters, embeddings)

    def see_part(self, part: Part) -> Found | None:
        """Request the objects under some points of a search for everything; None if the server cannot find them.

        Raises:
            ServerError: see triton_sam.errors.
        """
        from .everything import see_part

        return self._carry(see_part(self._pair, self._capabilities, self._notice, part))

    def find(
        self,
        text: str | Sequence[str] | None = None,
        *,
        boxes: PromptArray = None,
        box_labels: PromptArray = None,
        image: ImageSource | ImageEmbeddings | None = None,
        example: ImageSource | ImageEmbeddings | None = None,
        logits: bool = False,
        **parameters: Any,
    ) -> FoundInstances:
        """Find every instance of concepts given as words or example boxes. It needs SAM3.

        An image is encoded once for all texts and clicks, whether it was passed to this call, to set_image() or to
        encode(). With models for words of earlier exports, the first search after set_image() encodes it again.

        Args:
            text: a concept such as "yellow school bus", or up to 64 concepts. None: the concept of the boxes.
            boxes: (4,) or (N,4), example boxes as x1,y1,x2,y2 in pixels, which belong to each text.
            box_labels: (N,): 1 for an instance, 0 for something that must not be found. None: all are instances.
            image: the image, see encode(); or one that the server keeps, from encode() or from ``result.image``. None
                for the current image.
            example: the image of the boxes, in the same forms; None: ``image``. SAM3 was not trained for another one.
            logits: whether the instances contain their low-resolution logits.
            parameters: ``masks``, example masks (H,W) of the size of the image that they belong to, or COCO RLE, with
                ``mask_labels``, as box_labels (the model accepts only boxes, so a mask stands for its box);
                ``threshold`` of the score (0.3), ``mask_threshold`` of a pixel's probability (0.5), ``nms``, the IoU
                of boxes above which the worse instance is dropped (None: never), and ``limit``, the maximum number of
                instances for each text (None: 200). The defaults are those of transformers' reference,
                Sam3Processor.post_process_instance_segmentation.

        Returns:
            A list of segments with ``label`` (the text), ``score`` and ``found_box``, in the order of the texts; those
            of a text are sorted by score, highest first. Pass its attribute ``image`` to segment(..., image=...).

        Raises:
            ConfigurationError: the family has no models for words, or the client keeps the embeddings itself.
            NoImageError: there is no image.
            PromptError: a text, a box or a parameter is invalid.
            ModelNotReadyError: the server has no models for words, or no session model.
            ServerError: see triton_sam.errors.
        """
        from ..concepts.query import check_parameters
        from .concepts import current, find

        query, chosen = check_parameters(text, boxes, box_labels, parameters), current(image, self._embeddings)
        keeps = self._keeps_embeddings
        return self._carry(find(self._pair, self._capabilities, keeps, query, chosen, example, logits))

    def _detect(self, query: Query, image: ImageSource) -> Detections:
        """Find the logits of instances for track_words()."""
        from .concepts import detect

        return self._carry(detect(self._pair, self._capabilities, self._keeps_embeddings, query, image))

    def is_ready(self) -> bool:
        """Whether the server answers and has this client's encoder and decoder ready."""
        with self._transport.one_call():
            if not self._transport.is_ready():
                return False
            ready = self._transport.ready_models()
        return self._pair.encoder in ready and self._pair.decoder in ready

    def models(self) -> ServerModels:
        """Return the models that the server has ready, as a dict name -> version.

        Its attribute ``variants`` lists the model pairs by family, for example ``{"sam2": ("sam2", "sam2.1_large")}``.
        """
        from .server_models import sort_models

        with self._transport.one_call():
            return sort_models(self._transport.ready_models(), self._transport.model_config)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> SamTritonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry(self, flow: Flow[Result]) -> Result:
        """Run a flow as one call, whose requests share one timeout."""
        with self._transport.one_call():
            return carry(flow, self._transport)


SAM2TritonClient = SamTritonClient
"""The same class under its older, more common name. It supports every family, not only SAM2."""
