"""Options for a Triton that loads chosen models alone, and that nobody can administer over the network."""

from __future__ import annotations

import logging
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from triton_sam.local_server.defaults import values_of
from triton_sam.local_server.leftovers import SHARED_MEMORY, SHM_FAMILY
from triton_sam.local_server.plain_names import PlainNames
from triton_sam.repository.folder import mistaken_versions
from triton_sam.repository.selection import ModelFolder

logger = logging.getLogger(__name__)

CONTROL_MODE = "--model-control-mode"
LINKS = "models"
"""The folder, inside the folder of a run, with a link to each model that Triton loads."""
_ADMIN_PARTS = "shared-memory,trace,logging"
_RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")
_KEY = re.compile(rf"(?P<before>(?:(?:{'|'.join(_RESTRICTIONS)})=)?[a-z,-]+:[^=\s]+=).+")
"""Matches an option that restricts APIs, and its value when it stands by itself: `APIS:HEADER=KEY`."""
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

    A folder of a model that contains one such as `2.bak`, which Triton takes for version 2, becomes a folder of links
    to everything else.
    """
    links.mkdir(exist_ok=True)
    for folder in folders:
        link = links / folder.name
        mistaken = mistaken_versions(folder)
        if mistaken:
            unlink_model(link)
            link.mkdir()
            for path in folder.iterdir():
                if path not in mistaken:
                    (link / path.name).symlink_to(path.absolute())
        elif not link.is_symlink():
            unlink_model(link)
            link.symlink_to(folder.absolute())


def unlink_model(link: Path) -> None:
    """Remove what link_models() made for one model, if it is there."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)


def warn_of_mistaken_versions(folders: Iterable[Path]) -> None:
    """Log the folders that Triton takes for versions of models. For servers that read the model repository itself."""
    for path in (path for folder in folders for path in mistaken_versions(folder)):
        logger.warning("%s: Triton takes this folder for a version of the model: rename it, or move it away", path)


def hide_key(word: str) -> str:
    """Return a word of the command line without the key of a restricted API, for logs."""
    match = _KEY.fullmatch(word)
    return f"{match['before']}***" if match else word


def open_options(
    repository: Path, folders: Sequence[ModelFolder], given: Sequence[str], run_directory: Path
) -> list[str]:
    """Return the options with which Triton loads models and lets clients load others.

    Args:
        given: the user's options. With a control mode among them, the user decides which models are loaded.
    """
    warn_of_mistaken_versions(folder.path for folder in folders)
    options = [f"--model-repository={PlainNames(run_directory / 'repository').of(repository)}"]
    chosen = values_of(given, CONTROL_MODE)
    options += [] if chosen else [f"{CONTROL_MODE}=explicit"]
    if not chosen or chosen[-1] == "explicit":
        options += [f"--load-model={folder.name}" for folder in folders]
    return options


def closed_options(folders: Sequence[ModelFolder], given: Sequence[str], run_directory: Path) -> list[str]:
    """Return the options with which Triton loads these models only and refuses administrative requests.

    Args:
        given: the user's options. Triton accepts each of these options once only, so the user's replace ours.
    """
    links = run_directory / LINKS
    link_models(links, [folder.path for folder in folders])
    # No log contains this random key, so no client can use the restricted APIs.
    key = f"{_ADMIN_PARTS}:triton-sam={secrets.token_hex(16)}"
    options = [f"{name}={key}" for name in _RESTRICTIONS]
    names = {argument.partition("=")[0] for argument in given}
    return [
        f"--model-repository={links}",
        f"{CONTROL_MODE}=none",
        *(option for option in options if option.partition("=")[0] not in names),
    ]
