"""Options for a Triton that loads only chosen models, and that cannot be administered over the network.

Triton's Python backend starts the process of a model with an unquoted bash command, and Python in that process decodes
paths as ASCII. So a space or an accented letter in the path of a package, of Python itself or of the model repository
would end the process. Triton gets links with plain names instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from triton_sam.errors import LocalServerError
from triton_sam.local_server.leftovers import SHARED_MEMORY, SHM_FAMILY
from triton_sam.local_server.settings import values_of
from triton_sam.repository.folder import RepositoryModel, mistaken_versions

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
_OTHER_PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - parents of mkdtemp(), if $TMPDIR is not plain


def is_plain(path: str | os.PathLike[str]) -> bool:
    """Return whether Triton's Python backend supports all characters of a path."""
    return _PLAIN.fullmatch(os.fspath(path)) is not None


def make_run_directory(*, runs_programs: bool = False) -> Path:
    """Create a temporary folder for a run, with a plain path.

    Args:
        runs_programs: the folder will hold programs, so its file system must not be mounted with `noexec`.
    """
    for parent in (tempfile.gettempdir(), *_OTHER_PARENTS):
        with contextlib.suppress(OSError):
            if is_plain(parent) and not (runs_programs and os.statvfs(parent).f_flag & os.ST_NOEXEC):
                return Path(tempfile.mkdtemp(prefix="triton-sam-", dir=parent))
    mounted = "is not mounted with noexec, and " if runs_programs else ""
    raise LocalServerError(
        f"Triton needs a temporary folder that {mounted}has only letters without accents, digits and . _ + - in its "
        f"path, not {tempfile.gettempdir()}: set TMPDIR"
    )


class PlainNames:
    """Links with plain names in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._links: dict[Path, Path] = {}

    def of(self, path: Path) -> Path:
        """Return the path itself if it is plain, otherwise the path of a link to it."""
        if is_plain(path):
            return path
        if path not in self._links:
            self._folder.mkdir(exist_ok=True)
            link = self._folder / str(len(self._links))
            link.symlink_to(path)
            self._links[path] = link
        return self._links[path]


logger = logging.getLogger(__name__)

CONTROL_MODE = "--model-control-mode"
LINKS = "models"
"""The folder, inside a run's folder, with a link to each model that Triton loads."""
_ADMIN_PARTS = "shared-memory,trace,logging"
_RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")
_KEY = re.compile(rf"(?P<before>(?:(?:{'|'.join(_RESTRICTIONS)})=)?[a-z,-]+:[^=\s]+=).+")
"""Matches an option that restricts APIs, or only its value, `APIS:HEADER=KEY`."""
_MAX_SHM_GROWTH = 64 << 20
"""Largest number of bytes by which a model's shared-memory region grows at a time.

Each growth maps the whole region again and keeps the old mappings. With Triton's default of 1 MiB, it grows for each
image. With 64 MiB, an image is encoded 40 ms faster (2 cores, demo model), and after 40 images the server has a
resident size of 860 MiB instead of 1,480 MiB."""


def shm_prefix(identity: str) -> str:
    """Return the prefix of the names of a server's shared-memory segments, for their removal."""
    return f"{SHM_FAMILY}{identity}_"


def shared_memory_options(identity: str) -> list[str]:
    """Return the options for the shared memory of Python models: the name prefix, and the growth in bytes.

    The growth is smaller if /dev/shm is small (containers).
    """
    growth = max(1 << 20, min(_MAX_SHM_GROWTH, shutil.disk_usage(SHARED_MEMORY).total // 32))
    return [
        f"--backend-config=python,shm-region-prefix-name={shm_prefix(identity)}",
        f"--backend-config=python,shm-growth-byte-size={growth}",
    ]


def link_models(links: Path, folders: Iterable[Path]) -> None:
    """Create the folder of links, or add links to it.

    Without model control, Triton loads every model in its repository. So it gets a folder with links to the wanted
    models. (Restricting the API "model-repository" instead would also hide the list of models.)

    If a model's folder contains, for example, `2.bak`, which Triton reads as version 2, a folder of links to
    everything else replaces it.
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
    """Remove the link or folder of link_models() for one model, if it exists."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)


def hide_key(word: str) -> str:
    """Return a command-line argument without the key of a restricted API, for logs."""
    match = _KEY.fullmatch(word)
    return f"{match['before']}***" if match else word


def open_options(
    repository: Path, folders: Sequence[RepositoryModel], given: Sequence[str], run_directory: Path
) -> list[str]:
    """Return the options with which Triton loads models and accepts requests to load others.

    Args:
        given: the user's options. If they set a control mode, the user decides which models are loaded.
    """
    for path in (path for folder in folders for path in mistaken_versions(folder.path)):
        logger.warning("%s: Triton takes this folder for a version of the model: rename it, or move it away", path)
    options = [f"--model-repository={PlainNames(run_directory / 'repository').of(repository)}"]
    chosen = values_of(given, CONTROL_MODE)
    options += [] if chosen else [f"{CONTROL_MODE}=explicit"]
    if not chosen or chosen[-1] == "explicit":
        options += [f"--load-model={folder.name}" for folder in folders]
    return options


def closed_options(folders: Sequence[RepositoryModel], given: Sequence[str], run_directory: Path) -> list[str]:
    """Return the options with which Triton loads only these models and refuses administrative requests.

    Args:
        given: the user's options. Triton accepts each of these options only once, so the user's replace ours.
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
