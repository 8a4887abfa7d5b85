"""What is measured: a server, a pair of models on it, a picture, and prompts."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from ..client.base import EmbeddingsPlace
from ..client.sync import SAM2TritonClient
from ..errors import ModelNotReadyError
from ..families import get_family
from ..inputs.images import ImageSource, image_bytes, open_image
from ..transport.triton import Transport
from ..transport.url import parse_url
from ..wire.pair import ModelPair
from .weights import Weights

LOOPBACK = ("localhost", "127.0.0.1", "::1")
Box = tuple[float, float, float, float]
Point = tuple[float, float]


@dataclass
class Target:
    """A server under measurement.

    Args:
        family: sam1, sam2 or sam3.
        name: variant of the pair; None: the family's name.
        urls: URL by protocol, "http" and "grpc", at least one.
        source: the picture.
        weights: the same models as files, for the comparison; None: not known here.
        pid: of a tritonserver on this machine.
        timeout: seconds that one call may take.
        access: headers and ca_certs of every client, for a proxy in front of the server.
    """

    family: str
    name: str | None
    urls: dict[str, str]
    source: ImageSource
    weights: Weights | None = None
    pid: int | None = None
    timeout: float = 300.0
    access: Mapping[str, Any] = field(default_factory=dict)
    content: bytes = field(init=False, repr=False)
    picture: Image.Image = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.content = image_bytes(self.source)
        self.picture = open_image(self.content)
        self.pair = ModelPair(get_family(self.family), self.name)
        self._transport = Transport(parse_url(self.urls[self.protocols[0]]), timeout=self.timeout, **self.access)
        self._fresh: Iterator[int] = itertools.count()
        self._salt = secrets.token_bytes(8)

    @property
    def protocols(self) -> list[str]:
        """Protocols to measure."""
        return list(self.urls)

    @property
    def is_here(self) -> bool:
        """Whether the server is reached without a network."""
        return all(urlsplit(str(parse_url(url))).hostname in LOOPBACK for url in self.urls.values())

    @property
    def session_model(self) -> str:
        """Triton name of the session model."""
        return self.name or self.family

    def check(self) -> bool:
        """Return whether the server has the session model.

        Raises:
            ModelNotReadyError: it lacks the encoder or the decoder.
            ServerError: see triton_sam.errors.
        """
        ready = self._transport.ready_models()
        missing = [model for model in (self.pair.encoder, self.pair.decoder) if model not in ready]
        if missing:
            url = self.urls[self.protocols[0]]
            raise ModelNotReadyError(f"{url} has no model {missing[0]!r} ready: see `triton-sam models --url {url}`")
        return self.session_model in ready

    def server_version(self) -> str:
        """Return Triton's version."""
        return self._transport.server_version()

    def statistics(self, model: str) -> dict[str, float]:
        """Return counts, and seconds of queueing and computing, from Triton's statistics of a model."""
        answer = self._transport.statistics(model)
        stats = answer["inference_stats"]
        seconds = {name: int(stats.get(name, {}).get("ns", 0)) / 1e9 for name in ("queue", "compute_infer", "success")}
        return {"count": float(answer.get("inference_count", 0)), **seconds}

    def most_pending(self, session: bool) -> int | None:
        """Return how many clicks the server lets wait before it refuses; None: any number."""
        config = self._transport.model_config(self.session_model if session else self.pair.decoder)
        if session:
            limit = config["parameters"].get("max_pending", {}).get("string_value", 0)
        else:
            limit = config.get("dynamic_batching", {}).get("default_queue_policy", {}).get("max_queue_size", 0)
        return int(limit) or None

    @staticmethod
    def place(session: bool) -> EmbeddingsPlace:
        """Return where clients keep embeddings."""
        return "server" if session else "client"

    def client(self, protocol: str, place: EmbeddingsPlace, url: str | None = None) -> SAM2TritonClient:
        """Return a new client; ``url`` is another way to the same server."""
        return SAM2TritonClient(
            url or self.urls[protocol],
            self.family,
            model_name=self.name,
            timeout=self.timeout,
            embeddings=place,
            **self.access,
        )

    def fresh(self) -> bytes:
        """Return the picture in bytes that no server has seen: the session model knows pictures by their bytes.

        Decoders of JPEG and PNG ignore what follows the end.
        """
        return self.content + self._salt + next(self._fresh).to_bytes(8, "big")

    def points(self) -> Iterator[Point]:
        """Yield points all over the picture, without end."""
        width, height = self.picture.size
        for number in itertools.count():  # a low-discrepancy sequence: no two are equal, no place is left out
            yield (0.28 + 0.7548776662 * number) % 1 * (width - 1), (0.31 + 0.5698402910 * number) % 1 * (height - 1)

    def boxes(self, count: int) -> list[Box]:
        """Return boxes all over the picture."""
        width, height = self.picture.size
        corners = itertools.islice(self.points(), count)
        return [(0.8 * x, 0.8 * y, 0.8 * x + 0.2 * width - 1, 0.8 * y + 0.2 * height - 1) for x, y in corners]

    def close(self) -> None:
        """Close the connection for questions to the server."""
        self._transport.close()
