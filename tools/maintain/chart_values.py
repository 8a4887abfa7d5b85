"""Write the table of values in the README of the Helm chart, from the comments of values.yaml.

A comment that starts with `# --` describes the value below it. `--check` writes nothing, and fails if the table is old.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_sam._common import strict_json

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "triton-sam"
START, END = "<!-- values: written by tools/maintain/chart_values.py -->", "<!-- end of the values -->"


def descriptions(text: str) -> dict[str, str]:
    """Return the descriptions of values by dotted path."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("# -- ") or (bare.startswith("#") and words):
            words.append(bare.removeprefix("# -- ").removeprefix("#").strip())
            continue
        key, colon, _ = bare.partition(":")
        if not bare or bare.startswith(("#", "-")) or not colon:
            words = []
            continue
        indent = len(line) - len(line.lstrip())
        path = [*(part for part in path if part[0] < indent), (indent, key)]
        if words:
            found[".".join(part for _, part in path)] = " ".join(words)
        words = []
    return found


def leaves(values: Any, described: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its path: described values as a whole, other values recursively."""
    if prefix in described or not isinstance(values, dict) or not values:
        yield prefix, values
        return
    for key, value in values.items():
        yield from leaves(value, described, f"{prefix}.{key}" if prefix else key)


def table(chart: Path = CHART) -> str:
    """Return the table of values in Markdown."""
    import yaml

    text = (chart / "values.yaml").read_text(encoding="utf-8")
    known = descriptions(text)
    rows = ["| value | default | |", "|---|---|---|"]
    for path, value in leaves(yaml.safe_load(text), set(known)):
        if path not in known:
            raise ValueError(f"values.yaml: {path} has no description: write a comment `# -- ...` above it")
        rows.append(f"| `{path}` | `{strict_json.dumps(value)}` | {known[path]} |")
    return "\n".join(rows)


def renewed() -> str:
    """Return the text of README.md with the current table."""
    text = (CHART / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{table(CHART)}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write the table, or check it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is old")
    args = parser.parse_args()
    readme = CHART / "README.md"
    try:
        text = renewed()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.check:
        is_new = readme.read_text(encoding="utf-8") == text
        if not is_new:
            print(f"{readme}: the table is old: run `python tools/maintain/chart_values.py`", file=sys.stderr)
        return int(not is_new)
    readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
