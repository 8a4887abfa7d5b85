"""The completion of a parser for fish, which shtab does not know."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

_NO_FILES = frozenset({"URL", "TOKEN", "NAME", "WORDS", "SECONDS"})
"""Metavars of texts that are no paths."""
_HELPERS = """\
function __{name}_at_start
    test (count (commandline -opc)) -eq 1
end
function __{name}_in
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test "$words[2]" = $argv[1]
end"""


def script(root: argparse.ArgumentParser) -> str:
    """Return a script that completes commands, options, their choices and files.

    Args:
        root: a parser with commands, of which each is the first argument.
    """
    name = root.prog.replace("-", "_")
    lines = [_HELPERS.format(name=name)]
    lines += _options(root, f"complete -c {root.prog} -n __{name}_at_start")
    for action in root._actions:  # noqa: SLF001 - argparse has no public list of its options
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            continue
        texts = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001 - likewise
        for command, parser in action.choices.items():
            about = _quoted(_short(texts[command]))
            lines.append(f"complete -c {root.prog} -n __{name}_at_start -f -a {command} -d {about}")
            lines += _options(parser, f"complete -c {root.prog} -n '__{name}_in {command}'")
    return "\n".join(lines)


def _options(parser: argparse.ArgumentParser, start: str) -> Iterator[str]:
    """Yield one line for each option, and for each other argument that has choices."""
    formatter = parser._get_formatter()  # noqa: SLF001 - it fills in defaults, as the help does
    for action in parser._actions:  # noqa: SLF001 - see script()
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            continue
        value = _value(action)
        if action.option_strings:
            names = "".join(f" {_flag(name)}" for name in action.option_strings)
            about = _quoted(_short(formatter._expand_help(action) if action.help else ""))  # noqa: SLF001
            yield f"{start}{names}{value} -d {about}"
        elif action.choices is not None:
            yield f"{start} -f{value.removeprefix(' -x')}"


def _flag(option: str) -> str:
    return f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"


def _value(action: argparse.Action) -> str:
    """Return the part of a line that says what follows an option: nothing, a choice, a file, or another text."""
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return f" -x -a {_quoted(' '.join(map(str, action.choices)))}"
    is_file = action.type is Path or (action.type is None and action.metavar not in _NO_FILES)
    return " -r -F" if is_file else " -x"


def _short(text: str) -> str:
    return textwrap.shorten(text, 80, placeholder=" ...")


def _quoted(text: str) -> str:
    """Return a text in the single quotes of fish, inside which a backslash and a quote need a backslash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
