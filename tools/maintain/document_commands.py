"""Checks of the commands, options and Pixi tasks in documents and in pyproject.toml."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache

from tools.maintain.documents import Checkout
from triton_sam.cli import build_parser
from triton_sam.commands._parser import Parser

COMMAND = re.compile(r"\btriton-sam ([a-z]+)((?: [^\n`|;&#)]+)?)")
SCRIPT = re.compile(r"(?:python )?((?:scripts|examples|tools/\w+)/\w+\.py)((?: [^\n`|;&#)]+)?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
SHELLS = ("", "sh", "bash", "console", "shell")

parser = cache(build_parser)


@cache
def commands() -> dict[str, Parser]:
    """Return the parsers of the commands by name."""
    return dict(parser().with_commands().commands)


def options(command: Parser) -> set[str]:
    """Return the options of a command and of its subcommands."""
    return {*command._option_string_actions}.union(*(options(part) for part in command.commands.values()))  # noqa: SLF001


def parses(words: list[str]) -> bool:
    """Return whether the command line accepts the arguments of `triton-sam`, if they are complete."""
    if any(word == "..." or "|" in word for word in words):
        return True
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return bool(parser().parse_args(words).command == words[0])
        except SystemExit as ended:
            return ended.code == 0


def shown_commands(checkout: Checkout) -> Iterator[str]:
    """Yield commands that do not parse, in lines of code blocks and in the evidence of docs/evidence/claims.md."""
    for document in checkout.documents:
        for language, position, block in document.blocks():
            for line in re.sub(r" *\\\n *", " ", block).splitlines() if language in SHELLS else ():
                if line.strip().startswith("triton-sam ") and not parses(shlex.split(line, comments=True)[1:]):
                    yield f"{document.at(position)}: this does not parse: {line.strip()}"
        if document.path.as_posix() == "docs/evidence/claims.md":
            for position, code in document.inline():
                words = shlex.split(code)[1:] if code.startswith("triton-sam ") else []
                if len(words) > 1 and not parses(words):
                    yield f"{document.at(position)}: this does not parse: {code}"


def named_commands(checkout: Checkout) -> Iterator[str]:
    """Yield missing commands and options that a document mentions."""
    for document in checkout.documents:
        # A kubectl namespace is named like the project, and Compose has a service between program and arguments.
        text = re.sub(r"(?m)^.*\bkubectl\b.*$", lambda match: " " * len(match[0]), document.text)
        text = re.sub(r"--entrypoint triton-sam [a-z-]+ ", lambda match: "triton-sam ".rjust(len(match[0])), text)
        for match in COMMAND.finditer(text):
            if match[1] not in commands():
                yield f"{document.at(match.start())}: there is no command {match[1]!r}"
                continue
            known = options(commands()[match[1]])
            for option in OPTION.findall(match[2].partition(" -- ")[0]):
                if option not in known:
                    yield f"{document.at(match.start())}: `triton-sam {match[1]}` has no option {option}"


def table_of_commands(checkout: Checkout) -> Iterator[str]:
    """Yield commands that are missing in docs/reference/commands.md."""
    page = checkout.read("docs/reference/commands.md")
    for name in commands():
        if not re.search(rf"`{name}\b|triton-sam {name}\b", page):
            yield f"docs/reference/commands.md: {name} is missing"


def options_of_scripts(checkout: Checkout) -> Iterator[str]:
    """Yield missing options of mentioned scripts."""
    for document in checkout.documents:
        text = document.text.replace("\\\n", "  ")
        for match in SCRIPT.finditer(text):
            if match[1] in checkout.paths:  # else its name is a fault
                for option in sorted(set(OPTION.findall(match[2])) - script_options(checkout, match[1])):
                    yield f"{document.at(match.start())}: {match[1]} has no option {option}"


def script_options(checkout: Checkout, name: str) -> set[str]:
    """Return the options of a script, from its source and the imported modules with parsers."""
    pending, seen, found = [name], set(), {"--help"}
    while pending:
        name = pending.pop()
        if name in seen or name not in checkout.code:
            continue
        seen.add(name)
        text = checkout.code[name]
        found |= set(re.findall(r'"(--[a-z][\w-]*)"', text))
        found |= {f"--no-{option[2:]}" for option in found if "BooleanOptionalAction" in text}
        for module, names in re.findall(r"(?m)^ *from (triton_sam[\w.]*) import (.*)$", text):
            places = [module, *(f"{module}.{each}" for each in re.findall(r"\w+", names))]
            modules = [f"{place.replace('.', '/')}{end}" for place in places for end in (".py", "/__init__.py")]
            pending += [each for each in modules if "add_argument(" in checkout.code.get(each, "")]
    return found


def named_tasks(checkout: Checkout) -> Iterator[str]:
    """Yield Pixi tasks that documents mention and pyproject.toml lacks."""
    for document in checkout.documents:
        named = [
            (match.start(), match[1]) for match in re.finditer(r"pixi run (?:-e \w+ )?([a-z][\w-]*)", document.text)
        ]
        if document.path.as_posix() == "docs/reference/commands.md":
            # The second column of the table, in which short forms begin with "-".
            start = document.text.find("| `pixi run ...` |")
            for row in re.compile(r"(?m)^\|[^|]*\| ([^|]*) \|").finditer(document.text, max(start, 0)):
                named += [(row.start(), name) for name in re.findall(r"`([a-z][\w-]*)`", row[1])]
        for position, name in named:
            if name not in checkout.tasks:
                yield f"{document.at(position)}: there is no task {name}"


def environments(checkout: Checkout) -> Iterator[str]:
    """Yield missing features, and tasks with an ambiguous environment."""
    pixi = checkout.project["tool"]["pixi"]
    features = pixi.get("feature", {})
    places = {name: ["default"] if name in pixi.get("tasks", {}) else [] for name in checkout.tasks}
    for environment in pixi.get("environments", {}).values():
        for feature in environment["features"] if isinstance(environment, dict) else environment:
            if feature not in features:
                yield f"pyproject.toml: there is no feature {feature}"
            for name in features.get(feature, {}).get("tasks", {}):
                places[name].append(feature)
    for name, found in places.items():
        # Pixi uses the default environment if all others also have the task, else the only environment with the task.
        if len(found) != 1:
            yield f"pyproject.toml: task {name} is in {len(found)} environments: {', '.join(found)}"


def extras(checkout: Checkout) -> Iterator[str]:
    """Yield extras that Pixi installs and the project lacks."""
    pixi = checkout.project["tool"]["pixi"]
    for part in (pixi, *pixi.get("feature", {}).values()):
        for extra in part.get("pypi-dependencies", {}).get("triton-sam", {}).get("extras", []):
            if extra not in checkout.project["project"].get("optional-dependencies", {}):
                yield f"pyproject.toml: there is no extra {extra}"


def tasks(checkout: Checkout) -> Iterator[str]:
    """Yield tasks that need a missing task, or whose command cannot start."""
    for name, task in checkout.tasks.items():
        for needed in task.get("depends-on", []):
            if needed not in checkout.tasks:
                yield f"pyproject.toml: task {name} depends on {needed}, which does not exist"
        for command in task.get("cmd", "").split("&&"):
            words = shlex.split(re.sub(r"^ *(?:[A-Z_]+=\S* )*", "", command))
            if words and not starts(checkout, words):
                yield f"pyproject.toml: task {name} cannot start {command.strip()}"


def starts(checkout: Checkout, words: list[str]) -> bool:
    """Return whether a task's command consists of a known program, existing files and their options."""
    program, *arguments = words
    if program == "triton-sam":
        return parses(["track", "clip.mp4", "--out", "masks"] if arguments == ["track"] else arguments)
    if program == "python":
        given = {option for each in arguments for option in OPTION.findall(each)}
        return arguments[0] in checkout.paths and given <= script_options(checkout, arguments[0])
    if program == "pytest":
        return all(each in checkout.paths for each in arguments if not each.startswith("-") and not each.isdigit())
    return program in ("git", "mypy", "ruff")


CHECKS = (
    *(shown_commands, named_commands, table_of_commands, options_of_scripts),
    *(named_tasks, environments, extras, tasks),
)
