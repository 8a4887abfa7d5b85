"""The documents of a checkout, and everything that they may name: files, code, tasks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from triton_sam.families import FAMILIES, variant_models

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDERS = (
    *(".ci", ".github", "checkpoints", "deploy", "docs", "examples", "model_repository", "scripts", "test", "tools"),
    *("triton_sam", "triton_sam2"),
)
CODE = {".conf", ".css", ".html", ".js", ".pbtxt", ".py", ".sh", ".toml", ".tpl", ".yaml", ".yml"}
MADE = ("deploy/nginx/tls", "test/output")
"""Folders that programs or readers make."""
HISTORY = "CHANGELOG.md"
"""It names code that is gone."""

BLOCK = re.compile(r"(?ms)^( *)```(\w*)[^\n]*\n(.*?)^\1```$")


@dataclass(frozen=True)
class Document:
    """A document, whose path is relative to the checkout."""

    path: PurePosixPath
    text: str

    def at(self, position: int) -> str:
        """Return file and line of a position."""
        return f"{self.path}:{self.text.count(chr(10), 0, position) + 1}"

    def blocks(self) -> Iterator[tuple[str, int, str]]:
        """Yield language, position and content of every block of code."""
        for match in BLOCK.finditer(self.text):
            yield match[2], match.start(3), match[3]

    def inline(self) -> Iterator[tuple[int, str]]:
        """Yield position and content of every piece of code inside a line."""
        prose = BLOCK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), self.text)
        for match in re.finditer(r"`([^`\n]+)`", prose):
            yield match.start(1), match[1]

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of all headings, as GitHub and as the site make them."""
        prose = BLOCK.sub("", self.text)
        headings = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"(?m)^#+ (.*)$", prose)]
        found = {re.sub(r"\s", "-", title) for title in headings} | {re.sub(r"[-\s]+", "-", each) for each in headings}
        return found | set(re.findall(r'(?:id|name)="([^"]+)"', prose))


class Checkout:
    """The documents of a checkout, and what they may name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = [*root.iterdir(), *(path for folder in FOLDERS for path in (root / folder).rglob("*"))]
        self.paths = {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}
        self.documents = [
            Document(PurePosixPath(name), self.read(name))
            for name in sorted(self.paths)
            if name.endswith(".md") and not name.startswith(MADE)
        ]

    def read(self, name: str) -> str:
        """Return the text of a file."""
        return (self.root / name).read_text(encoding="utf-8")

    @cached_property
    def code(self) -> dict[str, str]:
        """The texts of all files of code, and of the files at the top that are no documents."""
        names = [name for name in self.paths if PurePosixPath(name).suffix in CODE or name.startswith(".ci/")]
        names += [name for name in self.paths if "/" not in name and not name.endswith((".md", ".lock"))]
        return {
            name: (self.root / name).read_text(encoding="utf-8", errors="ignore")
            for name in sorted(names)
            if (self.root / name).is_file() and not name.startswith(MADE)
        }

    @cached_property
    def words(self) -> set[str]:
        """Every word of the code, the names of its files without their ends, and those of the families' models."""
        found = {PurePosixPath(name).stem for name in self.code}
        found.update(*map(variant_models, FAMILIES))
        return found.union(*(re.findall(r"\w+", text) for text in self.code.values()))

    @cached_property
    def ends(self) -> set[str]:
        """Every path of the checkout, from each of its folders on."""
        return {
            "/".join(parts[start:])
            for parts in (PurePosixPath(path).parts for path in self.paths)
            for start in range(len(parts))
        }

    @cached_property
    def project(self) -> dict[str, Any]:
        """The content of pyproject.toml."""
        return tomllib.loads(self.read("pyproject.toml"))

    @cached_property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """The Pixi tasks of all features by name, a plain command as {"cmd": command}."""
        pixi = self.project["tool"]["pixi"]
        tables = [pixi.get("tasks", {}), *(feature.get("tasks", {}) for feature in pixi.get("feature", {}).values())]
        found = {name: task for table in tables for name, task in table.items()}
        return {name: task if isinstance(task, dict) else {"cmd": task} for name, task in found.items()}
