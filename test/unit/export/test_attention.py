"""SAM2's encoder with ONNX Runtime's attention operator: equal results, fewer nodes, and the option to avoid it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("sam2")

from triton_sam._common.bundle import checkout  # noqa: E402
from triton_sam.export.sam2 import graphs  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Encoder  # noqa: E402
from triton_sam.export.sam2.recipe import EXPORTER  # noqa: E402
from triton_sam.families.sam2 import SAM2  # noqa: E402
from triton_sam.repository import BUILT_IN_CHECKPOINT  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.slow]

SIDE = 256


@pytest.fixture(scope="module")
def model():
    return EXPORTER.load(None, f"{BUILT_IN_CHECKPOINT}.yaml", image_size=SIDE, random_seed=0)


@pytest.fixture(scope="module")
def graph(model):
    return EXPORTER.trace(model, SAM2.encoder, {})


def answers(graph, images):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images})


def kinds(graph):
    return [node.op_type for node in graph.graph.node]


def test_every_block_is_one_node_and_says_the_same(model, graph):
    images = np.random.default_rng(0).random((2, 3, SIDE, SIDE), np.float32)
    blocks = sum(isinstance(module, graphs.MultiScaleAttention) for module in model.modules())
    assert kinds(graph).count(graphs.OPERATOR) == blocks > 5
    assert "Softmax" not in kinds(graph)
    with torch.no_grad():
        official = Sam2Encoder(model)(torch.from_numpy(images))
    for fused, wanted in zip(answers(graph, images), official, strict=True):
        np.testing.assert_allclose(fused, wanted.numpy(), rtol=0, atol=2e-5)
        assert np.ptp(fused) > 0.1


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
