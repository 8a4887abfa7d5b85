#!/usr/bin/env python3
"""Write the committed config.pbtxt files again: of the session models and of those that only encode compressed images.

Run it after a change of triton_sam/wire/contract.py, of triton_sam/sessions/configs.py, or of `config_for` in
triton_sam/repository/config.py, and after a change of the demo model. It also writes those of the ONNX models whose
graph lies in version 1, and the hashes of these graphs; an export writes the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from triton_sam._common.files import atomic_write, hash_file
from triton_sam.families import FAMILIES, get_family
from triton_sam.repository import CONFIG_NAME, config_for
from triton_sam.repository.hashes import SUMS_NAME, read_sums, record_hashes
from triton_sam.sessions.configs import programs

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


def main() -> int:
    """Write the files and print the changed ones."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    changed = [*write_configs(REPOSITORY), *write_onnx_files(REPOSITORY)]
    for path in changed:
        print(f"wrote {path.relative_to(REPOSITORY.parent)}")
    if not changed:
        print("every config.pbtxt and every hash is up to date")
    return 0


def write_configs(repository: Path) -> list[Path]:
    """Write the files of the demo model's programs; return the changed files."""
    changed = []
    for model, files in programs(get_family("sam2"), video=False).items():
        for name, text in files.items():
            path = repository / model / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(path, text.encode())
                changed.append(path)
    return changed


def write_onnx_files(repository: Path) -> list[Path]:
    """Write the config.pbtxt and the hash of each ONNX model with a graph in version 1; return the changed files."""
    changed = []
    for family in map(get_family, FAMILIES):
        for spec in family.every_model.values():
            folder = repository / family.model_name(spec.role)
            graph = folder / "1" / spec.filename
            if not graph.is_file():
                continue
            text = config_for(graph, folder.name, spec.filename)
            if (folder / CONFIG_NAME).read_text(encoding="utf-8") != text:
                atomic_write(folder / CONFIG_NAME, text.encode())
                changed.append(folder / CONFIG_NAME)
            if read_sums(folder).get(f"1/{graph.name}") != hash_file(graph):
                record_hashes([graph])
                changed.append(folder / SUMS_NAME)
    return changed


if __name__ == "__main__":
    raise SystemExit(main())
