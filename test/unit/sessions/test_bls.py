"""Calls of Python models to other models, whose answers may lack an output, and the stand-in for Triton's module."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from support.pb_utils import Tensor, Triton

from triton_sam._common.bundle import bundled
from triton_sam.errors import InferenceError


def call(*lacks: tuple[str, ...]) -> tuple[Triton, set[str]]:
    """Call a decoder whose answers lack some outputs; return the Triton, and the outputs that came."""
    triton = Triton(lambda model, inputs, wanted: {name: np.zeros(1, np.float32) for name in wanted})
    triton.lacks = list(lacks)
    return triton, set(triton.load("bls").call("sam2_decoder", [], ("masks", "iou"), ("cpu", 0)))


def test_a_complete_answer_is_asked_for_once() -> None:
    triton, outputs = call()
    assert outputs == {"masks", "iou"}
    assert len(triton.calls) == 1
    assert not triton.warnings


def test_an_answer_that_lacks_an_output_is_asked_for_again() -> None:
    triton, outputs = call(("masks",))
    assert outputs == {"masks", "iou"}
    assert triton.warnings == ["sam2_decoder answered without masks"]


def test_a_second_answer_that_lacks_an_output_is_an_error() -> None:
    with pytest.raises(InferenceError, match="sam2_decoder failed: its answer lacks iou, which the request asked for"):
        call(("masks", "iou"), ("iou",))


def test_tensors_reach_a_model_as_they_do_through_shared_memory() -> None:
    texts = Tensor("texts", np.array(["é", b"\xff\x00"], object))
    assert texts.as_numpy().tolist() == ["é".encode(), b"\xff\x00"]
    assert Tensor.from_dlpack("other", Tensor("one", np.ones(2))).name() == "other"
    triton = Triton(lambda *_: {})
    with pytest.raises(triton.module.TritonModelException, match="string"):
        Tensor.from_dlpack("other", texts)
    with pytest.raises(triton.module.TritonModelException, match="GPU"):
        Tensor.of("masks", np.ones(2), memory="gpu").as_numpy()


def test_the_stand_in_has_what_the_programs_take_from_the_module() -> None:
    taken = {
        node.attr
        for file in bundled("triton_sam").glob("sessions/**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pb_utils"
    }
    assert len(taken) > 10
    assert taken <= set(vars(Triton(lambda *_: {}).module))


def test_the_stand_in_has_the_constants_of_the_module_of_triton() -> None:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        pytest.skip("pytriton is not installed")
    file = Path(spec.origin).parent / "tritonserver/backends/python/triton_python_backend_utils.py"
    ours, names = vars(Triton(lambda *_: {}).module), []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in ours:
            names.append(node.targets[0].id)
            assert ours[names[-1]] == ast.literal_eval(node.value)
        if isinstance(node, ast.FunctionDef) and node.name in ours:
            names.append(node.name)
    assert sorted(names) == ["TRITONSERVER_RESPONSE_COMPLETE_FINAL", "get_input_tensor_by_name"]
