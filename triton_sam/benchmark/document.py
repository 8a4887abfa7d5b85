"""A small document of headings, paragraphs, tables and figures, written as Markdown and as one HTML page."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._common.columns import without_empty_columns

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
    """A table of text cells. The first column is aligned to the left, the others to the right.

    Columns without a value in any row are not shown.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Illustration:
    """An image file with a description.

    Args:
        path: the PNG or SVG file.
        description: the text for readers who cannot see the image.
    """

    path: Path
    description: str


@dataclass(frozen=True)
class Heading:
    """A heading. Level 1 is the title of the document."""

    text: str
    level: int = 2


Block = Heading | Table | Illustration | str


@dataclass
class Document:
    """A list of blocks from top to bottom. A plain string is a paragraph."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Append blocks."""
        self.blocks.extend(blocks)

    def to_markdown(self) -> str:
        """Return Markdown. It links illustrations by file name, so they must be in the same folder."""
        return "\n\n".join(_markdown(block) for block in self.blocks) + "\n"

    def to_html(self) -> str:
        """Return one HTML page that needs no other file, because illustrations are embedded."""
        title = next((block.text for block in self.blocks if isinstance(block, Heading)), "")
        body = "\n".join(_html(block) for block in self.blocks)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
            f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
        )


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Illustration):
        return f"![{block.description}]({block.path.name})"
    if isinstance(block, Table):
        head, rows = without_empty_columns(block.head, block.rows)
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return block


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Illustration):
        kind = "svg+xml" if block.path.suffix == ".svg" else "png"
        data = base64.b64encode(block.path.read_bytes()).decode()
        return f'<p><img alt="{html.escape(block.description)}" src="data:image/{kind};base64,{data}"></p>'
    if isinstance(block, Table):
        titles, cells = without_empty_columns(block.head, block.rows)
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in titles)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in cells]
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return f"<p>{_inline_html(html.escape(block))}</p>"


def _inline_html(text: str) -> str:
    """Turn text between backticks into code, and text between pairs of asterisks outside of it into bold."""
    parts = text.split("`")
    return "".join(_bold(part) if index % 2 == 0 else f"<code>{part}</code>" for index, part in enumerate(parts))


def _bold(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
