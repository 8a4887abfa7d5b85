"""The option --decoder-in-session of `config`, `serve` and `benchmark`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.family_configs import config_text

from triton_sam.cli import main
from triton_sam.errors import ConfigurationError
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.repository.config import parse_config
from triton_sam.repository.names import DECODER_IN_SESSION, DECODER_IN_SESSION_VARIABLE

MODELS = ("sam2", "sam2_encoder", "sam2_decoder", "sam2_video")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in MODELS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config_text(name))
    return tmp_path


@pytest.mark.parametrize("model", ["sam1", "sam2", "sam3"])
def test_session_models_get_the_parameter_and_lose_it_without_a_trace(model: str) -> None:
    tuning = Tuning(decoder_in_session=True)
    tuned = tune(config_text(model), tuning)
    assert parse_config(tuned).parameters[DECODER_IN_SESSION].string_value == "true"
    assert tune(tuned, tuning) == tuned
    assert tune(tuned, Tuning()) == config_text(model)


@pytest.mark.parametrize("model", MODELS[1:])
def test_other_models_stay_as_they_are(model: str) -> None:
    assert tune(config_text(model), Tuning(decoder_in_session=True)) == config_text(model)


@pytest.mark.parametrize(
    "wrong", [{"gpus": (0,)}, {"accelerator": "cuda"}, {"accelerator": "tensorrt"}, {"decoder_accelerator": "cuda"}]
)
def test_gpus_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigurationError, match="--decoder-in-session is for CPUs"):
        Tuning(decoder_in_session=True, **wrong)
    assert Tuning("openvino", decoder_in_session=True).decoder_in_session


def test_config_writes_the_parameter(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["config", "--model-repository", str(repository)]
    assert main([*command, "--decoder-in-session", "--gpus", "0"]) == 1
    assert "--decoder-in-session is for CPUs" in capsys.readouterr().err
    assert main([*command, "--decoder-in-session", "--dry-run"]) == 0
    assert f'+parameters {{ key: "{DECODER_IN_SESSION}"' in capsys.readouterr().out
    assert {name: (repository / name / "config.pbtxt").read_text() == config_text(name) for name in MODELS} == (
        dict.fromkeys(MODELS, True)
    )
    assert main([*command, "--decoder-in-session"]) == 0
    assert capsys.readouterr().out.split() == ["sam2"]
    assert main([*command, "--accelerator", "none"]) == 0
    assert (repository / "sam2" / "config.pbtxt").read_text() == config_text("sam2")


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [([], None, False), ([], "1", True), ([], "0", False), (["--decoder-in-session"], None, True)],
)
def test_serve_passes_the_choice_on(
    monkeypatch: pytest.MonkeyPatch, options: list[str], variable: str | None, expected: bool
) -> None:
    given: dict = {}
    module = importlib.import_module("triton_sam.local_server.serve")
    monkeypatch.setattr(module, "serve", lambda *_, **options: given.update(options) or 0)
    monkeypatch.delenv(DECODER_IN_SESSION_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(DECODER_IN_SESSION_VARIABLE, variable)
    assert main(["serve", *options]) == 0
    assert given["decoder_in_session"] is expected
