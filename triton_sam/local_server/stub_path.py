"""Extend sys.path in the process of a Python model. This file imports only the standard library.

`installation` copies this file into the virtual environment of a run, with a list of folders in `stub_path.json` beside
it. `site.addsitedir()` would not do: it reads .pth files in the locale's encoding, which is ASCII in these processes,
and stops at the first accented character. The list already includes the folders of other .pth files.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path


def extend(folders: Iterable[str]) -> None:
    """Append folders to sys.path, then run the import lines of their .pth files (editable installs have some)."""
    folders = list(folders)
    sys.path += [folder for folder in folders if folder not in sys.path]
    for folder in folders:
        for file in sorted(Path(folder).glob("[!.]*.pth")):
            try:
                text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
                for line in text.splitlines():
                    if line.startswith(("import ", "import\t")):
                        exec(line)  # noqa: S102 - as Python does with the lines of a .pth file
            except Exception:  # noqa: BLE001 - as in Python itself, one file must not stop the others
                sys.stderr.write(f"{str(file)!a}: {traceback.format_exc(limit=-1)!a}\n")


if __name__ != "__main__" and Path(__file__).with_suffix(".json").is_file():
    extend(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="ascii")))
