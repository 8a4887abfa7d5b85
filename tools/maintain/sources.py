"""The digest of the code that determines templates. A test compares it with the digest of the stored templates."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

EXPORT = Path(__file__).parents[2] / "triton_sam/export"
MADE = Path(__file__).with_name("templates.json")
"""The digest of the code that made each family's stored templates, and the versions of the packages."""
COMMON = ("templates.py", "tracing.py", "rewrites.py", "point_graphs.py")
FOLDERS = {
    "sam1": ("sam1",),
    "sam2": ("sam2",),
    "sam3": ("sam2", "sam3"),
    "mobilesam": ("sam1", "mobilesam"),
    "edgetam": ("sam2", "sam3", "edgetam"),
    "samhq": ("sam1", "mobilesam", "samhq"),
}
"""The modules and packages that build and trace the models of each family."""

UNRELATED = ("reference", "filled", "names", "checkpoints", "tokenizer")
"""Suffixes of modules that neither build nor trace a model."""


def digest(family: str) -> str:
    """Return the digest for a family, without comments, docstrings, imports and layout."""
    files = [EXPORT / name for name in COMMON]
    for folder in FOLDERS[family]:
        module = EXPORT / f"{folder}.py"
        paths = [module] if module.is_file() else sorted((EXPORT / folder).glob("*.py"))
        files += [path for path in paths if not path.stem.endswith(UNRELATED)]
    found = hashlib.sha256()
    for path in files:
        found.update(_code(path).encode())
    return found.hexdigest()


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [each for each in node.body if not _is_ignored(each)] or [ast.Pass()]
    return ast.dump(tree)


def _is_ignored(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or an import, which changes when code moves to another module."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
