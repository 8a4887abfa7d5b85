"""Pairs whose images have another size than clients send."""

import pytest

from triton_sam.cli import main
from triton_sam.client.server_models import ServerModels
from triton_sam.commands import health


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
