"""The service's settings, with their default limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigurationError
from .tokens import NO_QUOTA, SINGLE, Quota, Token

TOKEN_VARIABLE = "TRITON_SAM_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_TRITON = "grpc://localhost:8001"

MEBI = 1 << 20
LIMITS = {
    "max_body": ("max_body", MEBI),
    "max_json": ("max_json", MEBI),
    "body_seconds": ("body_seconds", 1),
    "body_memory": ("body_bytes", MEBI),
    "answer_memory": ("answer_bytes", MEBI),
    "max_megapixels": ("max_megapixels", 1),
    "work_megapixels": ("work_megapixels", 1),
    "max_requests": ("max_requests", 1),
    "max_encodes": ("max_encodes", 1),
    "max_pages": ("max_pages", 1),
    "page_messages": ("page_messages", 1),
    "timeout": ("timeout", 1),
    "memory": ("store_bytes", MEBI),
    "max_video": ("max_video", MEBI),
    "max_videos": ("max_videos", 1),
    "max_video_frames": ("max_video_frames", 1),
    "video_disk": ("video_bytes", MEBI),
    "video_mask_memory": ("video_mask_bytes", MEBI),
    "video_idle": ("video_idle_seconds", 1),
    "max_tracks": ("max_tracks", 1),
    "max_searches": ("max_searches", 1),
    "search_seconds": ("search_seconds", 1),
}
"""The limits of `--limits`: each sets a member of ServiceSettings, multiplied by its unit."""


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service.

    Args:
        url: Triton's URL; gRPC is preferable, because only gRPC removes a cancelled request from Triton's queue.
        triton_token: sent to Triton as a bearer token, if a proxy before Triton requires one.
        token: callers must send it as ``Authorization: Bearer TOKEN``.
        tokens: further tokens, each with a name and a quota. Without any token, the service is open to all callers.
        quota: the quota of ``token``, or of all callers together if there is no token.
        origins: web origins that browsers may call from (CORS), ``*`` for all; empty: only the service's own page.
        allowed_hosts: host names of the service in addition to those of this machine; ``*`` for all. With tokens, all
            names are allowed.
        max_body: maximum bytes of a request with files.
        body_seconds: timeout in seconds for a body; each received 256 KiB add one second.
        max_megapixels: maximum size of an image, in millions of pixels.
        work_megapixels: millions of pixels of masks and previews that are computed concurrently; further work waits.
        max_requests: concurrent requests; further ones get 503.
        max_pages: open WebSockets of the page; further ones get 503.
        page_messages: messages per second from one page; the service reads no faster.
        max_video: maximum bytes of a video upload.
        max_videos: stored videos; further ones get 503.
        max_tracks: videos that are tracked concurrently; further ones get 503.
        max_searches: concurrent searches of images for everything or for words; further ones get 503.
        image_urls: whether callers may send images as URLs, which the service fetches if they are public.
        root_path: a proxy's path prefix, such as ``/sam``; "" for none.
        large_images: folder of large images that callers may view and segment; None: no large images.
    """

    url: str = DEFAULT_TRITON
    model: str = "sam2"
    triton_token: str | None = None
    ca_certs: str | None = None
    token: str | None = None
    tokens: tuple[Token, ...] = ()
    quota: Quota = NO_QUOTA
    origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_body: int = 64 * MEBI
    max_json: int = 2 * MEBI
    body_seconds: float = 30.0
    body_bytes: int = 256 * MEBI
    answer_bytes: int = 256 * MEBI
    max_megapixels: float = 100.0
    work_megapixels: float = 64.0
    max_requests: int = 256
    max_encodes: int = 4
    max_pages: int = 256
    page_messages: float = 60.0
    timeout: float = 60.0
    store_bytes: int = 512 * MEBI
    max_video: int = 512 * MEBI
    max_videos: int = 16
    max_video_frames: int = 20_000
    video_bytes: int = 4096 * MEBI
    video_mask_bytes: int = 256 * MEBI
    video_idle_seconds: float = 900.0
    max_tracks: int = 4
    max_searches: int = 4
    search_seconds: float = 600.0
    image_urls: bool = False
    root_path: str = ""
    log_format: str = "json"
    large_images: str | None = None
    adapters: tuple[str, ...] = ()
    cvat_words: tuple[str, ...] = ()
    label_studio_url: str | None = None
    label_studio_token: str | None = field(default=None, repr=False)
    label_studio_private_storage: bool = False

    @property
    def triton_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.triton_token}"} if self.triton_token else {}

    @property
    def all_tokens(self) -> tuple[Token, ...]:
        """All tokens, including ``token`` with its quota; empty: the service is open to all callers."""
        single = () if self.token is None else (Token(SINGLE, self.token.strip(), self.quota),)
        return (*single, *self.tokens)

    def __post_init__(self) -> None:
        for name, (member, _) in LIMITS.items():
            if not getattr(self, member) > 0:  # false for NaN too
                raise ConfigurationError(f"{name} must be above 0")
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII):
            raise ConfigurationError(
                f"--root-path {self.root_path!r}: write a path such as /sam, without a slash at its end"
            )
        if self.large_images is not None and not Path(self.large_images).is_dir():
            raise ConfigurationError(f"--large-images: {self.large_images} is not a folder")
        if self.token is not None and not self.token.strip():
            raise ConfigurationError("an empty token protects nothing: leave it out or give one")
        if self.max_body > self.store_bytes:
            raise ConfigurationError("the limit memory must be at least max_body: a request has to fit in")
        if self.max_video > self.video_bytes:
            raise ConfigurationError("the limit video_disk must be at least max_video: a video has to fit in")
        if max(self.max_body, self.max_json) > self.body_bytes:
            raise ConfigurationError(
                "the limit body_memory must be at least max_body and max_json: a request has to fit in"
            )
        if len({token.secret for token in self.all_tokens}) < len(self.all_tokens):
            raise ConfigurationError("two tokens are equal: give each caller a token of its own")
