"""One export of the micro model with random weights, shared by the tests of export and verify."""

from __future__ import annotations

import contextlib
import copy
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "sam2.1_hiera_micro"
SEED = 0


@dataclass(frozen=True)
class MicroExport:
    """What came out.

    Args:
        model: the official torch model with the exported weights.
        repository: the model repository.
        files: ONNX files by role.
        graphs: graphs by role as torch traced them.
        stderr: what the export said.
    """

    model: Any
    repository: Path
    files: dict[str, Path]
    graphs: dict[str, Any]
    stderr: str


def export_micro(sam2: Any, repository: Path) -> MicroExport:
    """Export the micro model with ``triton_sam.export.sam2.recipe`` and keep the traced graphs."""
    from triton_sam.export import registry
    from triton_sam.export.settings import Settings

    graphs: dict[str, Any] = {}
    tracers = {"encoder": sam2._trace_encoder, "decoder": sam2._trace_decoder}

    def keep(role: str, *arguments: Any) -> Any:
        graphs[role] = tracers[role](*arguments)
        return copy.deepcopy(graphs[role])

    said = io.StringIO()
    try:
        sam2._trace_encoder = lambda *arguments: keep("encoder", *arguments)
        sam2._trace_decoder = lambda *arguments: keep("decoder", *arguments)
        with contextlib.redirect_stderr(said):
            exported = registry.export("sam2", Settings(repository, model=CONFIG, random_seed=SEED))
    finally:
        sam2._trace_encoder, sam2._trace_decoder = tracers["encoder"], tracers["decoder"]
    model = sam2.load_model(None, CONFIG, random_seed=SEED)
    return MicroExport(model, repository, exported.files, graphs, said.getvalue())
