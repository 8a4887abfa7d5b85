"""Hooks of `mkdocs build`: the repository's URL, the help of every command, and links of included documents.

mkdocs.yml lists this file.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

HELP_MARK = "<!-- help of every command -->"
INCLUDED = re.compile(r'(?m)^--8<-- "([^"]+\.md)"$')
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contribute/contributing.md",
    "checkpoints/README.md": "background/demo-model.md",
    "triton_sam/families/new_family.md": "contribute/new-family.md",
}
"""Documents outside of ``docs``, and the pages in which they are included."""


def on_config(config: Any) -> Any:
    """Take the repository's URL from [project.urls]."""
    text = (Path(config.config_file_path).parent / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'(?m)^Repository = "(.+)"$', text)
    if match is None:
        raise RuntimeError("pyproject.toml: [project.urls] has no line `Repository = ...`")
    config["repo_url"] = match[1]
    config["repo_name"] = match[1].partition("://")[2].partition("/")[2]
    config["edit_uri"] = ""
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Insert the help of every command, and the text of a document outside of ``docs``."""
    if HELP_MARK in markdown:
        return markdown.replace(HELP_MARK, command_help())
    root = Path(config.config_file_path).parent
    return INCLUDED.sub(lambda found: included(root, found[1], page.file.src_uri, config["repo_url"]), markdown)


def included(root: Path, name: str, page: str, repository: str) -> str:
    """Return the text of a document, with links adapted to a page of the site."""
    folder = (root / name).parent

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found[1].partition("#")
        if "://" in path or not path:
            return found[0]
        target = (folder / path).resolve().relative_to(root.resolve()).as_posix()
        if target in PAGES or target.startswith("docs/"):
            target = PAGES.get(target, target.removeprefix("docs/"))
            return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{mark}{anchor})"
        return f"]({repository}/blob/main/{target}{mark}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", link, (root / name).read_text(encoding="utf-8"))


def command_help() -> str:
    """Return a section of Markdown for each command of ``triton-sam``, in the order of ``triton-sam --help``."""
    os.environ["COLUMNS"] = "100"  # otherwise, argparse uses the terminal's width
    from triton_sam.cli import build_parser

    sections = []
    for name, parser in build_parser().with_commands().commands.items():
        texts = [each.format_help() for each in (parser, *parser.commands.values())]
        sections.append(f"## {name}\n\n```text\n{chr(10).join(texts)}```\n")
    return "\n".join(sections)
