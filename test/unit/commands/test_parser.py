"""The parser of all commands: what it imports, completion, signals, and options that agree everywhere."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from triton_sam.cli import build_parser, main
from triton_sam.commands import _families, _options, models
from triton_sam.commands.download import chosen_size


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


GIVEN = {
    "benchmark": [],
    "evaluate": ["--dataset", "x", "--out", "y"],
    "export": ["sam2", "--random", "0"],
    "predict": ["x.jpg"],
    "setup": ["sam2"],
    "verify": ["sam2", "--random"],
}
WITH_REPOSITORY = ("benchmark", "download", "evaluate", "export", "models", "predict", "serve", "setup")


def access(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    _options.add_access(parser)
    return _options.access(parser.parse_args(arguments))


def test_a_token_is_sent_without_what_surrounds_it_in_its_file(monkeypatch):
    monkeypatch.setenv("TRITON_TOKEN", "secretABC\r\n")
    assert access()["headers"] == {"Authorization": "Bearer secretABC"}
    assert access("--token", " other ")["headers"] == {"Authorization": "Bearer other"}
    assert access("--token", "")["headers"] is None
    monkeypatch.setenv("TRITON_TOKEN", "\n")
    assert access()["headers"] is None


def test_a_file_in_the_place_of_a_folder_is_told(capsys, tmp_path, monkeypatch):
    (tmp_path / "results").touch()
    monkeypatch.setattr("triton_sam.commands.doctor.run", lambda args: (tmp_path / "results").mkdir(exist_ok=True))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().err
    assert said == f"triton-sam: error: {tmp_path}/results is a file: give a folder, or another name\n"


def parse(command: str, *options: str) -> argparse.Namespace:
    return build_parser().parse_args([command, *GIVEN.get(command, ()), *options])


def test_a_variant_and_a_repository_have_two_spellings_each():
    for command in GIVEN:
        names = {parse(command, flag, "large").name for flag in ("--name", "--model-name")}
        assert names == {"large"}, command
    for command in WITH_REPOSITORY:
        family = ["sam2"] if command == "download" else []
        given = [parse(command, *family, flag, "models") for flag in ("--model-repository", "--output-dir")]
        assert [args.model_repository for args in given] == [Path("models")] * 2, command


@pytest.mark.parametrize("words", ["tiny", "--size tiny", "tiny --size tiny"])
def test_a_size_may_be_a_word_or_an_option(words):
    for command in ("download", "setup"):
        assert chosen_size(build_parser().parse_args([command, "sam2", *words.split()])) == "tiny"


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("export sam1 --random 0 --size vit_l", "vit_l"),
        ("export sam1 --random 0 --model-type vit_l", "vit_l"),
        ("verify sam1 --random --model-cfg vit_l", "vit_l"),
        ("export sam2 --random 0 --size base_plus", "configs/sam2.1/sam2.1_hiera_b+.yaml"),
        ("export sam2 --random 0 --size b+", "configs/sam2.1/sam2.1_hiera_b+.yaml"),
        ("export sam2 --random 0 --model-cfg mine.yaml", "mine.yaml"),
        ("verify sam3 --random --full", "full"),
        ("verify sam3 --random --size full", "full"),
        ("verify sam3 --random", "reduced"),
    ],
)
def test_a_size_in_all_its_spellings(line, model):
    words = line.split()
    assert _families.model(build_parser().parse_args(words), words[0], is_random=True) == model
