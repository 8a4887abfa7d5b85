"""What the documents show works: Python blocks run, commands parse, options, files and links exist."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import certifi
import pytest
from support.manifest import pixi_tasks

from triton_sam._common.bundle import checkout
from triton_sam.cli import build_parser

ROOT = checkout()
if ROOT is None:
    pytest.skip("documents are in the checkout only", allow_module_level=True)

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "test").rglob("*.md"))]
DOCUMENTS += [ROOT / "checkpoints" / "README.md", *sorted((ROOT / "triton_sam").rglob("*.md"))]
COMMANDS_PAGE = ROOT / "docs" / "reference" / "commands.md"
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
BLOCK = re.compile(r"(?ms)^( *)```(\w*)\n(.*?)^\1```$")
COMMAND = re.compile(r"\btriton-sam ([a-z]+)((?: [^\n`|;&#)]+)?)")


def blocks(*languages: str) -> list[tuple[str, str]]:
    """Blocks of code with where they stand."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        matches = [match for match in BLOCK.finditer(text) if match[2] in languages]
        found += [
            (f"{path.name}:{text[: match.start()].count(chr(10)) + 1}", textwrap.dedent(match[3])) for match in matches
        ]
    return found


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands by name."""
    (action,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return action.choices


def shown_commands() -> list[tuple[str, str]]:
    """Lines of code blocks that start `triton-sam`, as one would type them."""
    return [
        (place, line)
        for place, block in blocks("", "sh", "bash", "console", "shell")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("triton-sam ")
    ]


PYTHON = blocks("python")


@pytest.mark.parametrize(("place", "code"), PYTHON, ids=[place for place, _ in PYTHON])
def test_python_runs_as_it_stands(service_triton, place, code, tmp_path, monkeypatch, images):
    """Only the address is another, and what a fragment leaves out is there: client, place, what to do with masks."""
    code = code.replace("grpc://localhost:8001", service_triton.grpc_url)
    code = code.replace("localhost:8000", service_triton.http_url.removeprefix("http://"))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "images").symlink_to(images)
    shutil.copy(images / "shapes.jpg", tmp_path / "image.jpg")
    if "slide.tif" in code:
        pytest.importorskip("zarr")
        from support.large_images import draw, write_tiff

        write_tiff(tmp_path / "slide.tif", draw([(1510, 905, 1700, 1300)]))
    (tmp_path / "deploy" / "nginx" / "tls").mkdir(parents=True)
    shutil.copy(certifi.where(), tmp_path / "deploy" / "nginx" / "tls" / "ca.crt")  # of scripts/make_certificates.sh
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    if "licker" in code:
        names["clicker"] = clicked(service_triton.grpc_url)
    if re.search(r"(?m)^\S.*\bawait\b", code):
        asyncio.run(run_fragment(code, service_triton.grpc_url))
        return
    if "SAM2TritonClient" in code and "import" not in code:
        names["SAM2TritonClient"] = __import__("triton_sam").SAM2TritonClient
    exec(compile(code, place, "exec"), names)
    client = names.get("client")
    if "masks" in names:
        assert names["masks"].shape == (1, 1, 256, 256)
        assert names["iou"].shape == (1, 1)
    if "segment" in names:
        assert names["segment"].mask.shape == (600, 800)
        assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")
    if client is not None:
        client.close()


def clicked(url):
    """Return the widget for notebooks after a click, for lines that go on with it."""
    pytest.importorskip("anywidget")
    from triton_sam import SAM2TritonClient
    from triton_sam.integrations.notebook import Clicker

    with SAM2TritonClient(url) as client:
        clicker = Clicker("image.jpg", client)
        clicker.click(200, 180)
        assert len(clicker.segments) == 1
    return clicker


async def run_fragment(code: str, url: str) -> None:
    """Run lines that await something, with what stands around them in the text."""
    from triton_sam import SpeculativeSAM2Client

    shown: list = []
    async with SpeculativeSAM2Client(url) as client:
        await client.set_image_async("image.jpg")
        names = {"client": client, "x": 200, "y": 180, "show": lambda *result: shown.append(result)}
        exec("async def fragment():\n" + textwrap.indent(code + "\nreturn task\n", "    "), names)
        await (await names["fragment"]())
        await asyncio.sleep(0)
    assert len(shown) == 1


SHOWN = shown_commands()


@pytest.mark.parametrize(("place", "line"), SHOWN, ids=[f"{place} {line[11:40]}" for place, line in SHOWN])
def test_shown_commands_parse(place, line):
    words = shlex.split(line, comments=True)[1:]
    if any(word == "..." or "|" in word for word in words):
        pytest.skip("says itself that something is left out")
    with contextlib.redirect_stderr(None):
        assert build_parser().parse_args(words).command == words[0]


def test_there_are_commands_to_check():
    assert len(SHOWN) > 25
    assert len(PYTHON) >= 5


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_named_commands_and_options_exist(path):
    known = commands()
    # A kubectl namespace has the name of the project, too.
    text = re.sub(r"(?m)^.*\bkubectl\b.*$", "", path.read_text(encoding="utf-8"))
    # Compose puts the name of the service between the program and its arguments.
    text = re.sub(r"--entrypoint triton-sam [a-z-]+ ", "triton-sam ", text)
    for match in COMMAND.finditer(text):
        command, rest = match[1], match[2]
        assert command in known, match[0]
        options = known[command]._option_string_actions
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", rest.partition(" -- ")[0]):
            assert option in options, f"{option} in {match[0]!r}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_and_named_files_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text) + re.findall(r' (?:src|srcset)="([^"]+)"', text):
        assert "://" in target or (path.parent / target).exists(), target
    for name in re.findall(r"(?<![\w/.-])((?:scripts|deploy|docs|examples|test|triton_sam)/[\w./-]*\w)", text):
        if name.startswith(("deploy/nginx/tls", "test/output")) or "NAME" in name:  # programs or readers make them
            continue
        assert (ROOT / name).exists() or list((ROOT / Path(name).parent).glob(f"{Path(name).name}*")), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_named_tasks_exist(path):
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"pixi run (?:-e \w+ )?([a-z][\w-]*)", text)
    if path == COMMANDS_PAGE:  # the table's second column, whose short forms begin with "-"
        column = re.findall(r"(?m)^\|[^|]*\| ([^|]*) \|", text.partition("| `pixi run ...` |")[2])
        named += [name for cell in column for name in re.findall(r"`([a-z][\w-]*)`", cell)]
        assert len(named) > 20
    assert [name for name in named if name not in pixi_tasks()] == []


SCRIPT_OPTIONS = re.compile(r"(?:python )?((?:scripts|examples)/\w+\.py)((?: [^\n`|;&#)]+)?)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_options_of_named_scripts_exist(path):
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for match in SCRIPT_OPTIONS.finditer(text):
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", match[2])
        assert not [option for option in options if option not in script_help(match[1])], match[0]


@cache
def script_help(script: str) -> str:
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


PROGRAMS = [path for path in sorted((ROOT / "scripts").glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_every_script_explains_itself_and_does_nothing_else(path):
    assert script_help(f"scripts/{path.name}").startswith(f"usage: {path.name}")


def test_every_command_is_in_the_table_of_commands():
    page = COMMANDS_PAGE.read_text(encoding="utf-8")
    assert [name for name in commands() if not re.search(rf"`{name}\b|triton-sam {name}\b", page)] == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_every_page_of_the_site_is_in_its_navigation():
    navigation = re.findall(r"(?m)^ +- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(navigation) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def test_the_repository_has_one_address():
    """pyproject.toml says it; README and other documents repeat it for people who copy a line."""
    projects = [*DOCUMENTS, ROOT / "pyproject.toml"]
    clones = [url for path in projects for url in re.findall(r"git clone (http\S+)", path.read_text(encoding="utf-8"))]
    ours = {url for url in clones if "facebookresearch" not in url}
    match = re.search(r'(?m)^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert match is not None
    assert ours == {match[1]}
    assert f"git clone {match[1]}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_named_tests_exist():
    """docs/background/reliability.md names the tests that hold each promise."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "test").rglob("test_*.py")}
    text = (ROOT / "docs" / "background" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)(?:::([\w.]+))?`", text)
    assert len(named) > 40
    for stem, function in named:
        assert stem in files, stem
        for part in filter(None, function.split("...")):
            assert part.strip("_") in files[stem], f"{stem}::{function}"


def test_documents_that_the_code_names_exist():
    named = [
        (path.relative_to(ROOT), name)
        for folder in ("triton_sam", "scripts", "deploy", "model_repository", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".sh", ".js", ".html", ".pbtxt", ".yaml", ".yml", ".conf"}
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 10
    assert [(str(path), name) for path, name in named if not (ROOT / name).exists()] == []


WORDS = ("picture", "pictures", "mend", "mends", "mended", "kit", "kits", "figure", "figures", "bar", "bars")
"""CONTRIBUTING.md says which words stand for these."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_one_word_for_one_thing(path):
    text = path.read_text(encoding="utf-8").partition("### One word for one thing")[0]
    prose = re.sub(r"(?s)```.*?```|`[^`]*`|<[^>]*>|https?://\S+", "", text)
    assert [word for word in re.findall(r"[a-z]+", prose.lower()) if word in WORDS] == []
