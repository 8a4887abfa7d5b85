"""Command-line names agree: a variant is --name, a repository --model-repository, a size --size, everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from triton_sam.cli import build_parser

GIVEN = {
    "benchmark": [],
    "evaluate": ["--dataset", "x", "--out", "y"],
    "export": ["sam2", "--random", "0"],
    "predict": ["x.jpg"],
    "setup": ["sam2"],
    "verify": ["sam2", "--random"],
}
WITH_REPOSITORY = ("benchmark", "download", "evaluate", "export", "models", "predict", "serve", "setup")


def parse(command: str, *options: str) -> argparse.Namespace:
    return build_parser().parse_args([command, *GIVEN.get(command, ()), *options])


def test_a_variant_and_a_repository_have_two_spellings_each() -> None:
    for command in GIVEN:
        names = {parse(command, flag, "large").name for flag in ("--name", "--model-name")}
        assert names == {"large"}, command
    for command in WITH_REPOSITORY:
        family = ["sam2"] if command == "download" else []
        given = [parse(command, *family, flag, "models") for flag in ("--model-repository", "--output-dir")]
        assert [args.model_repository for args in given] == [Path("models")] * 2, command


@pytest.mark.parametrize(("command", "hidden"), [("export", "--output-dir"), ("verify", "--model-name")])
def test_one_spelling_is_documented(command: str, hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(command, "--help")
    shown = capsys.readouterr().out
    assert "--name VARIANT" in shown
    assert hidden not in shown


@pytest.mark.parametrize("command", ["download", "setup"])
@pytest.mark.parametrize("options", [["tiny"], ["--size", "tiny"], ["tiny", "--size", "tiny"]])
def test_a_size_may_be_a_word_or_an_option(command: str, options: list[str]) -> None:
    from triton_sam.commands.download import chosen_size

    assert chosen_size(build_parser().parse_args([command, "sam2", *options])) == "tiny"


@pytest.mark.parametrize(
    ("command", "family", "options", "model"),
    [
        ("export", "sam1", ["--size", "vit_l"], "vit_l"),
        ("export", "sam1", ["--model-type", "vit_l"], "vit_l"),
        ("verify", "sam1", ["--model-cfg", "vit_l"], "vit_l"),
        ("export", "sam2", ["--size", "base_plus"], "configs/sam2.1/sam2.1_hiera_b+.yaml"),
        ("export", "sam2", ["--size", "b+"], "configs/sam2.1/sam2.1_hiera_b+.yaml"),
        ("export", "sam2", ["--model-cfg", "mine.yaml"], "mine.yaml"),
        ("verify", "sam3", ["--full"], "full"),
        ("verify", "sam3", ["--size", "full"], "full"),
        ("verify", "sam3", [], "reduced"),
    ],
)
def test_a_size_in_all_its_spellings(command: str, family: str, options: list[str], model: str) -> None:
    from triton_sam.commands import _families

    source = ["--random", "0"] if command == "export" else ["--random"]
    args = build_parser().parse_args([command, family, *source, *options])
    assert _families.model(args, command, is_random=True) == model
