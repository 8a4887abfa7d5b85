"""The official checkpoints of all families, and a verified download of them."""

from __future__ import annotations

import os
from pathlib import Path

import urllib3

from ..errors import ConfigurationError
from ..families import FAMILIES, get_family
from ..families.tables import Checkpoint
from .fetch import fetch

DIRECTORY = Path("checkpoints")
"""Where checkpoints go when nothing else is said."""

MIRROR_VARIABLE = "TRITON_SAM_MIRROR"
"""Environment variable with the URL of a mirror, for networks without access to the official host."""


def catalogue() -> tuple[Checkpoint, ...]:
    """Return the checkpoints of all families, as their tables have them."""
    return tuple(checkpoint for family in FAMILIES.values() for checkpoint in family.checkpoints)


def sizes(family: str) -> tuple[str, ...]:
    """Return the sizes of a family that the catalogue knows, smallest first.

    Raises:
        ConfigurationError: the catalogue has nothing of this family.
    """
    found = tuple(checkpoint.size for checkpoint in catalogue() if checkpoint.family == family)
    if not found:
        families = ", ".join(sorted({checkpoint.family for checkpoint in catalogue()}))
        raise ConfigurationError(f"no checkpoints of {family!r} in the catalogue: choose one of {families}")
    return found


def default_size(family: str) -> str:
    """Return the size to take when none is named.

    Raises:
        ConfigurationError: the catalogue has nothing of this family.
    """
    known = sizes(family)
    return get_family(family).default_size or known[0]


def find(family: str, size: str) -> Checkpoint:
    """Return the checkpoint of a family and a size, for example ("sam2", "base_plus").

    Raises:
        ConfigurationError: there is none; the message lists what there is.
    """
    known = sizes(family)
    names = {size, *(row.name for row in get_family(family).sizes if size in row.aliases)}
    for checkpoint in catalogue():
        if checkpoint.family == family and checkpoint.size in names:
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
    """Download a checkpoint, or do nothing when the right file is there already. See triton_sam.download.fetch.fetch().

    Args:
        checkpoint: from find().
        directory: where to; made when missing.
        mirror: base URL to get the file from instead: MIRROR/FILENAME, or else MIRROR/ORIGINAL/PATH/FILENAME as a proxy
            of the official host has it. None: the environment variable TRITON_SAM_MIRROR, else the official host. The
            SHA-256 is checked all the same, so that a mirror need not be trusted.
        progress: show a progress bar and what happens, on stderr.
        retries: how many tries in a row may fail without a new byte.
        timeout: seconds to wait for a connection, and for each piece of data.

    Returns:
        Path of the file, checked by size and SHA-256.

    Raises:
        ConfigurationError: the mirror is no http(s) URL, or an option is out of range.
        DownloadError: the file cannot be had or not be written; the message says why.
        ChecksumError: what came is not the official file; it is removed.
    """
    if retries < 0 or timeout <= 0:
        raise ConfigurationError("retries must be at least 0, timeout above 0 seconds")
    return fetch(
        _urls(checkpoint, mirror if mirror is not None else os.environ.get(MIRROR_VARIABLE)),
        Path(directory) / checkpoint.file_name,
        size=checkpoint.bytes,
        sha256=checkpoint.sha256,
        progress=progress,
        retries=retries,
        timeout=timeout,
    )


def _urls(checkpoint: Checkpoint, mirror: str | None) -> tuple[str, ...]:
    """Return the URLs to try in turn."""
    if not mirror:
        return (checkpoint.url,)
    try:
        parts = urllib3.util.parse_url(mirror)
    except urllib3.exceptions.LocationParseError as error:
        raise ConfigurationError(f"the mirror {mirror!r} is no URL") from error
    if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.fragment:
        raise ConfigurationError(f"the mirror {mirror!r} must look like https://host/path")
    base = mirror.rstrip("/")
    original = urllib3.util.parse_url(checkpoint.url).path or f"/{checkpoint.file_name}"
    return tuple(dict.fromkeys((f"{base}/{checkpoint.file_name}", f"{base}{original}")))
