"""Finds files of the project, either in the checkout or inside an installed wheel, and the user's own files."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """Return the folder of the checkout that this package runs from; None for an installed wheel."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "model_repository").is_dir() else None


def bundled(relative: str) -> Path:
    """Return the path of a file or folder of the project, for example ``test/images``."""
    root = checkout()
    return (root if root is not None else PACKAGE / "_bundle") / relative


def data_folder() -> Path:
    """Return the folder for files that a user creates with an installed wheel. It may not exist yet."""
    from platformdirs import user_data_path

    return user_data_path("triton-sam", appauthor=False)
