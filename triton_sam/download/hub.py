"""A family's files on the Hugging Face hub: published ONNX models, and a gated checkpoint. Needs huggingface_hub."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .._common.extras import missing
from .._common.progress import Progress
from .._common.text import first_line
from ..errors import ConfigurationError, DownloadError
from ..families import Family
from ..families.tables import HubFiles
from ..repository.config import config_for
from ..repository.install import install, not_served, write_flushed
from ..repository.names import CONFIG_NAME, check_name
from .fetch import fetch

try:
    import huggingface_hub
    from huggingface_hub import errors
except ImportError as error:
    raise missing("SAM3 comes from the Hugging Face hub, which needs", "export", error) from error

_VERSION = 1

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

Result = TypeVar("Result")


@dataclass(frozen=True)
class Hub:
    """Where files come from.

    Args:
        endpoint: URL of the hub or of a mirror; None: $HF_ENDPOINT, else the official one.
        progress: show progress bars and what happens, on stderr.
    """

    endpoint: str | None = None
    progress: bool = True

    def ask(self, repository: str, call: Callable[[], Result]) -> Result:
        """Make a call of huggingface_hub; its errors become one line each.

        Raises:
            DownloadError: not logged in, not admitted, no such file, no answer, or the disk refuses the file.
        """
        try:
            return call()
        except errors.LocalEntryNotFoundError as error:  # what snapshot_download makes of a missing connection
            raise DownloadError(self.no_answer(error)) from error
        except errors.EntryNotFoundError as error:
            raise DownloadError(f"{repository} has no such file: {first_line(error)}") from error
        except errors.HfHubHTTPError as error:
            raise DownloadError(_refusal(repository, _status(error))) from error
        except Exception as error:
            raise DownloadError(self.explain(error, repository)) from error

    @property
    def where(self) -> str:
        """URL of the hub, without a slash at its end."""
        return str(self.endpoint or huggingface_hub.constants.ENDPOINT).rstrip("/")

    def explain(self, error: Exception, what: str) -> str:
        """Say what an error means that the hub did not answer with: it comes from the disk, else from the connection.

        The base of those of the connection differs between versions of the library; some are an OSError, too.
        """
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK_FULL):
            place = f" in {error.filename}" if error.filename is not None else ""
            return f"cannot keep {what}{place}: {error.strerror or error}"
        return self.no_answer(error)

    def no_answer(self, error: Exception) -> str:
        """Say that the hub cannot be reached, and what helps."""
        hint = "on a closed network set HTTPS_PROXY, or HF_ENDPOINT to a mirror"
        return f"cannot reach {self.where} ({first_line(error)}): {hint}"

    def fetch(
        self, repository: str, name: str, path: Path, revision: str | None = None, installed: Path | None = None
    ) -> Path:
        """Download one large file, resumed when broken off, checked by the SHA-256 that the hub states.

        Returns:
            ``path``, or ``installed`` where the right file is there already.

        Raises:
            DownloadError: see ask() and triton_sam.download.fetch.fetch().
            ChecksumError: what came is not the file that the hub described; it is removed.
        """
        url = huggingface_hub.hf_hub_url(repository, name, revision=revision, endpoint=self.where)
        meta: Any = self.ask(repository, lambda: huggingface_hub.get_hf_file_metadata(url, token=_token()))
        if not re.fullmatch(r"[0-9a-f]{64}", meta.etag or ""):
            raise DownloadError(f"{url} states no SHA-256: it is no large file of a Hugging Face hub")
        token = _token()
        headers = {"Authorization": f"Bearer {token}"} if isinstance(token, str) else None
        return fetch(
            [url], path, size=meta.size, sha256=meta.etag, progress=self.progress, headers=headers, installed=installed
        )


def login(token: str) -> None:
    """Keep a token where huggingface_hub and download_checkpoint() look for it, when the hub knows it.

    Raises:
        DownloadError: the hub does not know it, or does not answer.
    """
    try:
        huggingface_hub.login(token, skip_if_logged_in=False)
    except (ValueError, errors.HfHubHTTPError) as error:
        raise DownloadError(
            f"the hub does not accept this token ({first_line(error)}): make one at https://huggingface.co/settings/tokens"
        ) from error
    except Exception as error:
        raise DownloadError(Hub().explain(error, "the token")) from error


def download_onnx(
    family: Family, repository: Path, *, precision: str = "fp32", name: str | None = None, hub: Hub | None = None
) -> dict[str, Path]:
    """Download a family's published ONNX models into a model repository, under the names that Triton asks for.

    A graph goes to the file that config.pbtxt names, whatever its precision; its external data stays beside it under
    the name that is written in the graph. All models appear at once, or none; what has arrived is kept for the next
    try, and what is in place already is not fetched again.

    Args:
        family: one that has files on the hub.
        repository: the model repository.
        precision: "fp32", or "fp16" for GPUs.
        name: variant; the models are `<name>_encoder` and `<name>_decoder`. None: the family's name.
        hub: where from.

    Returns:
        Graph files by role.

    Raises:
        ConfigurationError: an option that cannot work.
        DownloadError: see Hub.ask() and Hub.fetch().
    """
    files = _files(family)
    if precision not in files.precisions:
        raise ConfigurationError(f"precision {precision!r}: one of {', '.join(files.precisions)}")
    variant = check_name(family.name if name is None else name)
    source = hub or Hub()
    graphs: dict[str, Path] = {}
    moves: list[tuple[Path, Path]] = []
    rooms: list[Path] = []
    for spec in family.models.values():
        folder = repository / family.model_name(spec.role, variant)
        rooms.append(folder / f".download-{precision}")
        published = _Published(files.onnx, Path(spec.filename).stem + files.precisions[precision] + ".onnx")
        moves += _fetch_model(source, published, spec.filename, folder, rooms[-1])
        graphs[spec.role] = folder / str(_VERSION) / spec.filename
    install(moves, repository)
    for room in rooms:
        shutil.rmtree(room, ignore_errors=True)
    if warning := not_served([graph.parent.parent for graph in graphs.values()], _VERSION):
        Progress(variant, source.progress).line(warning)
    return graphs


@dataclass(frozen=True)
class _Published:
    """A graph on the hub: the repository, and the file's name in the folder `onnx`."""

    repository: str
    file: str


