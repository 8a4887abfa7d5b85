"""Standard output takes every text."""

from __future__ import annotations

import io
import sys

import pytest

from triton_sam._common.printing import print_every_text


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "caf\udce9 ż ≈".encode("utf-8", "surrogateescape")), ("ascii", rb"caf" + b"\xe9" + rb" \u017c \u2248")],
)
def test_every_text_is_printed(encoding: str, written: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a file with a byte that is not UTF-8, a letter and a sign, in a locale with UTF-8 and in C."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    print_every_text()
    print("caf\udce9 ż ≈", end="", flush=True)
    assert output.getvalue() == written
