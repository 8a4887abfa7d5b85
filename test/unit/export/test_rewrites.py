"""The rewrites that make exported graphs faster do not change their results."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.export
pytest.importorskip("sam2")


from triton_sam._common.progress import quiet  # noqa: E402
from triton_sam.export import point_graphs, rewrites  # noqa: E402
from triton_sam.export.onnx_tools import OPSET  # noqa: E402


def run(model, x, fused=False):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


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
