"""The SHA-256 of each weight file, written when it is installed and checked before a server loads it.

`SHA256SUMS` in the folder of a model has one line for each file, `HASH  1/model.onnx`, so
`sha256sum -c SHA256SUMS` in that folder also checks it. Triton ignores it.

The hashes protect against damage: disk errors, incomplete copies, files of another model. They do not protect against
attackers with write access to the repository, who can also write new hashes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .._common.files import atomic_write, hash_file
from ..errors import RepositoryError
from .folder import RepositoryModel, version_folders
from .selection import without_dependents

logger = logging.getLogger(__name__)

SUMS_NAME = "SHA256SUMS"
VERIFY_VARIABLE = "TRITON_SAM_VERIFY"
"""The environment variable that disables the check if it is 0."""
_ADVICE = f"export or download it again, or delete its line in {SUMS_NAME} if you changed it on purpose"
_LINE = re.compile(r"(?P<hash>[0-9a-f]{64}) [ *](?P<file>\S.*)")
_THREADS = 4


def read_sums(folder: Path) -> dict[str, str]:
    """Return the hashes of a model's files by their path in the folder, for example `1/model.onnx`."""
    path = folder / SUMS_NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RepositoryError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    found = [_LINE.fullmatch(line) for line in lines if line.strip()]
    if None in found:
        raise RepositoryError(f"{path} has a line that is not a SHA-256 and a path: remove it")
    return {match["file"]: match["hash"] for match in found if match}


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the hashes of a model's files, sorted by path; without hashes, remove the file."""
    if sums:
        text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        atomic_write(folder / SUMS_NAME, text.encode())
    else:
        (folder / SUMS_NAME).unlink(missing_ok=True)


def forget_hashes(files: Iterable[Path]) -> dict[Path, dict[str, str]]:
    """Remove the hashes of files MODEL/VERSION/FILE that will be replaced; return all hashes for restore_hashes()."""
    every = {}
    for folder, names in _by_model(files).items():
        before = every[folder] = _readable_sums(folder)
        after = {name: digest for name, digest in before.items() if name not in names}
        if after != before:
            write_sums(folder, after)
    return every


def restore_hashes(sums: Mapping[Path, Mapping[str, str]]) -> None:
    """Write hashes back, ignoring disk errors: a file without a hash is loaded without a check."""
    for folder, lines in sums.items():
        with contextlib.suppress(OSError):
            write_sums(folder, lines)


def record_hashes(files: Iterable[Path]) -> None:
    """Write the hashes of installed files MODEL/VERSION/FILE, and remove those of files that no longer exist."""
    for folder, names in _by_model(files).items():
        sums = {name: digest for name, digest in _readable_sums(folder).items() if (folder / name).is_file()}
        write_sums(folder, {**sums, **{name: hash_file(folder / name) for name in names}})


def intact_models(chosen: Sequence[RepositoryModel], *, verify: bool | None = None) -> list[RepositoryModel]:
    """Return the models without damage in them or in the models that they call, and log one line for each other."""
    damage = damaged_models(chosen, verify=verify)
    reasons = without_dependents({model.name: model for model in chosen}, damage) if damage else {}
    intact = [model for model in chosen if model.name not in reasons]
    lines = [f"{name} is left out: {reason}" for name, reason in sorted(reasons.items())]
    if lines and not intact:
        raise RepositoryError("no model is left to load: " + "; ".join(lines))
    for line in lines:
        logger.warning("%s", line)
    return intact


def damaged_models(chosen: Sequence[RepositoryModel], *, verify: bool | None = None) -> dict[str, str]:
    """Return the models whose files differ from the recorded hashes, each with the difference and advice.

    Only the newest version is checked, because Triton loads it. A file without a recorded hash is not checked.

    Args:
        verify: False skips the check; None skips it if $TRITON_SAM_VERIFY is 0.
    """
    if not (os.environ.get(VERIFY_VARIABLE, "1") != "0" if verify is None else verify):
        return {}
    with ThreadPoolExecutor(_THREADS) as pool:  # hashlib releases the GIL
        found = pool.map(lambda model: (model.name, _damage(model.path)), chosen)
    return {name: f"{problem}: {_ADVICE}" for name, problem in found if problem}


def check_file(path: Path) -> None:
    """Refuse a file MODEL/VERSION/FILE that differs from its recorded hash. A file without one passes."""
    expected = read_sums(path.parent.parent).get(f"{path.parent.name}/{path.name}")
    if expected is not None and hash_file(path) != expected:
        raise RepositoryError(f"{path} is not the file that was installed (its SHA-256 differs): {_ADVICE}")


def _damage(folder: Path) -> str:
    """Return the difference between the newest version of a model and its hashes; "" if there is none.

    If another program installs files in the meantime, the recorded hashes also change, and the check starts again.
    """
    try:
        sums = read_sums(folder)
        while True:
            name, problem = _first_difference(folder, sums)
            if not problem:
                return ""
            expected, sums = sums[name], read_sums(folder)
            if sums.get(name) == expected:
                return problem
    except RepositoryError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or folder} cannot be read ({error.strerror})"


def _first_difference(folder: Path, sums: Mapping[str, str]) -> tuple[str, str]:
    """Return the first file of the newest version that differs from its hash, and the difference; else "" twice."""
    newest = "".join(version.name for version in version_folders(folder)[-1:])
    for name, expected in sums.items():
        if name.split("/")[0] != newest:
            continue
        try:
            if hash_file(folder / name) != expected:
                return name, f"{name} is not the file that was installed (its SHA-256 differs)"
        except FileNotFoundError:
            return name, f"{name} is missing"
    return "", ""


def _by_model(files: Iterable[Path]) -> dict[Path, Collection[str]]:
    """Return the names VERSION/FILE by model folder."""
    found: dict[Path, set[str]] = {}
    for file in files:
        found.setdefault(file.parent.parent, set()).add(f"{file.parent.name}/{file.name}")
    return dict(found)


def _readable_sums(folder: Path) -> dict[str, str]:
    """Return the result of read_sums(), or no hashes if the file is damaged, because it will be replaced."""
    try:
        return read_sums(folder)
    except RepositoryError:
        return {}
