"""Downloads from the Hugging Face hub: published ONNX models and gated checkpoints. They need huggingface_hub."""

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
from ..repository.config import CONFIG_NAME, check_name, config_for
from ..repository.folder import read_model
from ..repository.install import install, newer_version_warning, text_move
from .fetch import fetch
from .http import without_credentials

try:
    import huggingface_hub
    from huggingface_hub import errors
except ImportError as error:
    raise missing("a download from the Hugging Face hub needs", "local", error) from error

_VERSION = 1
"""The version folder of downloaded models."""

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""The error numbers that only the file system raises, not the network."""

Result = TypeVar("Result")
Guard = Callable[[Path, Path], Path]


@dataclass(frozen=True)
class Hub:
    """The Hugging Face hub, or a mirror of it.

    Args:
        endpoint: URL of the hub or of a mirror; None: $HF_ENDPOINT, or else the official hub.
    """

    endpoint: str | None = None
    progress: bool = True

    def ask(self, repository: str, call: Callable[[], Result]) -> Result:
        """Call huggingface_hub, and turn its errors into one-line errors."""
        try:
            return call()
        except errors.LocalEntryNotFoundError as error:  # raised if there is no connection
            raise DownloadError(self.no_answer(error)) from error
        except errors.EntryNotFoundError as error:
            raise DownloadError(f"there is no such file in {repository}: {first_line(error)}") from error
        except errors.HfHubHTTPError as error:
            raise DownloadError(_refusal(repository, _status(error))) from error
        except Exception as error:
            raise DownloadError(self.explain(error, repository)) from error

    @property
    def url(self) -> str:
        """The URL of the hub, without a trailing slash."""
        return str(self.endpoint or huggingface_hub.constants.ENDPOINT).rstrip("/")

    def explain(self, error: Exception, what: str) -> str:
        """Return a message for an error of the file system or of the connection, not from the hub.

        The type does not distinguish the two: versions of huggingface_hub raise different errors for a failed
        connection, and some of them are also an OSError.
        """
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK_ERRORS):
            place = f" in {error.filename}" if error.filename is not None else ""
            return f"cannot write {what}{place}: {error.strerror or error}"
        return self.no_answer(error)

    def no_answer(self, error: Exception) -> str:
        """Return a message with a remedy for an unreachable hub."""
        hint = "on a closed network, set HTTPS_PROXY, or set HF_ENDPOINT to a mirror"
        return f"cannot reach {without_credentials(self.url)} ({first_line(error)}): {hint}"

    def fetch(
        self, repository: str, name: str, path: Path, revision: str | None = None, installed: Path | None = None
    ) -> Path:
        """Download one large file, and check it against the hub's SHA-256. A download can be resumed.

        Returns:
            ``path``, or ``installed`` if the correct file is there.
        """
        url = huggingface_hub.hf_hub_url(repository, name, revision=revision, endpoint=self.url)
        meta: Any = self.ask(repository, lambda: huggingface_hub.get_hf_file_metadata(url, token=_token()))
        if not re.fullmatch(r"[0-9a-f]{64}", meta.etag or ""):
            file, hub = without_credentials(url), without_credentials(self.url)
            raise DownloadError(f"the server states no SHA-256 for {file}: is {hub} a Hugging Face hub?")
        token = _token()
        headers = {"Authorization": f"Bearer {token}"} if isinstance(token, str) else None
        return fetch(
            [url],
            path,
            size=meta.size,
            digest=f"sha256:{meta.etag}",
            progress=self.progress,
            headers=headers,
            installed=installed,
        )


def download_onnx(
    family: Family,
    repository: Path,
    *,
    hub: Hub,
    precision: str = "fp32",
    name: str | None = None,
    guard: Guard = lambda graph, _: graph,
) -> dict[str, Path]:
    """Download a family's published ONNX models into a model repository, under the names that Triton expects.

    At every precision, a graph gets the file name in its config.pbtxt. Its external data keeps the file name in the
    graph. All models appear at once, or none does. The next call after a failure uses the received data. Installed
    files are not downloaded again, except graphs that ``guard`` has changed.

    Args:
        name: name of the variant; the models are `<name>_encoder` and `<name>_decoder`. None: the family's name.
        guard: takes a downloaded graph and a folder, and returns the graph to install, which may be a new file there.

    Returns:
        Path of each graph in the model repository, by role.

    Raises:
        ConfigurationError: other models of the variant need an output that the published encoder lacks.
    """
    files = family.hub_files
    if precision not in files.precisions:
        raise ConfigurationError(f"unknown precision {precision!r}: choose one of {', '.join(files.precisions)}")
    variant = check_name(family.name if name is None else name)
    _check_words(family, repository, variant)
    graphs: dict[str, Path] = {}
    moves: list[tuple[Path, Path]] = []
    part_folders: list[Path] = []
    for spec in family.models.values():
        folder = repository / family.model_name(spec.role, variant)
        part_folders.append(folder / f".download-{precision}")
        published = f"onnx/{Path(spec.filename).stem}{files.precisions[precision]}.onnx"
        moves += _fetch_model(partial(hub.fetch, files.onnx), published, spec.filename, folder, part_folders[-1], guard)
        graphs[spec.role] = folder / str(_VERSION) / spec.filename
    install(moves, repository)
    for part_folder in part_folders:
        shutil.rmtree(part_folder, ignore_errors=True)
    if warning := newer_version_warning([graph.parent.parent for graph in graphs.values()], _VERSION):
        Progress(variant, hub.progress).line(warning)
    return graphs


def _check_words(family: Family, repository: Path, variant: str) -> None:
    """Check that no model for words takes an output of the encoder that only our exports have."""
    further = {tensor.name for tensor in family.encoder.further_outputs}
    for role in family.concepts:
        folder = repository / family.model_name(role, variant)
        lacking = sorted(further & {tensor.name for tensor in read_model(folder).config.input})
        if lacking:
            name = "" if variant == family.name else f" --name {variant}"
            raise ConfigurationError(
                f"the published encoder lacks {', '.join(lacking)}, which {folder} needs: run "
                f"`triton-sam setup {family.name} --concepts{name}`, give the published models another --name, or "
                f"remove {folder}"
            )


def _fetch_model(
    fetch: Callable[..., Path], published: str, name: str, folder: Path, part_folder: Path, guard: Guard
) -> list[tuple[Path, Path]]:
    """Download the missing files of one model to ``part_folder``; return the moves for install()."""
    version = folder / str(_VERSION)
    files = [fetch(published, part_folder / name, installed=version / name)]
    data = f"{Path(published).name}_data"
    if data.encode() in files[0].read_bytes():
        files.append(fetch(f"{published}_data", part_folder / data, installed=version / data))
    text = config_for(files[0], folder.name, files[0].name)
    moves = [(guard(files[0], part_folder), version / name), *((file, version / file.name) for file in files[1:])]
    return moves + text_move(CONFIG_NAME, text, part_folder, folder)


def download_checkpoint(family: Family, directory: Path, hub: Hub) -> Path:
    """Download a family's gated checkpoint in transformers' format.

    After a failure, the received data is kept for the next call.

    Returns:
        The folder of the checkpoint, for `triton-sam export FAMILY --checkpoint`.
    """
    wanted = family.hub_files.checkpoint
    api = huggingface_hub.HfApi(endpoint=hub.url, token=_token())
    info = hub.ask(wanted, lambda: api.model_info(wanted, files_metadata=True))
    files = [file for file in info.siblings or () if "/" not in file.rfilename]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        raise DownloadError(
            f"{wanted} has no *.safetensors file: is {without_credentials(hub.url)} a Hugging Face hub?"
        )
    for file in sorted(
        files, key=lambda file: file.lfs is None
    ):  # large files first, because the hub refuses them without access
        name = file.rfilename
        if not name.endswith((".json", ".safetensors", "merges.txt")):
            continue
        if file.lfs is not None:
            hub.fetch(wanted, name, directory / name, info.sha)
        else:  # for a small file, the hub has only git's hash, which huggingface_hub checks
            get = partial(api.hf_hub_download, wanted, name, revision=info.sha, local_dir=directory)
            hub.ask(wanted, get)
    return directory


def _token() -> str | bool:
    """Return the token of the last login, or False. With None, huggingface_hub would look for a token itself."""
    return huggingface_hub.get_token() or False


def _status(error: Any) -> int:
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", 0) or 0)


def _refusal(repository: str, status: int) -> str:
    if status == 401:
        return f"{repository} needs a login: run `hf auth login` (and check the name of the repository)"
    if status == 403:
        return f"{repository} is gated, and you have no access: ask for it at https://huggingface.co/{repository}"
    if status == 404:
        return f"the hub has no repository {repository}"
    return f"the hub refuses {repository} (HTTP status {status}): try again later"
