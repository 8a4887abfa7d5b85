"""Rewrites, the attention operator and the writer of ONNX files: results stay, and files are those of protobuf."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.export
pytest.importorskip("sam2")

import onnx.reference  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from support.family_exports import run_graph, session_of  # noqa: E402

from triton_sam._common.bundle import checkout  # noqa: E402
from triton_sam._common.progress import quiet  # noqa: E402
from triton_sam.export import onnx_tools, point_graphs, rewrites  # noqa: E402
from triton_sam.export.onnx_tools import OPSET  # noqa: E402
from triton_sam.export.precision import to_half  # noqa: E402
from triton_sam.export.sam2 import graphs  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Encoder  # noqa: E402
from triton_sam.export.sam2.recipe import EXPORTER  # noqa: E402
from triton_sam.families.sam2 import SAM2  # noqa: E402
from triton_sam.repository import BUILT_IN_CHECKPOINT  # noqa: E402


def run(model, x, fused=False):
    return session_of(model, fused=fused).run(None, {"x": x})[0]


@pytest.fixture(scope="module")
def traced():
    class Two(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.gelu(torch.nn.functional.gelu(x) - 0.25) + 1.0

    with quiet():
        program = torch.onnx.export(
            Two(), (torch.zeros(4, 5),), dynamo=True, opset_version=OPSET, input_names=["x"], verbose=False
        )
    return program.model_proto


def test_every_gelu_is_found_and_gives_the_same_bits(traced):
    x = np.random.default_rng(0).normal(size=(4, 5), scale=4).astype(np.float32)
    model = onnx.ModelProto.FromString(traced.SerializeToString())
    before = run(model, x)
    assert rewrites.reorder_gelu(model) == 2
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(run(model, x), before)
    assert rewrites.reorder_gelu(model) == 0


def test_onnx_runtime_fuses_what_was_rewritten(traced, tmp_path):
    def kinds(model):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]

    model = onnx.ModelProto.FromString(traced.SerializeToString())
    rewrites.reorder_gelu(model)
    assert "Erf" not in kinds(model)


def test_a_product_that_is_no_gelu_stays(traced):
    model = onnx.ModelProto.FromString(traced.SerializeToString())
    for node in model.graph.node:
        if node.op_type == "Erf":
            node.op_type = "Tanh"
    before = model.SerializeToString()
    assert rewrites.reorder_gelu(model) == 0
    assert model.SerializeToString() == before


class Attention(torch.nn.Module):
    """The parts of the official Attention module, in a small size."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.internal_dim = 4, 16
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, torch.nn.Linear(32, 16))
        self.out_proj = torch.nn.Linear(16, 32)


@pytest.mark.parametrize("images", [1, 3])
def test_regrouped_attention_is_attention(images):
    torch.manual_seed(0)
    attention = Attention()
    image, position = torch.randn(images, 50, 32), torch.randn(32, 50)
    tokens, values = torch.randn(3, 7, 32), torch.randn(3, 7, 32)
    ignored = torch.zeros(3, 1, 1, 7)
    ignored[1, :, :, 5:] = -torch.inf
    placed = image + position.T
    with torch.no_grad():
        there = point_graphs.attend_to_image(attention, tokens, image, position)
        torch.testing.assert_close(there, point_graphs.attend(attention, tokens, placed, image), atol=1e-5, rtol=0)
        back = point_graphs.attend_from_image(attention, image, position, tokens, values, ignored)
        wanted = point_graphs.attend(attention, placed, tokens, values, ignored)
    torch.testing.assert_close(back, wanted, atol=1e-5, rtol=0)
    assert not torch.allclose(back, point_graphs.attend(attention, placed, tokens, values), atol=1e-3)


def test_channels_are_normalised_as_in_the_official_module():
    sam2_utils = pytest.importorskip("sam2.modeling.sam2_utils")
    torch.manual_seed(0)
    norm = sam2_utils.LayerNorm2d(6)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
        x = 3 + 2 * torch.randn(2, 6, 5, 7)
        torch.testing.assert_close(point_graphs.channel_norm(norm, x), norm(x), atol=1e-6, rtol=0)


SIDE = 256


@pytest.fixture(scope="module")
def model():
    return EXPORTER.load(None, f"{BUILT_IN_CHECKPOINT}.yaml", image_size=SIDE, random_seed=0)


@pytest.fixture(scope="module")
def graph(model):
    return EXPORTER.trace(model, SAM2.encoder, {})


def kinds(graph):
    return [node.op_type for node in graph.graph.node]


@pytest.mark.slow
def test_every_block_is_one_node_and_says_the_same(model, graph):
    images = np.random.default_rng(0).random((2, 3, SIDE, SIDE), np.float32)
    blocks = sum(isinstance(module, graphs.MultiScaleAttention) for module in model.modules())
    assert kinds(graph).count(graphs.OPERATOR) == blocks > 5
    assert "Softmax" not in kinds(graph)
    with torch.no_grad():
        official = Sam2Encoder(model)(torch.from_numpy(images))
    for fused, wanted in zip(run_graph(graph, {"image": images}).values(), official, strict=True):
        np.testing.assert_allclose(fused, wanted.numpy(), rtol=0, atol=2e-5)
        assert np.ptp(fused) > 0.1


@pytest.mark.slow
def test_the_official_model_is_left_as_it_was(model):
    image = torch.zeros(1, 3, SIDE, SIDE)
    with torch.no_grad():
        before = model.forward_image(image)["vision_features"]
        with graphs.fused_attention(model):
            pass
        after = model.forward_image(image)["vision_features"]
    assert torch.equal(before, after)


