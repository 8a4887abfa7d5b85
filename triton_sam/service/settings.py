"""Settings of the service, with their default limits."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError

TOKEN_VARIABLE = "TRITON_SAM_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_TRITON = "grpc://localhost:8001"

MEBI = 1 << 20
LIMITS = {
    "max_body": "--max-body",
    "max_megapixels": "--max-megapixels",
    "max_requests": "--max-requests",
    "max_encodes": "--max-encodes",
    "timeout": "--timeout",
    "store_bytes": "--memory",
}
"""Settings that must be above 0, each with the option of `triton-sam service` that sets it."""


@dataclass(frozen=True)
class Settings:
    """Options of one service.

    Args:
        url: Triton's URL; gRPC is the better choice, since only there a cancelled request is dropped from its queue.
        triton_token: sent to Triton as a bearer token, where a proxy before it asks for one.
        ca_certs: PEM file with certificates to trust, for https and grpcs to Triton.
        model: name of the pair that answers where a request names none.
        token: callers must send it as ``Authorization: Bearer TOKEN``; None: everybody may call.
        origins: web origins that browsers may call from (CORS), ``*`` for all; empty: only the service's own page.
        max_body: bytes that a request may carry.
        max_megapixels: size of an image, in millions of pixels.
        max_requests: requests that are worked on at a time; more are answered 503.
        max_encodes: images that are encoded at a time; more wait.
        timeout: seconds that one request may take.
        store_bytes: memory for uploaded images; the ones used longest ago go first.
        static_max_age: seconds that a browser may keep the files of the page without asking.

    Raises:
        ConfigurationError: a limit that cannot work.
    """

    url: str = DEFAULT_TRITON
    model: str = "sam2"
    triton_token: str | None = None
    ca_certs: str | None = None
    token: str | None = None
    origins: tuple[str, ...] = ()
    max_body: int = 64 * MEBI
    max_megapixels: float = 100.0
    max_requests: int = 256
    max_encodes: int = 4
    timeout: float = 60.0
    store_bytes: int = 512 * MEBI
    static_max_age: int = 0

    @property
    def triton_headers(self) -> dict[str, str]:
        """Headers of every call to Triton."""
        return {"Authorization": f"Bearer {self.triton_token}"} if self.triton_token else {}

    def __post_init__(self) -> None:
        for name, option in LIMITS.items():
            if not getattr(self, name) > 0:  # NaN is not, either
                raise ConfigurationError(f"{option} must be above 0")
        if self.token is not None and not self.token.strip():
            raise ConfigurationError("an empty token protects nothing: leave it out or give one")
        if self.max_body > self.store_bytes:
            raise ConfigurationError("--memory must be at least --max-body: a request has to fit in")
