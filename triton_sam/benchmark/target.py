"""The target of a benchmark: a server, a model pair on it, an image, and prompts."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from ..client.sync import EmbeddingsPlace, SAM2TritonClient
from ..errors import ModelNotReadyError
from ..families import get_family
from ..inputs.images import ImageSource, image_bytes, open_image
from ..transport.triton import Transport
from ..transport.url import parse_url
from ..wire.pair import ModelPair
from .server_counts import session_metrics
from .weights import Weights

Box = tuple[float, float, float, float]
Point = tuple[float, float]


@dataclass
class Target:
    """A server to measure.

    Args:
        name: variant of the model pair; None means the family's default pair.
        weights: the same models as files, for the comparison; None if unknown.
        pid: process id of tritonserver; None for a remote server.
        metrics_url: URL of the server's metrics; None if unknown.
        access: the arguments headers and ca_certs of every client, for a proxy in front of the server.
    """

    family: str
    name: str | None
    urls: dict[str, str]
    source: ImageSource
    weights: Weights | None = None
    pid: int | None = None
    timeout: float = 300.0
    access: Mapping[str, Any] = field(default_factory=dict)
    metrics_url: str | None = None
    content: bytes = field(init=False, repr=False)
    image: Image.Image = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.content = image_bytes(self.source)
        self.image = open_image(self.content)
        self.pair = ModelPair(get_family(self.family), self.name)
        self._transport = Transport(parse_url(self.urls[self.protocols[0]]), timeout=self.timeout, **self.access)
        self._content_numbers: Iterator[int] = itertools.count()
        self._salt = secrets.token_bytes(8)

    @property
    def protocols(self) -> list[str]:
        """The protocols to measure, in the order of `urls`."""
        return list(self.urls)

    @property
    def session_model(self) -> str:
        """The name of the session model in Triton."""
        return self.name or self.family

    def check(self) -> bool:
        """Return whether the server has a session model for the pair."""
        ready = self._transport.ready_models()
        missing = [model for model in (self.pair.encoder, self.pair.decoder) if model not in ready]
        if missing:
            url = self.urls[self.protocols[0]]
            raise ModelNotReadyError(
                f"{url} has no model {missing[0]!r} ready: `triton-sam models --url {url}` lists its models"
            )
        return self.session_model in ready

    def finds_concepts(self) -> bool:
        """Return whether the server has all models that find words."""
        family, ready = self.pair.family, self._transport.ready_models()
        return all(family.model_name(role, self.name) in ready for role in family.concepts)

    def server_version(self) -> str:
        """Return Triton's version."""
        return self._transport.server_version()

    def statistics(self, model: str) -> dict[str, float]:
        """Return totals of a model so far. Totals of the session model come from its metrics.

        Returns:
            The number of inferences as "count", and the total seconds in "queue" and "compute"; empty for a session
            model whose metrics are not available.
        """
        if model == self.session_model:
            own = session_metrics(self.metrics_url, model)
            if "request_seconds_count" not in own:
                return {}
            waited, took = own["waiting_seconds_sum"], own["request_seconds_sum"]
            return {"count": own["request_seconds_count"], "queue": waited, "compute": took - waited}
        answer = self._transport.statistics(model)
        stats = answer["inference_stats"]
        names = {"queue": "queue", "compute": "compute_infer"}
        seconds = {name: int(stats.get(key, {}).get("ns", 0)) / 1e9 for name, key in names.items()}
        return {"count": float(answer.get("inference_count", 0)), **seconds}

    @staticmethod
    def embeddings_place(session: bool) -> EmbeddingsPlace:
        """Return where clients keep embeddings: "server" with a session model, otherwise "client"."""
        return "server" if session else "client"

    def client(self, protocol: str, place: EmbeddingsPlace, url: str | None = None) -> SAM2TritonClient:
        return SAM2TritonClient(
            url or self.urls[protocol],
            self.family,
            model_name=self.name,
            timeout=self.timeout,
            embeddings=place,
            **self.access,
        )

    def unseen_content(self) -> bytes:
        """Return the image file with different bytes at each call.

        The session model identifies images by their bytes, so it must encode each one. Decoders ignore the added bytes,
        which follow the end of the JPEG or PNG data.
        """
        return self.content + self._salt + next(self._content_numbers).to_bytes(8, "big")

    def points(self) -> Iterator[Point]:
        """Yield points (x, y) in pixels endlessly, spread over the whole image."""
        width, height = self.image.size
        for number in itertools.count():  # a low-discrepancy sequence covers the image evenly without repetition
            yield (0.28 + 0.7548776662 * number) % 1 * (width - 1), (0.31 + 0.5698402910 * number) % 1 * (height - 1)

    def boxes(self, count: int) -> list[Box]:
        """Return boxes (x_min, y_min, x_max, y_max) in pixels, spread over the whole image."""
        width, height = self.image.size
        corners = itertools.islice(self.points(), count)
        return [(0.8 * x, 0.8 * y, 0.8 * x + 0.2 * width - 1, 0.8 * y + 0.2 * height - 1) for x, y in corners]

    def close(self) -> None:
        """Close the connection of `check`, `server_version` and `statistics`."""
        self._transport.close()