@pytest.mark.nightly
def test_the_option_for_standard_operators(tmp_path, capsys):
    from triton_sam.cli import main

    built_in = checkout() / "checkpoints" / f"{BUILT_IN_CHECKPOINT}.pt"
    where = ["--output-dir", str(tmp_path), "--image-size", str(SIDE), "-q"]
    assert main(["export", "sam2", "--checkpoint", str(built_in), "--standard-operators", *where]) == 0
    graph = onnx.load(tmp_path / f"sam2_{SIDE}_encoder" / "1" / "model.onnx")
    assert {node.domain for node in graph.graph.node} == {""}
    assert kinds(graph).count("Softmax") > 5
    assert main(["export", "sam1", "--random", "0", "--standard-operators", *where]) != 0
    assert "--standard-operators is for sam2" in capsys.readouterr().err


LARGE, SHAPE = 12, (512, 512)


def model_of(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return a model that adds its weights to its input; it sets fields before, behind and between the weights."""
    nodes = [helper.make_node("Identity", ["x"], ["sum0"])]
    nodes += [helper.make_node("Add", [f"sum{i}", name], [f"sum{i + 1}"]) for i, name in enumerate(weights)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 512]) for name in ("x", f"sum{len(weights)}")
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    tensors.append(helper.make_tensor("unused", TensorProto.INT64, [2], [3, 4]))  # not stored as raw data
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], tensors, doc_string="text")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx_tools.set_metadata(model, {"b": "ü", "a": "1"})
    return model


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    found = {f"weight{i}": draw.random(SHAPE, np.float32) for i in range(LARGE)}
    return {**found, "small": draw.random((1, 512), np.float32)}


def without_content(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    for item in model.graph.initializer:
        if item.name in names:
            item.ClearField("raw_data")
    return model


def test_files_equal_those_of_protobuf(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    model = model_of(weights)
    expected = model.SerializeToString()
    assert onnx_tools.save(model, tmp_path / "whole.onnx") == [tmp_path / "whole.onnx"]
    assert (tmp_path / "whole.onnx").read_bytes() == expected
    late = ["weight0", "weight5", f"weight{LARGE - 1}"]
    later = {name: partial(weights.__getitem__, name) for name in late}
    onnx_tools.save(without_content(model, late), tmp_path / "late.onnx", later)
    assert (tmp_path / "late.onnx").read_bytes() == expected


def test_large_weights_go_to_a_file_of_their_own(
    weights: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_tools, "EXTERNAL_DATA_LIMIT", 3_000_000)  # more than the weight that is there
    late = [f"weight{i}" for i in range(1, LARGE)]
    model = without_content(model_of(weights), late)
    files = onnx_tools.save(model, tmp_path / "model.onnx", {name: partial(weights.__getitem__, name) for name in late})
    assert [file.name for file in files] == ["model.onnx", "model.onnx.data"]
    assert files[0].stat().st_size < 10_000
    assert files[1].stat().st_mode == files[0].stat().st_mode  # Triton may run as another user
    onnx_tools.check(files[0])
    found = {item.name: numpy_helper.to_array(item) for item in onnx.load(files[0]).graph.initializer}
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)


def test_memory_holds_one_weight_at_a_time(tmp_path: Path) -> None:
    names = [f"weight{i}" for i in range(LARGE)]
    model = without_content(model_of(dict.fromkeys(names, np.zeros(SHAPE, np.float32))), names)
    tracemalloc.start()
    try:
        onnx_tools.save(model, tmp_path / "model.onnx", {name: partial(np.ones, SHAPE, np.float32) for name in names})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "model.onnx").stat().st_size > LARGE * 2**20
    assert peak < 3 * 2**20


def test_a_weight_of_another_shape_is_a_fault_of_the_template(tmp_path: Path) -> None:
    model = without_content(model_of({"weight": np.zeros(SHAPE, np.float32)}), ["weight"])
    with pytest.raises(AssertionError, match=r"weight is float32 \(512, 1\)"):
        onnx_tools.save(model, tmp_path / "model.onnx", {"weight": partial(np.ones, (512, 1), np.float32)})


RATIO = """<ir_version: 8, opset_import: ["" : 17]>
ratio (float[1,82944] x) => (float[1] chosen, float[1,82944] doubled) {
  axis = Constant <value = int64[1] {1}> ()
  high = Constant <value = float {0.05}> ()
  low = Constant <value = float {-0.05}> ()
  least = Constant <value = float {0.98}> ()
  above = Greater (x, high)
  around = Greater (x, low)
  above_float = Cast <to = 1> (above)
  around_float = Cast <to = 1> (around)
  inner = ReduceSum <keepdims = 0> (above_float, axis)
  outer = ReduceSum <keepdims = 0> (around_float, axis)
  share = Div (inner, outer)
  is_stable = GreaterOrEqual (share, least)
  chosen = Cast <to = 1> (is_stable)
  doubled = Add (x, x)
}"""


@pytest.mark.parametrize(("inside", "stable"), [(82944, True), (81000, False)])
def test_fp16_compares_the_areas_of_large_masks(inside: int, stable: bool) -> None:
    """FP16 represents no count above 65,504: the mask of a box around the whole image counted as unstable."""
    model = onnx.parser.parse_model(RATIO)
    for number, node in enumerate(model.graph.node):
        node.name = str(number)
    half = to_half(model)
    assert [node.op_type for node in half.graph.node].count("Cast") > 2  # the rest is FP16
    logits = np.zeros((1, 82944), np.float32)
    logits[:, :inside] = 1
    # ONNX Runtime has no FP16 on CPUs, and leaves such casts out.
    is_stable, _ = onnx.reference.ReferenceEvaluator(half).run(None, {"x": logits})
    assert is_stable.tolist() == [stable]
