"""The contract of the exported pair of every family: official masks, wire contract, precisions, sizes and guards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.family_exports import (  # noqa: E402
    PACKAGES,
    SMALLEST,
    Arrays,
    FamilyExport,
    export_once,
    run_graph,
    session_of,
)
from support.graph_attacks import assert_guarded  # noqa: E402
from support.tiny_models import WIDTH, config_text  # noqa: E402
from tritonclient.grpc.model_config_pb2 import TYPE_FP32, TYPE_INT64  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families import FAMILIES, get_family, spec_of  # noqa: E402
from triton_sam.repository.config import parse_config  # noqa: E402
from triton_sam.repository.onnx_header import GUARD, GUARD_KEY, read_metadata  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient, Thresholds  # noqa: E402
from triton_sam.verify.compare import Row, verify  # noqa: E402
from triton_sam.verify.report import format_table  # noqa: E402

Decode = Callable[..., Arrays]

ROLES = ("encoder", "decoder")
DECODERS = ("sam1", "sam2", "samhq")
"""A family of each decoder with points as inputs. MobileSAM has SAM1's decoder, and EdgeTAM has SAM2's."""
WORDS = [pytest.param("sam3", role, marks=pytest.mark.slow) for role in get_family("sam3").concepts]
"""The models for words, which torch traces for minutes: they have no template."""
SHARED_TENSORS = ("mobilesam", "edgetam")
"""The families whose configuration names them, because their tensors are those of another family."""
ROUNDED = [
    ("sam2", "fp16", THRESHOLDS["fp16"].iou),
    # Random weights miss the thresholds: the worst of 14 answers, with three candidates, has 0.957 and 0.96.
    ("sam2", "int8", 0.95),
    ("edgetam", "fp16", 0.95),
    ("samhq", "fp16", THRESHOLDS["fp16"].iou),
]


def of(family: str, **settings: Any) -> FamilyExport:
    pytest.importorskip(PACKAGES[family])
    return export_once(family, **settings)


@pytest.fixture(params=list(FAMILIES))
def export(request: pytest.FixtureRequest) -> FamilyExport:
    return of(request.param)


COMPUTED = pytest.mark.parametrize(
    "export",
    ["sam2", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "sam2")],
    indirect=True,
)
"""For tests that compute much: by default with SAM2 alone."""


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compared(export: FamilyExport, image: Path, thresholds: Thresholds, model: Any = None) -> list[Row]:
    """Compare an export with the official predictor; all rows must pass. Return them."""
    reference = registry.exporter(export.family).reference(model or export.model)
    rows = verify(reference, image, {"onnxruntime": OnnxClient(export.files, export.family)})
    assert len(rows) == (14 if get_family(export.family).takes_mask else 10)
    assert all(row.passes(thresholds) for row in rows), format_table(rows, thresholds)
    return rows


@pytest.mark.slow
def test_masks_are_those_of_the_official_model(export: FamilyExport, images: Path, tmp_path: Path) -> None:
    """The image is tall, so a family that pads images must pad this one.

    By default, test/unit/verify/test_verify.py compares SAM2's masks, and test_fine_tunes.py those of SAM1.
    """
    path = tmp_path / "tall.png"
    Image.open(images / "coffee.jpg").rotate(90, expand=True).resize((333, 777)).save(path)
    rows = compared(export, path, THRESHOLDS["fp32"])
    assert max(row.score_diff for row in rows) < 1e-3


@pytest.mark.nightly
def test_the_other_encoder_of_samhq_gives_the_official_masks_too(images: Path) -> None:
    """Its official sizes have TinyViT or ViT. No template has the small size with ViT, so torch traces it."""
    compared(of("samhq", model="micro_vit"), images / "coffee.jpg", THRESHOLDS["fp32"])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "precision", "iou"), ROUNDED)
def test_smaller_numbers_keep_the_masks(family: str, precision: str, iou: float, images: Path) -> None:
    rounded, exact = of(family, precision=precision), of(family)
    for role, path in rounded.files.items():
        if role == "encoder" or precision == "fp16":
            assert path.stat().st_size < 0.6 * exact.files[role].stat().st_size
        graph = onnx.load(path).graph
        assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}
    compared(rounded, images / "coffee.jpg", Thresholds(iou, None, THRESHOLDS[precision].score))


@pytest.mark.slow
def test_half_storage_halves_the_files(images: Path) -> None:
    stored, exact = of("sam2", half_storage=True), of("sam2")
    for role, path in stored.files.items():
        assert path.stat().st_size < 0.55 * exact.files[role].stat().st_size
    image = {"image": np.random.default_rng(0).random((1, 3, 1024, 1024), np.float32)}
    found, expected = (run_graph(each.files["encoder"], image) for each in (stored, exact))
    for name, array in expected.items():
        assert 0 < np.abs(found[name] - array).max() < 0.02 * np.abs(array).max(), name


@pytest.mark.parametrize(("family", "role"), [*((family, role) for family in FAMILIES for role in ROLES), *WORDS])
def test_the_signature_is_the_wire_contract(family: str, role: str) -> None:
    table = get_family(family)
    words = role in table.concepts
    spec = table.concepts[role] if words else table.models[role]
    file = (of(family, concepts=True) if words else of(family)).files[role]
    model = onnx.load(file)
    for values, tensors in ((model.graph.input, spec.inputs), (model.graph.output, spec.graph_outputs)):
        shapes = {v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
        assert shapes == {each.name: tuple(WIDTH if side == 0 else side for side in each.shape) for each in tensors}
    defaults = {item.name for item in model.graph.initializer} & set(spec.input_names)
    assert defaults == {tensor.name for tensor in spec.inputs if tensor.optional}
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [18]
    assert words or spec_of(spec.input_names).role == role
    assert b"graphs.py" not in file.read_bytes()  # a stack trace of torch
    assert_guarded(model)


@COMPUTED
@pytest.mark.parametrize("role", ROLES)
def test_the_configuration_follows_from_the_table_and_its_warm_up_runs(export: FamilyExport, role: str) -> None:
    name, file = f"{export.family}_{role}", export.files[role]
    spec = get_family(export.family).models[role]
    written = (file.parents[1] / "config.pbtxt").read_text()
    assert written == config_text(name)
    if export.family == "sam2":  # the committed one also names the checkpoint of the demo model
        assert (bundled("model_repository") / name / "config.pbtxt").read_text().startswith(written)
    parameter = f'parameters {{ key: "family" value {{ string_value: "{export.family}" }} }}'
    assert (parameter in written) == (export.family in SHARED_TENSORS)
    assert (f'default_model_filename: "{spec.filename}"' in written) == (spec.filename != "model.onnx")
    (sample,) = parse_config(written).model_warmup
    kinds = {TYPE_FP32: np.float32, TYPE_INT64: np.int64}
    zeros = {name: np.zeros(tuple(given.dims), kinds[given.data_type]) for name, given in sample.inputs.items()}
    assert all(np.isfinite(array).all() for array in run_graph(file, zeros).values())


@pytest.mark.parametrize("role", ROLES)
def test_the_metadata_says_what_a_file_was_made_from(export: FamilyExport, role: str) -> None:
    metadata = read_metadata(export.files[role])
    size = next(size for size in get_family(export.family).sizes if size.model == SMALLEST[export.family])
    expected = {"family": export.family, "checkpoint": "random seed 0", "config": size.config, "precision": "fp32"}
    assert {name: metadata[f"triton_sam.{name}"] for name in expected} == expected
    assert metadata[GUARD_KEY] == GUARD


@pytest.mark.slow
@COMPUTED
def test_several_images_are_encoded_as_one_by_one(export: FamilyExport) -> None:
    spec = get_family(export.family).encoder
    side = get_family(export.family).image_size
    pictures = np.random.default_rng(0).random((2, 3, side, side), dtype=np.float32)
    pictures[1] = np.linspace(0, 1, side, dtype=np.float32)
    together = run_graph(export.files["encoder"], {spec.input_names[0]: pictures})
    for row in range(len(pictures)):
        alone = run_graph(export.files["encoder"], {spec.input_names[0]: pictures[row : row + 1]})
        for name, array in alone.items():
            np.testing.assert_allclose(together[name][row : row + 1], array, atol=1e-4)
    assert max(np.abs(array[0] - array[1]).max() for array in together.values()) > 1e-2


@pytest.mark.slow
def test_another_image_size() -> None:
    """A template has SAM2 at 512 pixels."""
    small = of("sam2", image_size=512)
    model = registry.exporter("sam2").load(None, SMALLEST["sam2"], image_size=512, random_seed=0)
    image = torch.rand(2, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    found = run_graph(small.files["encoder"], {"image": image.numpy()})
    from triton_sam.export.sam2.graphs import Sam2Encoder

    with torch.no_grad():
        expected = Sam2Encoder(model)(image)
    assert [array.shape for array in found.values()] == [(2, 256, 32, 32), (2, 32, 128, 128), (2, 64, 64, 64)]
    for array, other in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(array, other.numpy(), atol=1e-4)
    assert "dims: [-1, 3, 512, 512]" in (small.repository / "sam2_encoder" / "config.pbtxt").read_text()


@pytest.mark.parametrize("family", ["sam1", "mobilesam", "samhq", "edgetam"])
def test_the_official_encoder_takes_another_image_size(family: str) -> None:
    pytest.importorskip(PACKAGES[family])
    exporter, spec = registry.exporter(family), get_family(family).at(512).encoder
    model = exporter.load(None, SMALLEST[family], image_size=512, random_seed=0)
    names = vars(sys.modules[type(exporter).__module__])
    wrapper = next(names[name] for name in names if name.lower() == f"{family}encoder")
    with torch.no_grad():  # torch's meta device computes shapes alone
        found = wrapper(model).to("meta")(torch.zeros(1, 3, 512, 512, device="meta"))
    found = found if isinstance(found, tuple) else (found,)
    assert [tuple(each.shape[1:]) for each in found] == [tensor.shape[1:] for tensor in spec.outputs]


# --- prompts


@pytest.fixture(scope="module", params=DECODERS)
def decode(request: pytest.FixtureRequest) -> Decode:
    """Return a function that decodes prompts on the embeddings of one image, or of several."""
    family = get_family(request.param)
    session = session_of(of(request.param).files["decoder"])
    drawn = {tensor.name: noise(number, 3, *tensor.shape[1:]) for number, tensor in enumerate(family.encoder.outputs)}

    def run(coords: Any, labels: Any, images: slice = slice(0, 1), **more: np.ndarray) -> Arrays:
        given = {name: array[images] for name, array in drawn.items()}
        given |= {"point_coords": np.array(coords, np.float32), "point_labels": np.array(labels, np.float32), **more}
        return run_graph(session, given, family.decoder.output_names)

    return run


def far(one: Arrays, other: Arrays) -> float:
    assert {name: array.shape for name, array in one.items()} == {name: array.shape for name, array in other.items()}
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def stacked(rows: list[Arrays]) -> Arrays:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


POINT, BOX, NOWHERE = [300.0, 400.0], [[100.0, 200.0], [500.0, 600.0]], [7.0, 7.0]
MASK = {"mask_input": noise(6, 1, 1, 256, 256) * 5, "has_mask_input": np.ones(1, np.float32)}


def test_there_is_a_padding_token_exactly_where_there_is_no_box(decode: Decode) -> None:
    assert far(decode([[POINT]], [[1]]), decode([[POINT, NOWHERE]], [[1, -1]])) > 1e-3
    assert far(decode([BOX], [[2, 3]]), decode([[*BOX, NOWHERE]], [[2, 3, -1]])) > 1e-3
    alone = decode(np.zeros((1, 0, 2)), np.zeros((1, 0)), **MASK)
    assert far(decode([[NOWHERE] * 2], [[-2, -2]], **MASK), alone) < 1e-5
    assert far(decode([[NOWHERE]], [[-1]], **MASK), alone) > 1e-3


def test_prompts_of_different_length_in_one_batch(decode: Decode) -> None:
    """Points that do not exist have the label -2, wherever they stand."""
    rows = [([POINT], [1]), (BOX, [2, 3]), ([*BOX, [90, 80], NOWHERE], [2, 3, 0, 1])]
    together = decode(
        [points + [NOWHERE] * (4 - len(points)) for points, _ in rows],
        [labels + [-2] * (4 - len(labels)) for _, labels in rows],
    )
    assert far(together, stacked([decode([points], [labels]) for points, labels in rows])) < 1e-5
    shifted = decode([[NOWHERE, NOWHERE, POINT]], [[-2, -2, 1]])
    assert far(shifted, decode([[POINT]], [[1]])) < 1e-5


def test_each_prompt_has_its_own_image_and_mask_or_shares_them(decode: Decode) -> None:
    points = np.random.default_rng(1).uniform(0, 1024, (3, 2, 2))
    labels = np.ones((3, 2))
    masks = {"mask_input": noise(7, 3, 1, 256, 256), "has_mask_input": np.array([1, 0, 1], np.float32)}

    def alone(row: int, image: int, more: Arrays) -> Arrays:
        return decode(points[row : row + 1], labels[:1], slice(image, image + 1), **more)

    own = [alone(row, row, {name: array[row : row + 1] for name, array in masks.items()}) for row in range(3)]
    assert far(decode(points, labels, slice(0, 3), **masks), stacked(own)) < 1e-5
    shared = stacked([alone(row, 0, MASK) for row in range(3)])
    assert far(decode(points, labels, **MASK), shared) < 1e-5
    repeated = {name: np.repeat(array, 3, axis=0) for name, array in MASK.items()}
    assert far(decode(points, labels, **repeated), shared) < 1e-5
    off = {**MASK, "has_mask_input": np.zeros(1, np.float32)}
    assert far(decode(points, labels), decode(points, labels, **off)) < 1e-9


# --- the command


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["sam1", "mobilesam", "samhq"])
def test_the_default_size_end_to_end(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(PACKAGES[family])
    assert main(["verify", family, "--random", "--local", "--json", "-q"]) == 0
    assert '"ok": true' in capsys.readouterr().out


@pytest.mark.slow
def test_exporting_again_keeps_the_configuration_and_its_settings(tmp_path: Path) -> None:
    def graph() -> bytes:
        settings = Settings(tmp_path, model=SMALLEST["sam2"], random_seed=0, progress=False)
        return registry.export("sam2", settings).files["decoder"].read_bytes()

    before, config = graph(), tmp_path / "sam2_decoder" / "config.pbtxt"
    os.utime(config, (1, 1))
    assert graph() == before
    assert config.stat().st_mtime == 1


@pytest.mark.slow
def test_verify_compares_what_a_repository_holds(images: Path) -> None:
    """The files of SAM3 have names of their own. test/unit/verify/test_verify.py has a comparison that fails."""
    command = ["verify", "sam3", "--random", "--exported", str(of("sam3").repository), "-q"]
    assert main([*command, "--image", str(images / "shapes.jpg")]) == 0
