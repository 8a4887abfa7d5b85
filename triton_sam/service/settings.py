"""The settings of a service: default limits, the file of `--limits`, and the tokens of callers with their quotas."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .._common.checks import is_finite_number
from ..concepts.query import MAX_TEXTS
from ..errors import ConfigurationError

EVERYBODY = "everybody"
"""The name of all callers together, if the service requires no token."""
SINGLE = "default"
"""The name of the caller with the token of ``--token``."""


@dataclass(frozen=True)
class Quota:
    """The limits of one caller. None: no limit."""

    requests_per_minute: float | None = None
    image_mib_per_hour: float | None = None
    requests_at_a_time: int | None = None
    pages: int | None = None

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None:
                continue
            if not is_finite_number(value) or value <= 0:
                raise ConfigurationError(
                    f"the quota {part.name} must be a finite number above 0, not {value!r:.40}: "
                    "leave it out for no limit"
                )


QUOTAS = tuple(part.name for part in fields(Quota))
NO_QUOTA = Quota()


@dataclass(frozen=True)
class Token:
    name: str
    secret: str = field(repr=False)
    quota: Quota = NO_QUOTA

    def __post_init__(self) -> None:
        if not re.fullmatch("[ -~]+", self.secret):
            raise ConfigurationError(
                f"the token of {self.name!r:.60} must consist of ASCII letters, digits and signs: "
                "programs send other characters in different ways"
            )


def read_tokens(path: str | Path, quota: Quota = NO_QUOTA) -> tuple[Token, ...]:
    """Read a token file: JSON with an object for each caller, by name.

    ``{"lab": {"token": "SECRET", "requests_per_minute": 60}, "clinic": {"token": "OTHER"}}``
    """
    callers = _json(f"--tokens {path}", path)
    if not isinstance(callers, dict) or not callers:
        raise ConfigurationError(f'{path}: give a JSON object such as {{"lab": {{"token": "SECRET"}}}}')
    return tuple(_token(path, name, members, quota) for name, members in callers.items())


def _json(where: str, path: str | Path | None, text: str = "") -> Any:
    """Return the JSON in a file; without a path, in a text."""
    try:
        return json.loads(text if path is None else Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from None


def _token(path: str | Path, name: str, members: Any, quota: Quota) -> Token:
    where = f"{path}: caller {name!r:.60}"
    secret = members.get("token") if isinstance(members, dict) else None
    if not isinstance(secret, str) or not secret.strip():
        raise ConfigurationError(f'{where}: its "token" must be a text that is not empty')
    if not name.strip() or name in (EVERYBODY, SINGLE):
        raise ConfigurationError(f"{where}: choose another name")
    limits = {key: value for key, value in members.items() if key != "token"}
    unknown = sorted(set(limits) - set(QUOTAS))
    if unknown:
        raise ConfigurationError(f"{where}: there is no quota {unknown[0]!r:.60}, but {', '.join(QUOTAS)}")
    try:
        return Token(name, secret.strip(), replace(quota, **limits))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


TOKEN_VARIABLE = "TRITON_SAM_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_TRITON = "grpc://localhost:8001"

MEBI = 1 << 20


def _limit(default: float, unit: int = 1, name: str = "") -> Any:
    """Return a member that `--limits` sets, by its own name unless ``name`` is given.

    Args:
        unit: the value in `--limits` is multiplied by it.
    """
    return field(default=default * unit, metadata={"name": name, "unit": unit})


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
        work_megapixels: millions of pixels of masks and previews that are computed concurrently, and a quarter of it
            for files that are written; further work waits.
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
    max_body: int = _limit(64, MEBI)
    max_json: int = _limit(2, MEBI)
    body_seconds: float = _limit(30.0)
    body_bytes: int = _limit(256, MEBI, "body_memory")
    answer_bytes: int = _limit(256, MEBI, "answer_memory")
    max_megapixels: float = _limit(100.0)
    work_megapixels: float = _limit(64.0)
    max_requests: int = _limit(256)
    max_encodes: int = _limit(4)
    max_pages: int = _limit(256)
    page_messages: float = _limit(60.0)
    timeout: float = _limit(60.0)
    store_bytes: int = _limit(512, MEBI, "memory")
    max_video: int = _limit(512, MEBI)
    max_videos: int = _limit(16)
    max_video_frames: int = _limit(20_000)
    video_bytes: int = _limit(4096, MEBI, "video_disk")
    video_mask_bytes: int = _limit(256, MEBI, "video_mask_memory")
    video_idle_seconds: float = _limit(900.0, name="video_idle")
    max_tracks: int = _limit(4)
    max_searches: int = _limit(4)
    search_seconds: float = _limit(600.0)
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
        for name, member in LIMITS.items():
            if not getattr(self, member.name) > 0:  # false for NaN too
                raise ConfigurationError(f"{name} must be above 0")
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII):
            raise ConfigurationError(
                f"--root-path {self.root_path!r}: write a path such as /sam, without a slash at its end"
            )
        if self.large_images is not None and not Path(self.large_images).is_dir():
            raise ConfigurationError(f"--large-images: {self.large_images} is not a folder")
        if self.token is not None and not self.token.strip():
            raise ConfigurationError("the token is empty: give one, or leave the option out")
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


WORDS, STORAGE = "cvat_words", "label_studio_private_storage"
LIMITS = {each.metadata["name"] or each.name: each for each in fields(ServiceSettings) if each.metadata}
"""The members that `--limits` sets, by their names there."""


def read_limits(given: str) -> dict[str, Any]:
    """Return arguments of ServiceSettings.

    ``{"max_body": 128, "requests_per_minute": 600, "cvat_words": ["person", "car"]}``
    """
    where = "--limits" if given.lstrip().startswith("{") else f"--limits {given}"
    found = _json(where, None if where == "--limits" else given, given)
    if not isinstance(found, dict):
        raise ConfigurationError(f'{where}: give a JSON object such as {{"max_body": 128}}')
    known = (*LIMITS, *QUOTAS, WORDS, STORAGE)
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        raise ConfigurationError(f"{where}: unknown limit {unknown!r:.60}; the limits are {', '.join(known)}")
    try:
        settings: dict[str, Any] = {
            LIMITS[name].name: _value(name, value) for name, value in found.items() if name in LIMITS
        }
        if WORDS in found:
            settings[WORDS] = _words(found[WORDS])
        if STORAGE in found:
            if not isinstance(found[STORAGE], bool):
                raise ConfigurationError(f"{STORAGE} must be true or false, not {found[STORAGE]!r:.40}")
            settings[STORAGE] = found[STORAGE]
        return {**settings, "quota": Quota(**{name: found[name] for name in QUOTAS if name in found})}
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _value(name: str, value: Any) -> int | float:
    unit: int = LIMITS[name].metadata["unit"]
    if not is_finite_number(value) or not 0 < value * unit < math.inf:
        raise ConfigurationError(f"{name} must be a number above 0, not {value!r:.40}")
    if isinstance(LIMITS[name].default, float):
        return float(value)
    if unit == 1 and value != int(value):
        raise ConfigurationError(f"{name} must be a whole number, not {value!r:.40}")
    return round(value * unit)


def _words(value: Any) -> tuple[str, ...]:
    """Return words without duplicates, because CVAT's labels are unique."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigurationError(f"{WORDS} must be a list of words")
    words = tuple(dict.fromkeys(word.strip() for word in value if word.strip()))
    if len(words) > MAX_TEXTS:
        raise ConfigurationError(f"{WORDS} takes up to {MAX_TEXTS} words, not {len(words)}")
    return words
