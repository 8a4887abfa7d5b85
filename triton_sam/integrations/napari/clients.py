"""The clients of a server, and its model pairs."""

from __future__ import annotations

from dataclasses import dataclass

from ...client.speculative import SpeculativeSAM2Client
from ...client.sync import SamTritonClient
from ...client.video.sync import SAM2VideoClient
from ...errors import ModelNotReadyError


@dataclass(frozen=True)
class Model:
    """A model pair: its family ("sam2"), and its name ("sam2", "sam2.1_large")."""

    family: str
    name: str


def models_at(url: str | None) -> list[Model]:
    """Return the model pairs that are ready on a server."""
    with SamTritonClient(url, timeout=10.0, retries=0) as client:
        variants = client.models().variants
    found = [Model(family, name) for family, names in variants.items() for name in names]
    if not found:
        raise ModelNotReadyError("the server has no models ready: see `triton-sam doctor`")
    return sorted(found, key=lambda each: each.family != "sam2")


class Clients:
    """The clients of one model pair, created on first use."""

    def __init__(self, url: str | None, model: Model) -> None:
        self._url, self._model = url, model
        self._variant = None if model.name == model.family else model.name
        self.clicks = SpeculativeSAM2Client(url, model.family, model_name=self._variant, busy="wait")
        self.calls = SamTritonClient(url, model.family, model_name=self._variant, busy="wait")

    def video(self) -> SAM2VideoClient:
        """Return a new video client; the caller closes it."""
        return SAM2VideoClient(self._url, self._variant, model_type=self._model.family)

    def close(self) -> None:
        """Cancel all requests, and close the connections."""
        self.clicks.close()
        self.calls.close()
