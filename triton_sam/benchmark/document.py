"""A small document of headings, paragraphs, tables and pictures, written as Markdown and as one HTML page."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.92rem; }
th, td { padding: 0.25rem 0.8rem; border-bottom: 1px solid #ddd; text-align: right; }
th { border-bottom: 2px solid #999; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
h2 { margin-top: 2.2rem; }
"""


@dataclass(frozen=True)
class Table:
    """Cells of text; the first column is aligned left, the others right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A picture in a file.

    Args:
        path: the file.
        about: what is seen.
    """

    path: Path
    about: str


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the title."""

    text: str
    level: int = 2


Block = Heading | Table | Picture | str


@dataclass
class Document:
    """Blocks from top to bottom; a plain string is a paragraph."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Add blocks."""
        self.blocks.extend(blocks)

    def to_markdown(self) -> str:
        """Return Markdown; pictures are linked by their file names, as they lie beside it."""
        return "\n\n".join(_markdown(block) for block in self.blocks) + "\n"

    def to_html(self) -> str:
        """Return one page that needs no other file."""
        title = next((block.text for block in self.blocks if isinstance(block, Heading)), "")
        body = "\n".join(_html(block) for block in self.blocks)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
            f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
        )


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Picture):
        return f"![{block.about}]({block.path.name})"
    if isinstance(block, Table):
        lines = [block.head, ["---"] + ["---:"] * (len(block.head) - 1), *block.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return block


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Picture):
        kind = "svg+xml" if block.path.suffix == ".svg" else "png"
        data = base64.b64encode(block.path.read_bytes()).decode()
        return f'<p><img alt="{html.escape(block.about)}" src="data:image/{kind};base64,{data}"></p>'
    if isinstance(block, Table):
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in block.head)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in block.rows]
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return f"<p>{_marked(html.escape(block))}</p>"


def _marked(text: str) -> str:
    """Turn what stands between backticks into code, and elsewhere what stands between pairs of asterisks into bold."""
    parts = text.split("`")
    return "".join(_bold(part) if index % 2 == 0 else f"<code>{part}</code>" for index, part in enumerate(parts))


def _bold(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
