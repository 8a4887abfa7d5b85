"""Errors of the command line name what was probably meant; the help lists all commands in groups."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from triton_sam.cli import COMMANDS, GROUPS, main
from triton_sam.commands import models
from triton_sam.commands._parser import name_of, similar, summary


def test_similar_names():
    assert similar("--piont", ["--point", "--box"]) == "; did you mean --point?"
    assert similar("--quality", ["--point", "--box"]) == ""


def test_without_arguments_the_list_of_commands_is_shown(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\nservers:\n  serve " in captured.err


def test_the_help_lists_every_command_once_in_its_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: triton-sam [-h] [--version] COMMAND ...\n")
    lines = text.splitlines()
    for title, commands in GROUPS.items():
        assert f"{title}:" in lines
        for command in commands:
            (line,) = [line for line in lines if line.split(" ")[2:3] == [name_of(command)] and line.startswith("  ")]
            assert summary(command).startswith(line.split(maxsplit=1)[1])
    assert len(set(COMMANDS)) == len(COMMANDS)
    assert max(map(len, lines)) <= 100


def test_each_command_has_help_and_a_summary_of_one_sentence(capsys):
    """The help takes the first line of the module's docstring: that must not be the beginning of a longer one."""
    for module in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([name_of(module), "--help"])
        assert caught.value.code == 0
        assert f"usage: triton-sam {name_of(module)} " in capsys.readouterr().out
        first, *rest = module.__doc__.strip().splitlines()
        assert first.endswith("."), module
        assert not rest or rest[0] == "", module


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_completion_knows_commands_and_options(shell, capsys, tmp_path):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "predict" in script
    assert "overlay" in script
    if shell == "bash":
        (tmp_path / "completion").write_text(script)
        subprocess.run(["bash", "-n", str(tmp_path / "completion")], check=True)


def test_the_completion_of_fish_has_commands_options_choices_and_files(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)  # fish does not need it
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in COMMANDS:
        start = f"complete -c triton-sam -n __triton_sam_at_start -f -a {name_of(command)} -d "
        assert [line for line in lines if line.startswith(start)], command
    in_predict = "complete -c triton-sam -n '__triton_sam_in predict'"
    assert [line for line in lines if line.startswith(f"{in_predict} -l overlay -r -F -d ")]
    assert [line for line in lines if line.startswith(f"{in_predict} -l point -x -d ")]
    assert "complete -c triton-sam -n '__triton_sam_in completion' -f -a 'bash zsh tcsh fish'" in lines


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("typed", "some"),
    [
        ("", {"predict", "serve", "doctor"}),
        ("predict --overl", {"--overlay"}),
        ("completion ", {"bash", "fish"}),
        ("predict --format ge", {"geojson"}),
        ("predict shap", {"shapes.png"}),
        ("predict --out shap", {"shapes.png"}),
        ("predict --point shap", set()),
    ],
)
def test_fish_completes(typed, some, capsys, tmp_path):
    (tmp_path / "shapes.png").touch()
    main(["completion", "fish"])
    (tmp_path / "script.fish").write_text(capsys.readouterr().out)
    order = f"source script.fish; complete -C 'triton-sam {typed}'"
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", order], cwd=tmp_path, env=home, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    offered = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    assert offered >= some
    assert len(offered) == len(some) or len(some) > 1


def test_the_completion_without_its_package_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "completion" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_command_that_removes_its_files(tmp_path, monkeypatch, capsys, number):
    """Every command, also those that make a temporary export or start a server."""

    def run(args):
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            assert Path(folder).exists()
            os.kill(os.getpid(), getattr(signal, number))
            time.sleep(60)

    monkeypatch.setattr(models, "run", run)
    assert main(["models"]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == "triton-sam: interrupted\n"
