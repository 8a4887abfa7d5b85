"""The files of the images and the wheel."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath


def committed(root: Path, folder: str) -> set[str] | None:
    """Return the committed files of a folder; None without git or the repository."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", folder], cwd=root, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return set(done.stdout.split("\0")) - {""}


def is_ignored(path: str, ignore_file: str) -> bool:
    """Return whether `docker build` ignores a file, by the rules of a .dockerignore.

    The last line that matches the file or one of its folders decides, and `!` negates it.
    https://docs.docker.com/build/concepts/context/#dockerignore-files
    """
    ignored = False
    places = [path, *map(str, PurePosixPath(path).parents)]
    for line in ignore_file.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        expression = _expression(pattern.removeprefix("!").strip("/"))
        if any(expression.fullmatch(place) for place in places):
            ignored = not pattern.startswith("!")
    return ignored


def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(part if part[:1] == "[" else meanings.get(part) or re.escape(part) for part in parts))
