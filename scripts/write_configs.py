#!/usr/bin/env python3
"""Write the committed config.pbtxt files again: of the session models and of those that only encode compressed images.

Run it after a change of triton_sam/wire/contract.py, of triton_sam/sessions/image/config.py, or of `config_for` in
triton_sam/repository/config.py. It also writes those of
the ONNX models whose graph lies in version 1; an export writes the others.
"""

from __future__ import annotations

from pathlib import Path

from triton_sam._common.files import atomic_write
from triton_sam.families import FAMILIES, get_family
from triton_sam.repository import CONFIG_NAME, config_for
from triton_sam.sessions.image.config import write_configs

REPOSITORY = Path(__file__).resolve().parent.parent / "model_repository"


def main() -> int:
    """Write the files and name those that are different now."""
    changed = [*write_configs(REPOSITORY), *write_onnx_configs(REPOSITORY)]
    for path in changed:
        print(f"wrote {path.relative_to(REPOSITORY.parent)}")
    if not changed:
        print("every config.pbtxt is up to date")
    return 0


def write_onnx_configs(repository: Path) -> list[Path]:
    """Write the config.pbtxt of the ONNX models of version 1; return the files that are different now."""
    changed = []
    for family in map(get_family, FAMILIES):
        for spec in family.models.values():
            folder = repository / family.model_name(spec.role)
            graph = folder / "1" / spec.filename
            if graph.is_file():
                text = config_for(graph, folder.name, spec.filename)
                if (folder / CONFIG_NAME).read_text(encoding="utf-8") != text:
                    atomic_write(folder / CONFIG_NAME, text.encode())
                    changed.append(folder / CONFIG_NAME)
    return changed


if __name__ == "__main__":
    raise SystemExit(main())
