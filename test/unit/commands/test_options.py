"""Options of several commands: where the server is and how it lets one in, and names that agree everywhere.

A variant is --name, a repository --model-repository, a size --size.
"""

import argparse
from pathlib import Path
from typing import Any

import pytest

from triton_sam.cli import build_parser, main
from triton_sam.commands import _families, _options
from triton_sam.commands.download import chosen_size
from triton_sam.errors import ConfigurationError
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

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


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch, scheme):
    monkeypatch.setenv("TRITON_TOKEN", "secret\rABC")
    with pytest.raises(ConfigurationError, match="Authorization") as caught:
        Transport(parse_url(f"{scheme}://localhost"), **access())
    assert "secret" not in str(caught.value)


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


@pytest.mark.parametrize(("command", "hidden"), [("export", "--output-dir"), ("verify", "--model-name")])
def test_one_spelling_is_documented(command, hidden, capsys):
    with pytest.raises(SystemExit):
        parse(command, "--help")
    shown = capsys.readouterr().out
    assert "--name VARIANT" in shown
    assert hidden not in shown


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
