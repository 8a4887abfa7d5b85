"""The official checkpoints and known fine-tunes of all families, and their verified download."""

from __future__ import annotations

import os
from pathlib import Path

import urllib3

from ..errors import ConfigurationError, DownloadError
from ..families import FAMILIES, get_family
from ..families.tables import Checkpoint
from .fetch import fetch
from .http import NetworkError, without_credentials

DIRECTORY = Path("checkpoints")
"""The default folder for checkpoints."""

MIRROR_VARIABLE = "TRITON_SAM_MIRROR"
"""The environment variable with a mirror's URL, for networks without access to the official host."""

_HUB = "https://huggingface.co/"


def catalogue() -> tuple[Checkpoint, ...]:
    """Return the checkpoints in the tables of all families."""
    return tuple(row for family in FAMILIES.values() for row in (*family.checkpoints, *family.fine_tunes))


def sizes(family: str) -> tuple[str, ...]:
    """Return the names of a family's checkpoints: official sizes in ascending order, then fine-tunes."""
    found = tuple(checkpoint.word for checkpoint in catalogue() if checkpoint.family == family)
    if not found:
        families = ", ".join(sorted({checkpoint.family for checkpoint in catalogue()}))
        raise ConfigurationError(f"the catalogue has no checkpoints of {family!r}: choose one of {families}")
    return found


def default_size(family: str) -> str:
    known = sizes(family)
    return get_family(family).default_size or known[0]


def find(family: str, size: str) -> Checkpoint:
    """Return a family's checkpoint by size, for example ("sam2", "base_plus"), or by the name of a fine-tune."""
    known = sizes(family)
    names = {size, *(row.name for row in get_family(family).sizes if size in row.aliases)}
    for checkpoint in catalogue():
        if checkpoint.family == family and checkpoint.word in names:
            return checkpoint
    raise ConfigurationError(f"{family} has no checkpoint of size {size!r}: choose one of {', '.join(known)}")


def download(
    checkpoint: Checkpoint,
    directory: str | os.PathLike[str] = DIRECTORY,
    *,
    mirror: str | None = None,
    progress: bool = True,
    retries: int = 5,
    timeout: float = 30.0,
) -> Path:
    """Download a checkpoint, unless the correct file already exists, see fetch().

    Args:
        mirror: base URL of a mirror. The file is MIRROR/FILENAME, or else MIRROR/ORIGINAL/PATH/FILENAME, as on a proxy
            of the official host. None: the environment variable TRITON_SAM_MIRROR, or else the official host. The
            published hash is always checked, so the mirror need not be trusted. A file on the Hugging Face hub without
            a published hash is downloaded only from there.

    Returns:
        Path of the file, checked by size and hash.
    """
    if retries < 0 or timeout <= 0:
        raise ConfigurationError("retries must be at least 0, and timeout must be above 0 seconds")
    mirror = mirror if mirror is not None else os.environ.get(MIRROR_VARIABLE)
    path = Path(directory) / checkpoint.file_name
    if not checkpoint.digest and checkpoint.url.startswith(_HUB):
        return _download_from_hub(checkpoint, path, mirror, progress)
    use_mirror = " or use --mirror" if checkpoint.digest else ""  # without a hash, a mirror cannot be checked
    try:
        return fetch(
            _urls(checkpoint, mirror),
            path,
            size=checkpoint.bytes,
            digest=checkpoint.digest,
            progress=progress,
            retries=retries,
            timeout=timeout,
            advice="check the URL of the mirror" if mirror else f"on a closed network, set HTTPS_PROXY{use_mirror}",
        )
    except NetworkError as error:
        raise DownloadError(f"{error}; or put the file at {path}") from error


def _download_from_hub(checkpoint: Checkpoint, path: Path, mirror: str | None, progress: bool) -> Path:
    if mirror:
        raise ConfigurationError(
            f"the SHA-256 of {checkpoint.file_name} is not published, so a mirror cannot be checked: "
            "leave it out, or set HF_ENDPOINT to a mirror of the Hugging Face hub"
        )
    from .hub import Hub  # huggingface_hub imports slowly, and few files need it

    location = (urllib3.util.parse_url(checkpoint.url).path or "").strip("/")
    repository, _, file = location.partition("/resolve/")
    revision, _, name = file.partition("/")
    return Hub(progress=progress).fetch(repository, name, path, revision)


def _urls(checkpoint: Checkpoint, mirror: str | None) -> tuple[str, ...]:
    """Return the URLs to try, in order."""
    if not mirror:
        return (checkpoint.url,)
    shown = without_credentials(mirror)
    try:
        parts = urllib3.util.parse_url(mirror)
    except urllib3.exceptions.LocationParseError as error:
        raise ConfigurationError(
            f"the mirror {shown!r} is not a valid URL: it must look like https://host/path"
        ) from error
    if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.fragment:
        raise ConfigurationError(f"the mirror {shown!r} must look like https://host/path")
    base = mirror.rstrip("/")
    original = urllib3.util.parse_url(checkpoint.url).path or f"/{checkpoint.file_name}"
    return tuple(dict.fromkeys((f"{base}/{checkpoint.file_name}", f"{base}{original}")))