def _fetch_model(source: Hub, published: _Published, name: str, folder: Path, room: Path) -> list[tuple[Path, Path]]:
    """Bring the files of one model into its room, unless they are in place already; return the moves for install()."""
    version, wanted = folder / str(_VERSION), published.repository
    files = [source.fetch(wanted, f"onnx/{published.file}", room / name, installed=version / name)]
    data = f"{published.file}_data"
    if data.encode() in files[0].read_bytes():
        files.append(source.fetch(wanted, f"onnx/{data}", room / data, installed=version / data))
    moves = [(file, version / file.name) for file in files]
    text = _config(files[0], folder)
    if text is not None:
        room.mkdir(exist_ok=True)  # not there when nothing was fetched
        write_flushed(room / CONFIG_NAME, text)
        moves.append((room / CONFIG_NAME, folder / CONFIG_NAME))
    return moves


def download_checkpoint(family: Family, directory: Path, *, hub: Hub | None = None) -> Path:
    """Download a family's gated checkpoint in transformers' format; what has arrived is kept for the next try.

    Returns:
        The folder, for `triton-sam export FAMILY --checkpoint`.

    Raises:
        DownloadError: not logged in, not admitted, or no answer; the message says what to do.
        ChecksumError: what came is not the file that the hub described; it is removed.
    """
    source, wanted = hub or Hub(), _files(family).checkpoint
    api = huggingface_hub.HfApi(endpoint=source.where, token=_token())
    info = source.ask(wanted, lambda: api.model_info(wanted, files_metadata=True))
    files = [file for file in info.siblings or () if "/" not in file.rfilename]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        raise DownloadError(f"{wanted} holds no *.safetensors file: is {source.where} a hub?")
    for file in sorted(files, key=lambda file: file.lfs is None):  # large ones first: a refusal comes at once
        name = file.rfilename
        if not name.endswith((".json", ".safetensors")):
            continue
        if file.lfs is not None:
            source.fetch(wanted, name, directory / name, info.sha)
        else:  # small, and known by git's own hash alone, which the library understands
            get = partial(api.hf_hub_download, wanted, name, revision=info.sha, local_dir=directory)
            source.ask(wanted, get)
    return directory


def _files(family: Family) -> HubFiles:
    if family.hub is None:
        raise ConfigurationError(f"{family.name} has nothing on the Hugging Face hub")
    return family.hub


def _token() -> str | bool:
    """Return the token of the last login, or False: huggingface_hub would otherwise look for it by itself."""
    return huggingface_hub.get_token() or False


def _config(graph: Path, folder: Path) -> str | None:
    """Return the config.pbtxt of a downloaded graph; None when the one that is there fits already."""
    text = config_for(graph, folder.name, graph.name)
    place = folder / CONFIG_NAME
    return None if place.is_file() and place.read_text("utf-8", errors="replace") == text else text


def _status(error: Any) -> int:
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", 0) or 0)


def _refusal(repository: str, status: int) -> str:
    if status == 401:
        return f"{repository} wants a login: run `python scripts/hf_login.py` (and check that the name is right)"
    if status == 403:
        return f"{repository} is gated and you are not admitted: ask for access at https://huggingface.co/{repository}"
    if status == 404:
        return f"there is no {repository} on the hub"
    return f"the hub refuses {repository} (HTTP status {status}): try again later"
