"""Options that several commands share: where the server is, and how it lets one in."""

import argparse

import pytest

from triton_sam.cli import main
from triton_sam.commands import _options
from triton_sam.errors import ConfigurationError
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url


def access(*arguments):
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
    assert (
        capsys.readouterr().err == f"triton-sam: error: {tmp_path}/results is a file: give a folder, or another name\n"
    )
