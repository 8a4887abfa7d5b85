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


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of wrong options, without the line that names the help."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    error, see = captured.err.splitlines()
    assert see == f"see `{error.partition(': ')[0]} --help`"
    return error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["predct", "x.jpg"], "; did you mean predict?"),
        (["predict", "x.jpg", "--pont", "3,4"], "error: unrecognized arguments: --pont 3,4; did you mean --point?"),
        (["predict", "x.jpg", "--overlya=y.png"], "; did you mean --overlay?"),
        (["annotate", "photos", "--with", "words", "--out", "x", "--words", "dog"], "; did you mean --text?"),
        (["serve", "--grpc-prot", "1"], "; did you mean --grpc-port?"),
        (["verify", "sam2-vidoe"], "; did you mean sam2-video?"),
        (["predict", "x.jpg", "--point", "-5,-5"], "; write a value that begins with a minus sign as --point=-5,-5"),
    ],
)
def test_an_error_names_what_was_probably_meant(arguments, text, capsys):
    assert refused(arguments, capsys).endswith(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["everything", "x.jpg", "--points-per-side", "abc"], "--points-per-side must be a whole number, not 'abc'"),
        (["everything", "x.jpg", "--points-per-side", "1.5"], "--points-per-side must be a whole number, not '1.5'"),
        (["everything", "x.jpg", "--pred-iou-thresh=abc"], "--pred-iou-thresh must be a number, not 'abc'"),
        (["predict", "x.jpg", "--point", "5"], "argument --point: '5' is not X,Y or X,Y,LABEL"),  # as argparse says it
    ],
)
def test_a_number_that_is_none_is_told_without_the_types_of_python(arguments, text, capsys):
    assert f"error: {text}" in refused(arguments, capsys)


@pytest.mark.parametrize(
    "arguments",
    [["predict", "x.jpg", "--qqqqqq"], ["qqqqqq"], ["predict", "x.jpg", "--point"], ["models", "one", "two"]],
)
def test_no_hint_where_nothing_is_similar(arguments, capsys):
    error = refused(arguments, capsys)
    assert "did you mean" not in error
    assert "minus sign" not in error


def test_a_negative_point_reaches_the_check_of_prompts(capsys, images):
    assert main(["predict", str(images / "shapes.jpg"), "--point=-5,-5", "--url", "127.0.0.1:9"]) == 1
    assert "point (-5, -5) lies outside the image" in capsys.readouterr().err


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
