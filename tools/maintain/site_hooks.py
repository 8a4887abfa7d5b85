"""Hooks of `mkdocs build`: the address of the repository, and the help of every command.

MkDocs loads this file because mkdocs.yml names it. It keeps the site true without copies: the address of the repository
stands in pyproject.toml alone, and the reference of the command line is the real ``--help``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

HELP_MARK = "<!-- help of every command -->"


def on_config(config: Any) -> Any:
    """Take the address of the repository from [project.urls]."""
    text = (Path(config.config_file_path).parent / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'(?m)^Repository = "(.+)"$', text)
    if match is None:
        raise RuntimeError("pyproject.toml: [project.urls] has no line `Repository = ...`")
    config["repo_url"] = match[1]
    config["repo_name"] = match[1].partition("://")[2].partition("/")[2]
    config["edit_uri"] = ""
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark in the page of commands by the help of every command."""
    return markdown.replace(HELP_MARK, command_help()) if HELP_MARK in markdown else markdown


def command_help() -> str:
    """Return a section of Markdown for each command of ``triton-sam``, in the order of ``triton-sam --help``."""
    os.environ["COLUMNS"] = "100"  # argparse asks the terminal otherwise
    from triton_sam.cli import build_parser

    sections = []
    for name, parser in build_parser().with_commands().commands.items():
        texts = [each.format_help() for each in (parser, *parser.commands.values())]
        sections.append(f"## {name}\n\n```text\n{chr(10).join(texts)}```\n")
    return "\n".join(sections)
