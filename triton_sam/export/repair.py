"""Add the guard to downloaded graphs, and by `triton-sam doctor --fix` to graphs from an earlier version.

This needs the onnx package, but neither torch nor the checkpoint. The weights are not changed.
"""

from __future__ import annotations

import os
from pathlib import Path

from .._common.extras import missing
from .._common.text import first_line
from ..errors import ExportError
from ..families.registry import spec_of
from ..repository.folder import unguarded_graphs
from ..repository.hashes import check_file
from ..repository.install import EXTERNAL_DATA_ENDINGS, install, staging
from ..repository.onnx_header import GUARD, GUARD_KEY, read_metadata

try:
    import onnx

    from . import guards
except ImportError as error:
    raise missing("repairing needs", "local", error) from error


def add_missing_guards(repository: Path) -> list[Path]:
    """Add the guard to every unguarded graph of a model repository; all graphs change, or none does.

    Returns:
        The changed ONNX files.
    """
    changed = unguarded_graphs(repository)
    moves: list[tuple[Path, Path]] = []
    if not changed:
        return []
    try:
        with staging(repository) as workspace:
            for number, path in enumerate(changed):
                finished = workspace / f"{number}.onnx"
                data = [file for file in path.parent.iterdir() if file.name.endswith(EXTERNAL_DATA_ENDINGS)]
                for file in [path, *data]:
                    check_file(file)
                _write_guarded(path, finished)
                moves += [(finished, path), *((file, file) for file in data)]
            install(moves, repository)
    except OSError as error:
        raise ExportError(f"cannot write {repository}: {error.strerror or error}; nothing was changed") from error
    return changed


def guarded(path: Path, folder: Path) -> Path:
    """Return a graph with the guard: the file itself, or a new file in a folder."""
    if GUARD_KEY in read_metadata(path):
        return path
    folder.mkdir(exist_ok=True)
    finished = folder / f"guarded-{path.name}"
    _write_guarded(path, finished)
    return finished


def _write_guarded(path: Path, finished: Path) -> None:
    """Write a graph with the guard. External data stays in place, because the graph refers to it by name."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # onnx and protobuf raise various errors for damaged files
        raise ExportError(f"{path} cannot be read: {first_line(error)}; nothing was changed") from error
    spec = spec_of(value.name for value in model.graph.input)
    if spec is None:
        raise ExportError(f"{path} has other inputs than the models of any family: export it again")
    guards.add_guard(model, spec)
    values = {entry.key: entry.value for entry in model.metadata_props} | {GUARD_KEY: GUARD}
    del model.metadata_props[:]
    for key in sorted(values):
        model.metadata_props.add(key=key, value=values[key])
    with finished.open("wb") as stream:
        stream.write(model.SerializeToString())
        stream.flush()
        os.fsync(stream.fileno())
    finished.chmod(path.stat().st_mode)
