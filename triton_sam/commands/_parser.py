"""The parser of the command line. Its errors suggest the intended option or command."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

_CUTOFF = 0.6  # minimum similarity of a suggestion; the default of difflib

_MEANT = {"--words": "--text", "--prompt": "--text", "--label": "--text"}
"""Names that users may guess, mapped to the differently spelled names that they mean."""

_NUMBERS = {"int": "a whole number", "float": "a number"}
_NO_NUMBER = re.compile(r"argument (.+?): invalid (int|float) value: (.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the intended option or command. Subcommands use the same class."""

    page: Parser | None = None
    """The parser whose help is shown instead, because argparse cannot list commands in groups."""
    rewrite: Callable[[Sequence[str]], list[str]] | None = None
    """Translates an earlier spelling of the command."""
    complete: Callable[[], None] | None = None
    """Adds the options before the first use of the parser."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Parser] = {}

    def with_options(self) -> Parser:
        """Add the options with `complete`, and return this parser."""
        complete, self.complete = self.complete, None
        if complete is not None:
            complete()
        return self

    def with_commands(self) -> Parser:
        """Add the options of each command, and return this parser."""
        for command in self.commands.values():
            command.with_options()
        return self

    def add_task(self, group: Any, name: str, text: str) -> Parser:
        """Add a subcommand to the group that add_subparsers() made. ``text`` begins in lower case, without a period."""
        task: Parser = group.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        self.commands[name] = task
        task.set_defaults(parser=task)
        return task

    def format_help(self) -> str:
        self.with_options()
        return super().format_help() if self.page is None else self.page.format_help()

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments as argparse does, and keep them for error messages."""
        self.with_options()
        given = list(sys.argv[1:] if args is None else args)
        self._given = given if self.rewrite is None else self.rewrite(given)
        return super().parse_known_args(self._given, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error with a hint and the command for help, and exit with 2.

        argparse would print the whole usage first, up to 17 lines, and name Python's types.
        """
        number = _NO_NUMBER.fullmatch(message)
        if number:
            message = f"{number[1]} must be {_NUMBERS[number[2]]}, not {number[3]}"
        self._fail(message + (self._hint(message) or ""))

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse unknown arguments, as argparse does, and suggest similar options."""
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
        """Return the argument after an option if it looks like one or more numbers that begin with a minus."""
        for one, following in zip(self._given, self._given[1:], strict=False):
            if one == option and re.match(r"-[\d.]", following):
                return following
        return None


def similar(given: str, known: Iterable[str]) -> str:
    """Return a suffix for an error, such as "; did you mean --point?"; "" if no known name is similar."""
    found = difflib.get_close_matches(given, list(known), n=1, cutoff=_CUTOFF)
    return f"; did you mean {found[0]}?" if found else ""
