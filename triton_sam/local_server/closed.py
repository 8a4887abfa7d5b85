"""Options for a Triton that loads chosen models alone, and that nobody can administer over the network."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from triton_sam.local_server.leftovers import SHARED_MEMORY, SHM_FAMILY

LINKS = "models"
"""The folder, inside the folder of a run, with a link to each model that Triton loads."""
_ADMIN_PARTS = "shared-memory,trace,logging"
_MAX_SHM_GROWTH = 64 << 20
"""Largest number of bytes by which a model's shared-memory region grows at a time.

Each growth maps the whole region again and keeps the old mappings. Triton's default of 1 MiB makes it grow for each
image. With 64 MiB, an image is encoded 40 ms sooner (2 cores, built-in model), and after 40 images the server has a
resident size of 860 MiB instead of 1,480 MiB."""


def shm_prefix(identity: str) -> str:
    """Return the prefix of the names of a server's shared-memory segments, by which they are found and removed."""
    return f"{SHM_FAMILY}{identity}_"


def shared_memory_options(identity: str) -> list[str]:
    """Return the options for the shared memory of Python models: the names, and the bytes of a growth.

    A region grows by less where /dev/shm is small (containers).
    """
    growth = max(1 << 20, min(_MAX_SHM_GROWTH, shutil.disk_usage(SHARED_MEMORY).total // 32))
    return [
        f"--backend-config=python,shm-region-prefix-name={shm_prefix(identity)}",
        f"--backend-config=python,shm-growth-byte-size={growth}",
    ]


def link_models(links: Path, folders: Iterable[Path]) -> None:
    """Make the folder of links, or add to it.

    Without model control, Triton loads every model of its repository. So it gets a folder with links to the wanted
    models. (Restricting the API "model-repository" instead would also hide the list of models.)
    """
    links.mkdir(exist_ok=True)
    for folder in folders:
        if not (links / folder.name).is_symlink():
            (links / folder.name).symlink_to(folder.absolute())


def closed_options(links: Path, given: Sequence[str]) -> list[str]:
    """Return the options with which Triton loads the linked models and refuses administrative requests.

    Args:
        links: the folder of links.
        given: the user's options. Triton accepts each of these options once only, so the user's replace ours.
    """
    # Nobody knows this random key, so nobody can use the restricted APIs.
    key = f"{_ADMIN_PARTS}:triton-sam={secrets.token_hex(16)}"
    options = [f"--http-restricted-api={key}", f"--grpc-restricted-protocol={key}"]
    names = {argument.partition("=")[0] for argument in given}
    return [
        f"--model-repository={links}",
        "--model-control-mode=none",
        *(option for option in options if option.partition("=")[0] not in names),
    ]
