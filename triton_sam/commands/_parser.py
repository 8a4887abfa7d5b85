"""The parser of the command line: errors that name what was probably meant, and a list of commands in groups."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import NoReturn

_WIDTH = 100
_CUTOFF = 0.6  # the similarity of difflib from which a name may have been meant; its own default

_MEANT = {"--words": "--text", "--prompt": "--text", "--label": "--text"}
"""Names that users may guess, by which they mean another one that is not spelled alike."""

_NUMBERS = {"int": "a whole number", "float": "a number"}
_NO_NUMBER = re.compile(r"argument (.+?): invalid (int|float) value: (.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser whose errors say which option or command was probably meant. Its commands have the same parser."""

    page: Parser | None = None
    """The parser whose help is shown instead: argparse itself lists commands without groups."""

    def format_help(self) -> str:
        """Return the help."""
        return super().format_help() if self.page is None else self.page.format_help()

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments as argparse does, and remember them for the text of an error."""
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error with a hint and the command of the help, and exit with 2.

        argparse would print the whole usage first, up to 17 lines, and name Python's types.
        """
        number = _NO_NUMBER.fullmatch(message)
        if number:
            message = f"{number[1]} must be {_NUMBERS[number[2]]}, not {number[3]}"
        self._fail(message + (self._hint(message) or ""))

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse arguments that nothing takes, as argparse does, and name similar options.

        Args:
            unknown: the arguments.
        """
        text = f"unrecognized arguments: {' '.join(unknown)}"
        options = [option for option in unknown if option.startswith("-")]
        known = [name for action in self._actions for name in action.option_strings]
        for option in options:
            name = option.partition("=")[0]
            text += similar(_MEANT.get(name, name), known)
        self._fail(text)

    def _fail(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nsee `{self.prog} --help`\n")

    def _hint(self, message: str) -> str | None:
        choice = re.match(r"argument (?:[^:]*): invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            return similar(choice[1], re.findall(r"[\w.-]+", choice[2]))
        option = re.match(r"argument (?:.*/)?(--[\w-]+): expected (?:one|at least one) argument", message)
        negative = option and self._negative_after(option[1])
        return (
            f"; write a value that begins with a minus sign as {option[1]}={negative}" if option and negative else None
        )

    def _negative_after(self, option: str) -> str | None:
        """Return the argument after an option if it looks like a negative number, or like several numbers."""
        for one, following in zip(self._given, self._given[1:], strict=False):
            if one == option and re.match(r"-[\d.]", following):
                return following
        return None


def similar(given: str, known: Iterable[str]) -> str:
    """Return a question for the end of an error, such as "; did you mean --point?"; "" if no known name is similar.

    Args:
        given: what the user wrote.
        known: the names that exist.
    """
    found = difflib.get_close_matches(given, list(known), n=1, cutoff=_CUTOFF)
    return f"; did you mean {found[0]}?" if found else ""


def name_of(command: ModuleType) -> str:
    """Return the name of the command that a module has."""
    return command.__name__.rpartition(".")[2]


def summary(command: ModuleType) -> str:
    """Return the first line of the text of a command."""
    return (command.__doc__ or "").strip().splitlines()[0]


def list_of_commands(groups: Mapping[str, Sequence[ModuleType]]) -> str:
    """Return the help text that lists commands by group.

    Args:
        groups: modules of commands by the title of their group.
    """
    wide = max(len(name_of(command)) for commands in groups.values() for command in commands) + 4
    lines = []
    for title, commands in groups.items():
        lines += ["", f"{title}:"]
        for command in commands:
            text = textwrap.wrap(summary(command), _WIDTH - wide)
            lines.append(f"  {name_of(command):<{wide - 2}}{text[0]}")
            lines += [" " * wide + line for line in text[1:]]
    return "\n".join(lines)
