"""SAM1: frames and masks equal those of the official code, the graphs keep their rules, and `verify` passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("segment_anything")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from segment_anything import SamPredictor  # noqa: E402
from segment_anything.modeling import Sam  # noqa: E402
from segment_anything.utils.onnx import SamOnnxModel  # noqa: E402
from segment_anything.utils.transforms import ResizeLongestSide  # noqa: E402
from support.commands import error_of  # noqa: E402
from support.export_checks import rows_of_a_tall_image  # noqa: E402
from support.family_exports import FamilyExport, sam1_micro  # noqa: E402
from support.warm_up import run_warm_up  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export import onnx_tools, registry  # noqa: E402
from triton_sam.export.pipeline import Exported  # noqa: E402
from triton_sam.export.precision import quantise, to_half  # noqa: E402
from triton_sam.export.sam1.model import SIZES, build_model, choose_size, load_model  # noqa: E402
from triton_sam.export.sam1.reference import Sam1Reference  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families.sam1 import PIXEL_MEAN, Sam1  # noqa: E402
from triton_sam.inputs.images import encoder_input, open_image  # noqa: E402
from triton_sam.masks.compare import intersection_over_union  # noqa: E402
from triton_sam.masks.resize import full_size_logits  # noqa: E402
from triton_sam.repository.config import config_for  # noqa: E402
from triton_sam.repository.install import remove_stale_data  # noqa: E402

SHAPES = [(600, 400), (400, 600), (1024, 1024), (333, 777), (1025, 3), (2047, 1365), (7, 5)]
FAMILY = Sam1()


@pytest.fixture(scope="module")
def micro() -> FamilyExport:
    return sam1_micro()


@pytest.fixture(scope="module")
def decoder(micro: FamilyExport) -> Any:
    session = onnxruntime.InferenceSession(micro.files["decoder"])
    embeddings = np.random.default_rng(0).standard_normal((1, 256, 64, 64), dtype=np.float32)

    def run(coords: Any, labels: Any, **more: np.ndarray) -> dict[str, np.ndarray]:
        prompt = {"point_coords": np.array(coords, np.float32), "point_labels": np.array(labels, np.float32)}
        names = Sam1.decoder.output_names
        answer = session.run(list(names), {"image_embeddings": embeddings, **prompt, **more})
        return dict(zip(names, answer, strict=True))

    return run


def far(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.parametrize("size", SHAPES)
def test_frame_is_the_official_one(size: tuple[int, int]) -> None:
    width, height = size
    transform = ResizeLongestSide(1024)
    assert FAMILY.resized(size)[::-1] == transform.get_preprocess_shape(height, width, 1024)
    corners = np.array([[0.0, 0.0], [width, height], [width / 3, height / 7]])
    np.testing.assert_allclose(
        corners * np.array(FAMILY.scale(size)), transform.apply_coords(corners, (height, width)), rtol=1e-12
    )


@pytest.mark.parametrize("size", SHAPES)
def test_encoder_input_is_the_official_one(size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8))
    model = Sam(torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity())
    model.image_encoder.img_size = 1024
    resized = ResizeLongestSide(1024).apply_image(np.asarray(image))
    expected = model.preprocess(torch.from_numpy(resized).permute(2, 0, 1)[None].float()).numpy()
    mean = np.array(PIXEL_MEAN, np.float32).reshape(1, 3, 1, 1)
    centred = encoder_input(image, FAMILY) - mean
    std = np.array([58.395, 57.12, 57.375], np.float32).reshape(1, 3, 1, 1) / np.float32(255)
    np.testing.assert_allclose(centred / std, expected, atol=1e-5)
    assert (centred[expected == 0] == 0).all()


@pytest.mark.parametrize("size", SHAPES[:4])
def test_full_size_masks_are_the_official_ones(size: tuple[int, int]) -> None:
    logits = np.random.default_rng(2).standard_normal((2, 3, 256, 256), dtype=np.float32)
    model = Sam(torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity())
    model.image_encoder.img_size = 1024
    expected = model.postprocess_masks(torch.from_numpy(logits), FAMILY.resized(size)[::-1], size[::-1])
    np.testing.assert_allclose(full_size_logits(logits, size, FAMILY), expected.numpy(), atol=1e-4)


@pytest.mark.slow
def test_export_equals_the_official_predictor(micro: FamilyExport, images: Path, tmp_path: Path) -> None:
    rows = rows_of_a_tall_image(Sam1Reference(micro.model), micro, "sam1", images, tmp_path)
    assert max(row.score_diff for row in rows) < 1e-4


@pytest.mark.slow
def test_the_official_onnx_decoder_gives_the_official_masks_with_our_embeddings(
    micro: FamilyExport, images: Path
) -> None:
    """Paintera's sam-link decodes our embeddings by an export of this official module."""
    image = open_image(images / "coffee.jpg")
    session = onnxruntime.InferenceSession(micro.files["encoder"])
    (embeddings,) = session.run(None, {FAMILY.encoder.input_names[0]: encoder_input(image, FAMILY)})
    predictor = SamPredictor(micro.model)
    predictor.set_image(np.asarray(image))
    decoder = SamOnnxModel(micro.model, return_single_mask=False)
    for points, labels in (([[300, 200]], [1]), ([[120, 90], [420, 310]], [1, 0])):
        masks, scores, logits = predictor.predict(np.array(points), np.array(labels), multimask_output=True)
        # The official example of that module adds a padding point where there is no box.
        coords = predictor.transform.apply_coords(np.array([*points, [0, 0]], np.float32), image.size[::-1])
        with torch.no_grad():
            answers = decoder(
                torch.from_numpy(embeddings),
                torch.from_numpy(coords[None].astype(np.float32)),
                torch.tensor([[*labels, -1.0]]),
                torch.zeros(1, 1, 256, 256),
                torch.zeros(1),
                torch.tensor(image.size[::-1], dtype=torch.float32),
            )
        full, quality, low = (each.numpy()[0, 1:] for each in answers)  # without the mask for several points
        np.testing.assert_allclose(low, logits, atol=1e-3)
        np.testing.assert_allclose(quality, scores, atol=1e-4)
        for found, mask in zip(full > 0, masks, strict=True):
            assert intersection_over_union(found, mask) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_signature_is_the_wire_contract(micro: FamilyExport, role: str) -> None:
    spec = getattr(Sam1, role)
    model = onnx.load(micro.files[role])
    for values, tensors in ((model.graph.input, spec.inputs), (model.graph.output, spec.outputs)):
        shapes = {v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
        assert shapes == {tensor.name: tensor.shape for tensor in tensors}
    assert model.ir_version <= 10
    committed = (bundled("model_repository") / f"sam1_{role}" / "config.pbtxt").read_text()
    assert config_for(micro.files[role], f"sam1_{role}") == committed
    assert all(np.isfinite(array).all() for array in run_warm_up(micro.files[role], committed))


@pytest.mark.slow
def test_padding_token_is_there_without_a_box_only(decoder: Any) -> None:
    point, box = [[300, 400]], [[100, 200], [500, 600]]
    assert far(decoder([point], [[1]]), decoder([[*point, [0, 0]]], [[1, -1]])) > 1e-3
    assert far(decoder([box], [[2, 3]]), decoder([[*box, [0, 0]]], [[2, 3, -1]])) > 1e-3


@pytest.mark.slow
def test_prompts_of_different_length_in_one_batch(decoder: Any) -> None:
    nothing = [7, 7]
    rows = [([[300, 400]], [1]), ([[1, 2], [500, 600]], [2, 3]), ([[1, 2], [500, 600], [90, 80]], [2, 3, 0])]
    together = decoder(
        [points + [nothing] * (3 - len(points)) for points, _ in rows],
        [labels + [-2] * (3 - len(labels)) for _, labels in rows],
    )
    alone = [decoder([points], [labels]) for points, labels in rows]
    assert far(together, {name: np.concatenate([row[name] for row in alone]) for name in together}) < 1e-5


@pytest.mark.slow
def test_mask_alone_and_defaults(decoder: Any) -> None:
    mask = {
        "mask_input": np.random.default_rng(3).standard_normal((1, 1, 256, 256), dtype=np.float32),
        "has_mask_input": np.ones(1, np.float32),
    }
    none = decoder(np.zeros((1, 0, 2)), np.zeros((1, 0)), **mask)
    assert far(none, decoder([[[1, 1]]], [[-2]], **mask)) < 1e-5
    off = {**mask, "has_mask_input": np.zeros(1, np.float32)}
    assert far(decoder([[[1, 1]]], [[1]]), decoder([[[1, 1]]], [[1]], **off)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_weights_above_the_limit(
    micro: FamilyExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(onnx_tools, "EXTERNAL_DATA_LIMIT", 1_000_000)
    graph = onnx.load(micro.files["encoder"])
    graph = {"fp32": lambda g: g, "fp16": to_half, "int8": quantise}[precision](graph)
    files = onnx_tools.save(graph, tmp_path / "model.onnx")
    assert files[-1].name == "model.onnx.data"
    assert files[-1].stat().st_mode == files[0].stat().st_mode  # Triton may run as another user
    onnx_tools.try_out(files[0])


def test_weights_beside_a_replaced_graph_go(tmp_path: Path) -> None:
    names = ("model.onnx", "model.onnx.data", "other.onnx.data", "notes.txt")
    for name in names:
        (tmp_path / name).touch()
    remove_stale_data([tmp_path / "model.onnx"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "notes.txt", "other.onnx.data"]
    (tmp_path / "model.onnx.data").touch()
    remove_stale_data([tmp_path / "model.onnx", tmp_path / "model.onnx.data"])
    assert (tmp_path / "model.onnx.data").exists()


def test_official_sizes_are_those_of_the_package() -> None:
    from segment_anything import sam_model_registry

    with torch.device("meta"):
        official = sam_model_registry["vit_b"]()
    shapes = {name: tensor.shape for name, tensor in official.state_dict().items()}
    with torch.device("meta"):
        built = build_model("vit_b").state_dict()
    assert {name: tensor.shape for name, tensor in built.items()} == shapes


@pytest.mark.slow
def test_checkpoint_and_other_image_size(micro: FamilyExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sam_vit_b_01ec64.pth"
    torch.save(micro.model.state_dict(), path)
    with pytest.raises(CheckpointError, match="--size"):
        load_model(path, None)
    monkeypatch.setitem(SIZES, "vit_b", SIZES["micro"])
    loaded = load_model(path, None)
    assert torch.equal(loaded.image_encoder.pos_embed, micro.model.image_encoder.pos_embed)
    small = load_model(path, None, image_size=256)
    assert small.image_encoder.pos_embed.shape[1:3] == (16, 16)


def test_size_by_file_name() -> None:
    assert choose_size(Path("sam_vit_h_4b8939.pth"), None) == "vit_h"
    with pytest.raises(ConfigurationError, match="--size"):
        choose_size(Path("mine.pth"), None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image_size": 1000}, "multiple of 16"),
        ({"model": "vit_x"}, "vit_b, vit_l, vit_h"),
        ({"model": None}, "--size"),
        ({"random_seed": None}, "checkpoint"),
        ({"name": "../evil"}, "model name"),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    arguments = {"model": "micro", "random_seed": 0, "progress": False, **options}
    with pytest.raises(ConfigurationError, match=text):
        registry.export("sam1", Settings(tmp_path / "repository", **arguments))
    assert not (tmp_path / "repository").exists()


@pytest.mark.slow
def test_verify_of_what_a_repository_holds(
    micro: FamilyExport, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", "sam1", "--random", "--size", "micro", "--exported", str(micro.repository), "--json", "-q"]
    assert main([*arguments, "--image", str(images / "shapes.jpg")]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main([*arguments, "--image", str(images / "shapes.jpg"), "--seed", "1"]) == 1  # other weights


def test_sizes_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(registry, "export", lambda *given: asked.append(given) or Exported({}, 1, {}))
    for family in ("sam1", "sam2", "sam3"):
        assert main(["export", family, "--random", "0"]) == 0
    assert main(["export", "sam1", "--random", "0", "--size", "vit_h"]) == 0
    assert main(["export", "sam3", "--random", "0", "--size", "full"]) == 0
    sam2 = "configs/sam2.1/sam2.1_hiera_t.yaml"
    expected = [("sam1", "vit_b"), ("sam2", sam2), ("sam3", "reduced"), ("sam1", "vit_h"), ("sam3", "full")]
    assert [(family, settings.model) for family, settings in asked] == expected
    assert {settings.checkpoint for _, settings in asked} == {None}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["verify", "sam1", "--random", "--size", "tiny", "-q"], "no size 'tiny'"),
        (["export", "sam1", "--random", "0", "--model-cfg", "x", "-q"], "--model-cfg is for sam2"),
        (["export", "sam1", "--random", "0", "--size", "tiny", "-q"], "no size 'tiny': choose one of vit_b, vit_l"),
        (
            ["export", "sam1", "--random", "0", "--size", "vit_b", "--model-type", "vit_b", "-q"],
            "--size and --model-type say the same: give one of them",
        ),
        (["export", "sam3", "--checkpoint", "sam3", "--size", "full", "-q"], "--size is for --random"),
        (["export", "sam1", "--checkpoint", "mine.pth", "--size", "vit_l", "-q"], "triton-sam download sam1 vit_l"),
        (["export", "sam1", "--checkpoint", "mine.pth", "--model-type", "vit_l", "-q"], "download sam1 vit_l"),
        (["verify", "sam1", "--random", "--exported", ".", "-q"], "no weights for sam1"),
        (["export", "sam1", "--checkpoint", "no_such_vit_b.pth", "-q"], "triton-sam download sam1 vit_b"),
        (["download", "sam1", "base", "-q"], "vit_b, vit_l, vit_h"),
    ],
)
def test_command_errors_are_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in error_of(arguments, capsys)


@pytest.mark.nightly
def test_official_size_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "sam1", "--random", "--size", "vit_b", "--local", "--json", "-q"]) == 0
    assert {row["runner"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"onnxruntime", "served"}
