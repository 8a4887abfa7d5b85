"""The official checkpoints: where they are, how large, which SHA-256; and a verified download of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import urllib3

from ..errors import ConfigurationError
from .fetch import fetch

DIRECTORY = Path("checkpoints")
"""Where checkpoints go when nothing else is said."""

MIRROR_VARIABLE = "TRITON_SAM_MIRROR"
"""Environment variable with the URL of a mirror, for networks without access to the official host."""

_SAM1 = "https://dl.fbaipublicfiles.com/segment_anything"
_SAM2 = "https://dl.fbaipublicfiles.com/segment_anything_2/092824"


@dataclass(frozen=True)
class Checkpoint:
    """One official checkpoint file.

    Args:
        family: model family, for example "sam2".
        size: size of the model, for example "base_plus".
        url: where the file is published.
        bytes: size of the file; None where unknown.
        sha256: SHA-256 of the file, 64 lower-case hexadecimal digits.
    """

    family: str
    size: str
    url: str
    bytes: int | None
    sha256: str

    @property
    def key(self) -> str:
        """Family and size, for example "sam2/base_plus"."""
        return f"{self.family}/{self.size}"

    @property
    def file_name(self) -> str:
        """Name of the file, for example "sam2.1_hiera_tiny.pt"."""
        return self.url.rpartition("/")[2]


CATALOGUE: tuple[Checkpoint, ...] = (
    Checkpoint(
        "sam1",
        "vit_b",
        f"{_SAM1}/sam_vit_b_01ec64.pth",
        375042383,
        "ec2df62732614e57411cdcf32a23ffdf28910380d03139ee0f4fcbe91eb8c912",
    ),
    Checkpoint(
        "sam1",
        "vit_l",
        f"{_SAM1}/sam_vit_l_0b3195.pth",
        1249524607,
        "3adcc4315b642a4d2101128f611684e8734c41232a17c648ed1693702a49a622",
    ),
    Checkpoint(
        "sam1",
        "vit_h",
        f"{_SAM1}/sam_vit_h_4b8939.pth",
        2564550879,
        "a7bf3b02f3ebf1267aba913ff637d9a2d5c33d3173bb679e46d9f338c26f262e",
    ),
    Checkpoint(
        "sam2",
        "tiny",
        f"{_SAM2}/sam2.1_hiera_tiny.pt",
        156008466,
        "7402e0d864fa82708a20fbd15bc84245c2f26dff0eb43a4b5b93452deb34be69",
    ),
    Checkpoint(
        "sam2",
        "small",
        f"{_SAM2}/sam2.1_hiera_small.pt",
        184416285,
        "6d1aa6f30de5c92224f8172114de081d104bbd23dd9dc5c58996f0cad5dc4d38",
    ),
    Checkpoint(
        "sam2",
        "base_plus",
        f"{_SAM2}/sam2.1_hiera_base_plus.pt",
        323606802,
        "a2345aede8715ab1d5d31b4a509fb160c5a4af1970f199d9054ccfb746c004c5",
    ),
    Checkpoint(
        "sam2",
        "large",
        f"{_SAM2}/sam2.1_hiera_large.pt",
        898083611,
        "2647878d5dfa5098f2f8649825738a9345572bae2d4350a2468587ece47dd318",
    ),
)


def sizes(family: str) -> tuple[str, ...]:
    """Return the sizes of a family that the catalogue knows, smallest first.

    Raises:
        ConfigurationError: the catalogue has nothing of this family.
    """
    found = tuple(checkpoint.size for checkpoint in CATALOGUE if checkpoint.family == family)
    if not found:
        families = ", ".join(sorted({checkpoint.family for checkpoint in CATALOGUE}))
        raise ConfigurationError(f"no checkpoints of {family!r} in the catalogue: choose one of {families}")
    return found


def default_size(family: str) -> str:
    """Return the size to take when none is named.

    Raises:
        ConfigurationError: the catalogue has nothing of this family.
    """
    return {"sam2": "base_plus"}.get(family) or sizes(family)[0]


def find(family: str, size: str) -> Checkpoint:
    """Return the checkpoint of a family and a size, for example ("sam2", "base_plus").

    Raises:
        ConfigurationError: there is none; the message lists what there is.
    """
    known = sizes(family)
    for checkpoint in CATALOGUE:
        if (checkpoint.family, checkpoint.size) == (family, size):
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
