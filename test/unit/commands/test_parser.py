"""The help lists all commands in groups; the completion knows them; a signal ends each of them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from triton_sam.cli import main
from triton_sam.commands import models
from triton_sam.commands._table import GROUPS

COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


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
        for command, summary in commands.items():
            (line,) = [line for line in lines if line.split(" ")[2:3] == [command] and line.startswith("  ")]
            assert summary.startswith(line.split(maxsplit=1)[1])
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(("command", "summary"), COMMANDS.items(), ids=COMMANDS)
def test_the_help_of_a_command_begins_with_its_line_in_the_list(command, summary, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: triton-sam {command} ")
    assert summary.endswith(".")
    assert f"\n\n{summary}\n" in text


@pytest.mark.parametrize("argument", ["--version", "--help", "serv"])
def test_the_program_imports_a_command_and_numpy_when_they_are_called(argument):
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from triton_sam.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=False)
    loaded = done.stdout.split()
    assert "triton_sam.commands._table" in loaded
    assert "numpy" not in loaded
    assert "triton_sam.commands.serve" not in loaded


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_knows_commands_and_options(shell, capsys, tmp_path):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "predict" in script
    assert "overlay" in script
    if shell == "bash":
        (tmp_path / "completion").write_text(script)
        subprocess.run(["bash", "-n", str(tmp_path / "completion")], check=True)


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
