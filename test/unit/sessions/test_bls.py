"""A call of a session model to another model, whose answer may lack an output."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from triton_sam.errors import InferenceError

BLS = "triton_sam.sessions.bls"


def answer(*names: str) -> SimpleNamespace:
    tensors = [SimpleNamespace(name=lambda name=name: name) for name in names]
    return SimpleNamespace(has_error=lambda: False, output_tensors=lambda: tensors)


class Triton(ModuleType):
    """A stand-in for the module that exists inside Triton alone. It gives the answers one after the other."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    def __init__(self) -> None:
        super().__init__("triton_python_backend_utils")
        self.answers: list[SimpleNamespace] = []
        self.warnings: list[str] = []
        self.Logger = SimpleNamespace(log_warn=self.warnings.append)

    def InferenceRequest(self, **options: object) -> SimpleNamespace:  # noqa: N802 - Triton's name
        return SimpleNamespace(exec=lambda: self.answers.pop(0))


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    triton = Triton()
    monkeypatch.setitem(sys.modules, triton.__name__, triton)
    monkeypatch.delitem(sys.modules, BLS, raising=False)
    yield triton
    sys.modules.pop(BLS, None)


def call() -> dict[str, object]:
    return importlib.import_module(BLS).Caller().call("sam2_decoder", [], ("masks", "iou"), None)


def test_a_complete_answer_is_asked_for_once(triton: Triton) -> None:
    triton.answers = [answer("masks", "iou"), answer()]
    assert set(call()) == {"masks", "iou"}
    assert len(triton.answers) == 1
    assert not triton.warnings


def test_an_answer_that_lacks_an_output_is_asked_for_again(triton: Triton) -> None:
    triton.answers = [answer("iou"), answer("masks", "iou")]
    assert set(call()) == {"masks", "iou"}
    assert triton.warnings == ["sam2_decoder answered without masks"]


def test_a_second_answer_that_lacks_an_output_is_an_error(triton: Triton) -> None:
    triton.answers = [answer(), answer("masks")]
    with pytest.raises(InferenceError, match="sam2_decoder failed: its answer lacks iou, which the request asked for"):
        call()
