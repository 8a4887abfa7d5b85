"""SAM3's files on the Hugging Face hub: the published ONNX pair, and the gated checkpoint. Needs huggingface_hub."""

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
from ..families.base import ModelSpec
from ..families.sam3 import Sam3
from ..repository.config import config_for
from ..repository.install import install, not_served, write_flushed
from ..repository.names import CONFIG_NAME, check_name
from .fetch import fetch

try:
    import huggingface_hub
    from huggingface_hub import errors
except ImportError as error:
    raise missing("SAM3 comes from the Hugging Face hub, which needs", "export", error) from error

ONNX_REPOSITORY = "onnx-community/sam3-tracker-ONNX"
CHECKPOINT_REPOSITORY = "facebook/sam3"
PRECISIONS = {"fp32": "", "fp16": "_fp16"}
"""Precision -> ending of the published file names."""

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
    repository: Path, *, precision: str = "fp32", name: str = "sam3", hub: Hub | None = None
) -> dict[str, Path]:
    """Download the published encoder and decoder into a model repository, under the names that Triton asks for.

    A graph goes to the file that config.pbtxt names, whatever its precision; its external data stays beside it under
    the name that is written in the graph. Both models appear at once, or neither; what has arrived is kept for the next
    try, and what is in place already is not fetched again.

    Args:
        repository: the model repository.
        precision: "fp32", or "fp16" for GPUs.
        name: variant; the models are `<name>_encoder` and `<name>_decoder`.
        hub: where from.

    Returns:
        Graph files by role.

    Raises:
        ConfigurationError: an option that cannot work.
        DownloadError: see Hub.ask() and Hub.fetch().
    """
    if precision not in PRECISIONS:
        raise ConfigurationError(f"precision {precision!r}: one of {', '.join(PRECISIONS)}")
    source = hub or Hub()
    graphs: dict[str, Path] = {}
    moves: list[tuple[Path, Path]] = []
    rooms: list[Path] = []
    for spec in (Sam3.encoder, Sam3.decoder):
        folder = repository / Sam3().model_name(spec.role, check_name(name))
        rooms.append(folder / f".download-{precision}")
        moves += _fetch_model(source, spec, precision, folder, rooms[-1])
        graphs[spec.role] = folder / str(_VERSION) / spec.filename
    install(moves, repository)
    for room in rooms:
        shutil.rmtree(room, ignore_errors=True)
    if warning := not_served([graph.parent.parent for graph in graphs.values()], _VERSION):
        Progress(name, source.progress).line(warning)
    return graphs


def _fetch_model(source: Hub, spec: ModelSpec, precision: str, folder: Path, room: Path) -> list[tuple[Path, Path]]:
    """Bring the files of one model into its room, unless they are in place already; return the moves for install()."""
    version = folder / str(_VERSION)
    published = Path(spec.filename).stem + PRECISIONS[precision] + ".onnx"
    name = spec.filename
    files = [source.fetch(ONNX_REPOSITORY, f"onnx/{published}", room / name, installed=version / name)]
    data = f"{published}_data"
    if data.encode() in files[0].read_bytes():
        files.append(source.fetch(ONNX_REPOSITORY, f"onnx/{data}", room / data, installed=version / data))
    moves = [(file, version / file.name) for file in files]
    text = _config(files[0], folder)
    if text is not None:
        room.mkdir(exist_ok=True)  # not there when nothing was fetched
        write_flushed(room / CONFIG_NAME, text)
        moves.append((room / CONFIG_NAME, folder / CONFIG_NAME))
    return moves


def download_checkpoint(directory: Path, *, hub: Hub | None = None) -> Path:
    """Download the gated SAM3 checkpoint in transformers' format; what has arrived is kept for the next try.

    Returns:
        The folder, for `triton-sam export sam3 --checkpoint`.

    Raises:
        DownloadError: not logged in, not admitted, or no answer; the message says what to do.
        ChecksumError: what came is not the file that the hub described; it is removed.
    """
    source = hub or Hub()
    api = huggingface_hub.HfApi(endpoint=source.where, token=_token())
    info = source.ask(CHECKPOINT_REPOSITORY, lambda: api.model_info(CHECKPOINT_REPOSITORY, files_metadata=True))
    files = [file for file in info.siblings or () if "/" not in file.rfilename]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        raise DownloadError(f"{CHECKPOINT_REPOSITORY} holds no *.safetensors file: is {source.where} a hub?")
    for file in sorted(files, key=lambda file: file.lfs is None):  # large ones first: a refusal comes at once
        name = file.rfilename
        if not name.endswith((".json", ".safetensors")):
            continue
        if file.lfs is not None:
            source.fetch(CHECKPOINT_REPOSITORY, name, directory / name, info.sha)
        else:  # small, and known by git's own hash alone, which the library understands
            get = partial(api.hf_hub_download, CHECKPOINT_REPOSITORY, name, revision=info.sha, local_dir=directory)
            source.ask(CHECKPOINT_REPOSITORY, get)
    return directory


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
