"""A family of three models that only this file knows: it is registered, exported, served and called."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triton_sam.local_server import LocalServer

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper  # noqa: E402

from triton_sam import SAM2TritonClient, families  # noqa: E402
from triton_sam.cli import build_parser, main  # noqa: E402
from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.exporter import Exporter  # noqa: E402
from triton_sam.export.onnx_tools import OPSET  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families import Family, points  # noqa: E402
from triton_sam.families.tables import Checkpoint, ModelSize, ModelSpec, Option, Tensor, by_role  # noqa: E402
from triton_sam.repository import list_models  # noqa: E402
from triton_sam.repository.onnx_header import read_metadata  # noqa: E402
from triton_sam.transport import Transport  # noqa: E402
from triton_sam.transport.url import parse_url  # noqa: E402

ROLES = ("encoder", "decoder", "memory_encoder")
EMBEDDINGS = Tensor("image_embeddings", "FP32", ("images", 3, 4, 4))
MASKS = (
    Tensor("masks", "FP32", ("prompts", 1, 4, 4)),
    Tensor("iou_predictions", "FP32", ("prompts", 1)),
    Tensor("multimask_masks", "FP32", ("prompts", 3, 4, 4)),
    Tensor("multimask_iou_predictions", "FP32", ("prompts", 3)),
)
POINTS = (
    Tensor("point_coords", "FP32", ("prompts", "points", 2)),
    Tensor("point_labels", "FP32", ("prompts", "points")),
)


TOY = Family(
    name="toy",
    label="TOY",
    image_size=8,
    mask_size=4,
    value_range=(0.0, 1.0),
    keep_aspect=False,
    takes_mask=False,
    models=by_role(
        ModelSpec("encoder", (Tensor("image", "FP32", ("images", 3, 8, 8)),), (EMBEDDINGS,)),
        ModelSpec("decoder", (EMBEDDINGS, *POINTS), MASKS),
        ModelSpec("memory_encoder", (EMBEDDINGS, MASKS[0]), (Tensor("memory", "FP32", ("prompts", 3)),), "memory.onnx"),
    ),
    decoder_inputs=points.decoder_inputs,
    requested_outputs=points.requested_outputs,
    read_masks=points.read_masks,
    sizes=(ModelSize("small", config="toy_small", aliases=("s",)),),
    default_size="small",
    random_size="small",
    quick_size="small",
    checkpoints=(Checkpoint("toy", "small", "https://example.org/toy_small.pt", 1, 64 * "0"),),
    options=(Option("--toy-factor", "factor of the embeddings", metavar="X"),),
    exporter=f"{__name__}:EXPORTER",
)
"""A family of three models that only add numbers."""


class ToyExporter(Exporter):
    """Exports hand-written graphs, without tracing."""

    name = "toy"
    stride = 8

    def load(self, *_: Any, **__: Any) -> Any:
        return torch.nn.Identity()

    def build(self, model: str, image_size: int) -> Any:
        return torch.nn.Linear(2, 2)

    def config(self, settings: Settings) -> str:
        return f"toy_{settings.model}"

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> Any:
        factor = float(options.get("toy_factor", 1))
        nodes, constants = GRAPHS[spec.role](factor)
        values = [
            [helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape) for tensor in tensors]
            for tensors in (spec.inputs, spec.outputs)
        ]
        graph = helper.make_graph(nodes, spec.role, *values, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def axes(name: str, *numbers: int) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers)


def encoder(factor: float) -> Any:
    scale = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    pool = node("AveragePool", "image", "pooled", kernel_shape=[2, 2], strides=[2, 2])
    return [pool, node("Mul", "pooled factor", "image_embeddings")], [scale]


def decoder(_: float) -> Any:
    """Return a graph that adds the sum of the labels to the embeddings."""
    steps = [
        node("ReduceSum", "point_coords coordinates", "sums"),
        node("Mul", "sums zero", "nothing"),
        node("Add", "nothing point_labels", "labels"),
        node("ReduceSum", "labels points", "counts", keepdims=1),
        node("Unsqueeze", "counts mask_axes", "shifts"),
        node("Add", "image_embeddings shifts", "multimask_masks"),
        node("ReduceMean", "multimask_masks points", "masks", keepdims=1),
        node("ReduceMax", "multimask_masks mask_axes", "multimask_iou_predictions", keepdims=0),
        node("ReduceMax", "masks mask_axes", "iou_predictions", keepdims=0),
    ]
    steps[0].attribute.append(helper.make_attribute("keepdims", 0))
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    return steps, [axes("coordinates", 2), axes("points", 1), axes("mask_axes", 2, 3), zero]


def memory_encoder(_: float) -> Any:
    return [
        node("Mul", "image_embeddings masks", "weighted"),
        node("ReduceMean", "weighted places", "memory", keepdims=0),
    ], [axes("places", 2, 3)]


GRAPHS = {
    "encoder": encoder,
    "decoder": decoder,
    "memory_encoder": memory_encoder,
}
EXPORTER = ToyExporter()


@pytest.fixture(scope="module")
def toy():
    yield families.register(TOY)
    families.unregister("toy")


@pytest.fixture(scope="module")
def repository(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    options = ["--size", "s", "--toy-factor", "2", "--model-repository", str(folder), "-q"]
    assert main(["export", "toy", "--random", "0", *options]) == 0
    return folder


def test_all_models_are_exported(repository):
    models = list_models(repository)
    assert [(model.name, model.role, model.problem) for model in models] == [
        (f"toy_{role}", role, "") for role in sorted(ROLES)
    ]
    metadata = read_metadata(repository / "toy_memory_encoder" / "1" / "memory.onnx")
    assert (metadata["triton_sam.family"], metadata["triton_sam.config"]) == ("toy", "toy_small")


def test_all_models_are_served_and_called(repository):
    with LocalServer(repository) as server:
        with SAM2TritonClient(server.http_url, "toy", embeddings="client") as client:
            assert client.models().variants == {"toy": ("toy",)}
            embeddings = client.encode(np.full((8, 8, 3), 51, np.uint8))  # 0.2 of white, twice as the option asks
            held = np.asarray(embeddings["image_embeddings"])
            np.testing.assert_allclose(held, 0.4, rtol=1e-6)
            masks, scores = client.predict([[3, 3]], [1], image=embeddings)
            np.testing.assert_allclose(masks, 1.4, rtol=1e-6)
            assert (masks.shape, scores.shape) == ((1, 1, 4, 4), (1, 1))
        transport = Transport(parse_url(server.http_url))
        try:
            inputs = {"image_embeddings": held, "masks": masks}
            memory = transport.infer("toy_memory_encoder", inputs, ["memory"])["memory"]
            np.testing.assert_allclose(memory, np.full((1, 3), 0.4 * 1.4), rtol=1e-6)
        finally:
            transport.close()


def test_the_commands_know_the_family(toy, capsys):
    assert build_parser().parse_args(["download", "toy", "small"]).family == "toy"
    assert main(["export", "sam1", "--random", "0", "--toy-factor", "2", "-q"]) == 1
    assert "--toy-factor is for toy, not for sam1" in capsys.readouterr().err
    assert main(["download", "toy", "huge", "-q"]) == 1
    assert "toy has no checkpoint of size 'huge': choose one of small" in capsys.readouterr().err
    assert families.split_model_name("toy_memory_encoder") == ("toy", "memory_encoder")


def test_a_family_without_a_reference_says_so(toy):
    with pytest.raises(ConfigurationError, match="toy has no official predictor"):
        registry.exporter("toy").reference(None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "sam2"}, "already"),
        ({"name": "to_y"}, "letters and digits"),
        ({"models": by_role(TOY.encoder)}, "it has no decoder"),
        ({"models": {**TOY.models, "detector": TOY.encoder}}, "'detector' has another role"),
        ({"default_size": "huge"}, "no size 'huge'"),
        ({"exporter": "toy"}, "package.module:NAME"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(changes, text):
    wrong = replace(TOY, **{"name": "wrong", **changes})
    before = dict(families.FAMILIES)
    with pytest.raises(ConfigurationError, match=text):
        families.register(wrong)
    assert before == families.FAMILIES


@pytest.mark.parametrize("exporter", ["", "triton_sam.export.exporter:Exporter"])
def test_a_family_that_names_no_exporter(exporter):
    families.register(replace(TOY, name="data", exporter=exporter, checkpoints=()))
    try:
        with pytest.raises(ConfigurationError, match="data cannot be exported"):
            registry.exporter("data")
    finally:
        families.unregister("data")
