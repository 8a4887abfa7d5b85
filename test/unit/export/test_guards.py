"""The guard at the inputs of exported graphs. test/slow/test_runtimes.py attacks them with every ONNX Runtime."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from support import graph_attacks  # noqa: E402
from support.family_exports import session_of  # noqa: E402
from support.graph_attacks import assert_guarded  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import RepositoryError  # noqa: E402
from triton_sam.export import guards, onnx_tools  # noqa: E402
from triton_sam.export.pipeline import finish_graph  # noqa: E402
from triton_sam.export.repair import add_missing_guards  # noqa: E402
from triton_sam.families import FAMILIES, get_family  # noqa: E402
from triton_sam.families.tables import GUARD_PREFIX, Dimension, ModelSpec, Tensor  # noqa: E402
from triton_sam.repository.config import config_for  # noqa: E402
from triton_sam.repository.folder import unguarded_graphs  # noqa: E402
from triton_sam.repository.hashes import read_sums, record_hashes  # noqa: E402
from triton_sam.repository.onnx_header import GUARD, GUARD_KEY, read_metadata  # noqa: E402

SPEC = ModelSpec(
    role="decoder",
    inputs=(
        Tensor("features", "FP32", ("images", 2)),
        Tensor("coords", "FP32", ("prompts", "points", 2)),
        Tensor("labels", "FP32", ("prompts", "points")),
        Tensor("boxes", "FP32", ("boxes", 4)),
        Tensor("mask", "FP32", ("masks",), optional=True),
    ),
    outputs=(Tensor("sum", "FP32", ()),),
    dimensions={
        "images": Dimension(choices=(1, "prompts")),
        "points": Dimension(minimum=0),
        "boxes": Dimension(minimum=0, choices=(0, "prompts")),
        "masks": Dimension(choices=(1, "prompts")),
    },
)


def graph_of(spec: ModelSpec) -> Any:
    """Return a graph that adds up all elements of all inputs, which it can do for any sizes."""
    inputs = [helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape) for tensor in spec.inputs]
    sums = [helper.make_node("ReduceSum", [tensor.name], [f"{tensor.name}.sum"], keepdims=0) for tensor in spec.inputs]
    total = helper.make_node("Sum", [node.output[0] for node in sums], ["sum"])
    output = helper.make_tensor_value_info("sum", TensorProto.FLOAT, [])
    graph = helper.make_graph([*sums, total], "sums", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx_tools.add_defaults(model, spec)
    return model


def fits(images: int, prompts: int, rows: int, points: int, columns: int, boxes: int, masks: int | None) -> bool:
    """Return whether the sizes of a request fit SPEC; rows and columns are those of the labels."""
    return (
        prompts >= 1
        and (rows, columns) == (prompts, points)
        and images in (1, prompts)
        and boxes in (0, prompts)
        and masks in (None, 1, prompts)
    )


@pytest.mark.parametrize("opset", [14, onnx_tools.OPSET])
def test_the_guard_lets_exactly_the_right_sizes_through(opset: int) -> None:
    model = graph_of(SPEC)
    model.opset_import[0].version = opset
    guards.add_guard(model, SPEC)
    onnx.checker.check_model(model)
    if opset == onnx_tools.OPSET:
        assert_guarded(model)
    session = session_of(model)
    cases = [
        (case, fits(*case))
        for case in itertools.product(range(3), range(3), range(3), range(3), range(3), range(3), (None, 0, 1, 2))
    ]
    wrong = random.Random(0).sample([case for case, right in cases if not right], 400)
    for case, right in [*((case, False) for case in wrong), *filter(lambda item: item[1], cases)]:
        images, prompts, rows, points, columns, boxes, masks = case
        shapes: dict[str, tuple[int, ...]] = {
            "features": (images, 2), "coords": (prompts, points, 2), "labels": (rows, columns), "boxes": (boxes, 4),
        }  # fmt: skip
        if masks is not None:
            shapes["mask"] = (masks,)
        feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        if right:
            assert session.run(None, feed) == [sum(array.sum() for array in feed.values())], shapes
        else:
            with pytest.raises(Exception, match=f"Name:'{GUARD_PREFIX}"):
                session.run(None, feed)
    assert sum(right for _, right in cases) == 48


def test_a_request_that_is_too_large_is_refused_in_words() -> None:
    spec = replace(SPEC, limits={("prompts",): 6, ("prompts", "points"): 8})
    model = graph_of(spec)
    guards.add_guard(model, spec)
    onnx.checker.check_model(model)
    assert_guarded(model)
    session = session_of(model)
    for prompts, points, words in (
        (6, 1, ""), (1, 8, ""), (2, 4, ""), (6, 0, ""),
        (7, 0, "a request may have at most 6 prompts: send several requests"),
        (1, 9, "a request may have at most 8 prompts x points: send several requests"),
        (3, 3, "a request may have at most 8 prompts x points: send several requests"),
    ):  # fmt: skip
        shapes = {"features": (1, 2), "coords": (prompts, points, 2), "labels": (prompts, points), "boxes": (0, 4)}
        feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        if words:
            with pytest.raises(Exception, match=words):
                session.run(None, feed)
        else:
            assert session.run(None, feed) == [2 + 3 * prompts * points]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_of_a_request_has_a_limit(family: str) -> None:
    for role, spec in get_family(family).every_model.items():
        symbols = {side for tensor in spec.inputs for side in tensor.shape if isinstance(side, str)}
        if len(spec.inputs) == 1:
            continue  # its memory grows with the bytes of the request; see ModelSpec.limits
        # The size of a dimension with choices is that of another one.
        free = {symbol for symbol in symbols if not spec.dimensions.get(symbol, Dimension()).choices}
        assert free == set().union(*spec.limits), role


def test_an_open_size_that_the_family_fixes_is_checked() -> None:
    spec = ModelSpec("encoder", (Tensor("image", "FP32", ("images", 3)),), ())
    model = graph_of(ModelSpec("encoder", (Tensor("image", "FP32", ("images", "channels")),), ()))
    guards.add_guard(model, spec)
    session = session_of(model)
    assert session.run(None, {"image": np.ones((2, 3), np.float32)}) == [6]
    for shape in ((2, 4), (2, 0), (0, 3)):
        with pytest.raises(Exception, match=GUARD_PREFIX):
            session.run(None, {"image": np.ones(shape, np.float32)})


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "half storage"])
def test_every_precision_has_the_guard(precision: str) -> None:
    half_storage = precision == "half storage"
    graph = finish_graph(graph_of(SPEC), SPEC, "fp32" if half_storage else precision, half_storage)
    graph.ir_version = min(graph.ir_version, onnx_tools.MAX_IR_VERSION)  # as save() does
    assert_guarded(graph)


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_the_demo_model_refuses_wrong_sizes(role: str, tmp_path: Path) -> None:
    path = bundled("model_repository") / f"sam2_{role}" / "1" / "model.onnx"
    assert_guarded(onnx.load(path))
    assert read_metadata(path)[GUARD_KEY] == GUARD
    right = graph_attacks.controls("sam2", role)[:1]
    attacks = [
        attack
        for attack in graph_attacks.classics("sam2", role)
        if not graph_attacks.is_right("sam2", role, attack) and sum(map(graph_attacks._elements, attack)) < 1 << 26
    ]
    answers = graph_attacks.run(path, [*right, *attacks, *right], tmp_path / "run")
    assert all("digest" in answer for answer in answers[: len(right)])
    assert answers[: len(right)] == answers[-len(right) :]
    for attack, answer in zip(attacks, answers[len(right) : -len(right)], strict=True):
        assert GUARD_PREFIX in answer.get("text", ""), (attack, answer)


# --- models of earlier exports


def old_encoder(folder: Path) -> Path:
    """Write a model as an earlier version exported it, with the weights in a file of their own."""
    spec = get_family("sam1").encoder
    model = graph_of(spec)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(512, dtype=np.float32), "weights"))
    model.graph.node.append(helper.make_node("ReduceSum", ["weights"], ["unused"], keepdims=0))
    model.metadata_props.add(key="triton_sam.family", value="sam1")
    path = folder / "sam1_encoder" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    (path.parent.parent / "config.pbtxt").write_text(config_for(model, "sam1_encoder"))
    onnx.save_model(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return path


def test_doctor_adds_the_guard_to_an_older_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor = ["doctor", "--model-repository", str(tmp_path), "--url", "localhost:1"]
    path = old_encoder(tmp_path)
    data = path.with_name("model.onnx.data")
    before = data.read_bytes()
    assert unguarded_graphs(tmp_path) == [path]
    main(doctor)
    assert "sam1_encoder/1/model.onnx has no guard" in capsys.readouterr().out
    flushed: list[str] = []

    def note(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note)
        main([*doctor, "--fix"])
    assert "0.onnx" in flushed
    assert "sam1_encoder/1/model.onnx has the guard" in capsys.readouterr().out
    assert_guarded(onnx.load(path))
    assert read_metadata(path) == {"triton_sam.family": "sam1", GUARD_KEY: GUARD}
    assert data.read_bytes() == before
    assert sorted(item.name for item in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert unguarded_graphs(tmp_path) == []
    main([*doctor, "--fix"])
    assert "fixed" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_a_damaged_file_gets_no_hash_with_the_guard(tmp_path: Path, name: str) -> None:
    path = old_encoder(tmp_path)
    record_hashes([path, path.with_name("model.onnx.data")])
    sums = read_sums(path.parents[1])
    with path.with_name(name).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    damaged = path.with_name(name).read_bytes()
    with pytest.raises(RepositoryError, match=f"{name} is not the file that was installed"):
        add_missing_guards(tmp_path)
    assert read_sums(path.parents[1]) == sums
    assert path.with_name(name).read_bytes() == damaged
    assert unguarded_graphs(tmp_path) == [path]
