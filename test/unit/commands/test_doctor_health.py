"""`triton-sam doctor` on memory, disk and the packages of the service; `health` of pairs of another image size."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.client.server_models import ServerModels
from triton_sam.commands import doctor, health


@pytest.fixture
def findings(tmp_path, capsys):
    """Return a function that runs the command, and returns its findings by subject."""
    shutil.copytree(bundled("model_repository") / "sam2_decoder", tmp_path / "sam2_decoder")

    def find():
        main(["doctor", "--json", "--url", "127.0.0.1:9", "--model-repository", str(tmp_path)])
        return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}

    return find


@pytest.mark.parametrize("command", ["doctor", "models"])
def test_a_config_that_cannot_be_read_is_one_line_among_the_others(tmp_path, capsys, command):
    for name in ("sam2_decoder", "sam2_encoder"):
        shutil.copytree(bundled("model_repository") / name, tmp_path / name)
    (tmp_path / "sam2_encoder" / "config.pbtxt").write_text("backend {{{")
    main([command, "--model-repository", str(tmp_path)])
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line for line in out.splitlines() if "sam2_encoder" in line]
    assert len([line for line in lines if "not a valid config.pbtxt: 1:" in line]) == 1
    assert "sam2_decoder" in out


def test_config_names_the_file_that_it_cannot_read(tmp_path, capsys):
    shutil.copytree(bundled("model_repository") / "sam2_encoder", tmp_path / "sam2_encoder")
    broken = tmp_path / "sam2_encoder" / "config.pbtxt"
    broken.write_text("backend {{{")
    assert main(["config", "--instances", "2", "--model-repository", str(tmp_path)]) == 1
    assert f"error: {broken}: not a valid config.pbtxt: 1:" in capsys.readouterr().err


def test_enough_of_everything(findings, tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.setattr(doctor, "MEMORY_TO_SERVE", 1)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**12))
    found = findings()
    assert {found[name]["status"] for name in ("service", "memory", "disk")} == {"ok"}
    assert re.fullmatch(r"\d+\.\d GB free", found["memory"]["text"])
    assert found["disk"]["text"] == f"1000.0 GB free in {tmp_path}"


def test_too_little_is_a_note_that_says_what_to_do(findings, monkeypatch):
    monkeypatch.setattr(doctor, "MEMORY_TO_SERVE", 1 << 50)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**9))
    monkeypatch.setattr(doctor, "find_package", lambda name: None)
    found = findings()
    assert {found[name]["status"] for name in ("service", "memory", "disk")} == {"note"}
    assert found["disk"]["text"].startswith("1.0 GB free in ")
    assert "--model-repository" in found["disk"]["mend"]
    assert "[service]" in found["service"]["mend"]
    assert found["memory"]["mend"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (subprocess.TimeoutExpired("nvidia-smi", 10), "nvidia-smi does not answer within 10 s: no GPU"),
        (PermissionError(13, "Permission denied"), "nvidia-smi cannot be run (Permission denied): no GPU"),
    ],
)
def test_a_tool_that_does_not_answer_is_told_in_plain_words(monkeypatch, error, text):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(error))
    assert doctor._tool("GPU", ["nvidia-smi", "-L"], "no GPU").text == text


@pytest.mark.parametrize(
    ("family", "has_session_model", "use"),
    [
        ("edgetam", False, "for videos only"),
        ("edgetam", True, "for videos only"),
        ("sam1", False, "clients cannot use it"),
    ],
)
def test_a_pair_of_another_size_is_not_for_clicks(monkeypatch, capsys, family, has_session_model, use):
    """A session model of it cannot work, since clients send images of the official size."""
    names = ["small_encoder", "small_decoder", *["small"] * has_session_model]
    models = ServerModels(dict.fromkeys(names, "1"), {family: ("small",)}, frozenset())
    monkeypatch.setattr(health, "_served", lambda _: (models, {"small": 512}))
    assert main(["health", "--url", "localhost:1"]) == int(has_session_model)
    said = "".join(capsys.readouterr())
    assert f"model pair small: {use}, its encoder takes 512 pixels" in said
    assert ("session model small: its encoder must take 1024 pixels" in said) == has_session_model
