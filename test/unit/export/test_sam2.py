"""SAM2 export: the wire contract, padding and batches, and failures that leave the repository unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("sam2")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from support.micro_export import CONFIG, MicroExport  # noqa: E402
from support.warm_up import run_warm_up  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export import onnx_tools, registry  # noqa: E402
from triton_sam.export.sam2 import model as sam2_model  # noqa: E402
from triton_sam.export.sam2 import recipe as sam2  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Decoder  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families.sam2 import Sam2  # noqa: E402
from triton_sam.repository.config import config_for  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient  # noqa: E402
from triton_sam.verify.compare import verify_sam2  # noqa: E402

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def decoder(micro_export: MicroExport) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(micro_export.files["decoder"], options)

    def run(**inputs: np.ndarray) -> Arrays:
        names = Sam2.decoder.output_names
        return dict(zip(names, session.run(list(names), inputs), strict=True))

    return run


@pytest.fixture(scope="module")
def embeddings() -> Arrays:
    """The embeddings of three images."""
    return {
        "image_embeddings": noise(1, 3, 256, 64, 64),
        "high_res_feats_0": noise(2, 3, 32, 256, 256),
        "high_res_feats_1": noise(3, 3, 64, 128, 128),
    }


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def one_image(embeddings: Arrays, index: int = 0) -> Arrays:
    return {name: array[index : index + 1] for name, array in embeddings.items()}


def points(*labels: int, seed: int = 0) -> Arrays:
    coords = np.random.default_rng(seed).uniform(0, 1024, (1, len(labels), 2)).astype(np.float32)
    return {"point_coords": coords, "point_labels": np.array([labels], np.float32)}


def assert_close(found: Arrays, expected: Arrays, tolerance: float = 1e-5) -> None:
    for name in expected:
        assert found[name].shape == expected[name].shape
        assert np.abs(found[name] - expected[name]).max() < tolerance, name


def stack(rows: list[Arrays]) -> Arrays:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("spec", [Sam2.encoder, Sam2.decoder], ids=lambda spec: spec.role)
def test_signature_is_the_wire_contract(micro_export: MicroExport, spec: Any) -> None:
    model = onnx.load(micro_export.files[spec.role])
    for values, tensors in ((model.graph.input, spec.inputs), (model.graph.output, spec.outputs)):
        shapes = {v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
        assert shapes == {tensor.name: tensor.shape for tensor in tensors}
    defaults = {item.name for item in model.graph.initializer} & set(spec.input_names)
    assert defaults == {tensor.name for tensor in spec.inputs if tensor.optional}
    assert model.ir_version <= 10
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [18]


def test_no_local_path_in_the_file(micro_export: MicroExport) -> None:
    for path in micro_export.files.values():
        assert str(Path.cwd()).encode() not in path.read_bytes()
        assert b"sam2_graphs.py" not in path.read_bytes()


def test_metadata_says_what_it_is(micro_export: MicroExport) -> None:
    metadata = {entry.key: entry.value for entry in onnx.load(micro_export.files["encoder"]).metadata_props}
    assert metadata["triton_sam.family"] == "sam2"
    assert metadata["triton_sam.checkpoint"] == "random seed 0"
    assert metadata["triton_sam.config"] == CONFIG
    assert metadata["triton_sam.precision"] == "fp32"


def test_checkpoint_is_named_with_its_hash(micro_export: MicroExport, traced_micro: None, tmp_path: Path) -> None:
    checkpoint = tmp_path / "sam2.1_hiera_micro.pt"
    torch.save({"model": micro_export.model.state_dict()}, checkpoint)
    metadata = registry.export(
        "sam2", Settings(tmp_path / "repository", checkpoint=checkpoint, progress=False)
    ).metadata
    assert metadata["triton_sam.checkpoint"] == "sam2.1_hiera_micro"
    assert len(metadata["triton_sam.checkpoint_sha256"]) == 64


def test_progress_and_nothing_else_on_stderr(micro_export: MicroExport) -> None:
    lines = micro_export.stderr.strip().splitlines()
    assert len(lines) == 7
    assert all(line.startswith("sam2: ") for line in lines)


def test_prompts_of_different_length_in_one_batch(decoder: Any, embeddings: Arrays) -> None:
    image = one_image(embeddings)
    prompts = [points(1, seed=1), points(2, 3, seed=2), points(1, 0, 1, 0, seed=3), points(2, 3, 1, 0, 1, 1, seed=4)]
    padded = {"point_coords": noise(9, 4, 6, 2), "point_labels": np.full((4, 6), -2, np.float32)}
    for row, prompt in enumerate(prompts):
        count = prompt["point_labels"].shape[1]
        padded["point_coords"][row, :count] = prompt["point_coords"][0]
        padded["point_labels"][row, :count] = prompt["point_labels"][0]
    alone = stack([decoder(**image, **prompt) for prompt in prompts])
    assert_close(decoder(**image, **padded), alone)


def test_padding_in_front_of_the_points(decoder: Any, embeddings: Arrays) -> None:
    image, prompt = one_image(embeddings), points(1, 0)
    shifted = {
        "point_coords": np.concatenate([noise(5, 1, 3, 2), prompt["point_coords"]], axis=1),
        "point_labels": np.array([[-2, -2, -2, 1, 0]], np.float32),
    }
    assert_close(decoder(**image, **shifted), decoder(**image, **prompt))


def test_no_point_is_no_padding_token_either(decoder: Any, embeddings: Arrays) -> None:
    image = one_image(embeddings)
    mask = {"mask_input": noise(6, 1, 1, 256, 256) * 5, "has_mask_input": np.ones(1, np.float32)}
    nothing = decoder(**image, **points(), **mask)
    assert_close(decoder(**image, **points(-2, -2), **mask), nothing)
    assert np.abs(decoder(**image, **points(-1), **mask)["masks"] - nothing["masks"]).max() > 1e-3


def test_images_times_prompts(decoder: Any, embeddings: Arrays) -> None:
    prompts = [points(1, 0, seed=seed) for seed in range(3)]
    masks = {"mask_input": noise(7, 3, 1, 256, 256), "has_mask_input": np.array([1, 0, 1], np.float32)}
    alone = [
        decoder(**one_image(embeddings, row), **prompts[row], **{name: masks[name][row : row + 1] for name in masks})
        for row in range(3)
    ]
    assert_close(decoder(**embeddings, **stack(prompts), **masks), stack(alone))


def test_one_image_many_prompts_shared_and_own_masks(decoder: Any, embeddings: Arrays) -> None:
    image, prompts = one_image(embeddings), [points(1, seed=seed) for seed in range(3)]
    shared = {"mask_input": noise(8, 1, 1, 256, 256), "has_mask_input": np.ones(1, np.float32)}
    own = {name: np.repeat(array, 3, axis=0) for name, array in shared.items()}
    alone = stack([decoder(**image, **prompt, **shared) for prompt in prompts])
    assert_close(decoder(**image, **stack(prompts), **shared), alone)
    assert_close(decoder(**image, **stack(prompts), **own), alone)


@pytest.mark.parametrize("count", [1, 3])
def test_mask_inputs_are_optional(decoder: Any, embeddings: Arrays, count: int) -> None:
    image, prompts = one_image(embeddings), stack([points(1, 0, seed=seed) for seed in range(count)])
    off = {"mask_input": noise(8, 1, 1, 256, 256), "has_mask_input": np.zeros(1, np.float32)}
    assert_close(decoder(**image, **prompts), decoder(**image, **prompts, **off), 1e-9)


def test_single_mask_choice_is_the_official_one(micro_export: MicroExport) -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.randn(8, 4, 32, 32, generator=generator)
    masks[::2, 0] *= 100.0  # stable: few logits are within the delta
    masks[1, 0] = -5.0  # empty: stable by definition
    scores = torch.rand(8, 4, generator=generator)
    decoder = Sam2Decoder(micro_export.model)
    chosen = decoder._choose_single(masks, scores)
    expected, expected_scores = decoder.decoder._dynamic_multimask_via_stability(masks, scores)
    assert 0 < int((chosen == 0).sum()) < 8
    assert torch.equal(masks[torch.arange(8), chosen].unsqueeze(1), expected)
    assert torch.equal(scores[torch.arange(8), chosen].unsqueeze(1), expected_scores)


# Rounding changes the micro model with random weights more than the official sizes, which THRESHOLDS is for.
SMALLER = [pytest.param("fp16", 0.99, marks=pytest.mark.slow), pytest.param("int8", 0.95, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("precision", "bar"), SMALLER)
def test_smaller_numbers_keep_the_masks(
    micro_export: MicroExport, traced_micro: None, images: Path, tmp_path: Path, precision: str, bar: float
) -> None:
    files = registry.export(
        "sam2", Settings(tmp_path, model=CONFIG, random_seed=0, precision=precision, progress=False)
    ).files
    assert files["encoder"].stat().st_size < 0.6 * micro_export.files["encoder"].stat().st_size
    for path in files.values():
        model = onnx.load(path)
        types = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
        assert types == {onnx.TensorProto.FLOAT}
    rows = verify_sam2(micro_export.model, images / "coffee.jpg", {precision: OnnxClient(files)})
    assert min(row.iou for row in rows) > bar


@pytest.mark.slow
def test_the_committed_models_have_the_weights_of_the_committed_checkpoint(images: Path) -> None:
    """The trained weights give logits a hundred times as large as random ones, so that errors show."""
    client = OnnxClient(
        {role: bundled(f"model_repository/sam2_{role}/1/model.onnx") for role in ("encoder", "decoder")}
    )
    model = sam2.load_model(bundled(f"checkpoints/{Sam2.built_in}.pt"), CONFIG)
    rows = verify_sam2(model, images / "coffee.jpg", {"committed": client})
    assert len(rows) == 14
    assert [row for row in rows if not row.passes(THRESHOLDS["fp32"])] == []
    client.set_image(images / "coffee.jpg")
    (segment,) = client.segment(point_coords=[[300, 200]], point_labels=[1])
    assert np.ptp(segment.logits) > 10


@pytest.mark.slow
def test_half_storage_halves_the_file(micro_export: MicroExport, traced_micro: None, tmp_path: Path) -> None:
    files = registry.export(
        "sam2", Settings(tmp_path, model=CONFIG, random_seed=0, half_storage=True, progress=False)
    ).files
    image = np.random.default_rng(0).random((1, 3, 1024, 1024), np.float32)
    for role, path in files.items():
        assert path.stat().st_size < 0.55 * micro_export.files[role].stat().st_size
    exact, stored = (
        onnxruntime.InferenceSession(path).run(None, {"image": image})[0]
        for path in (micro_export.files["encoder"], files["encoder"])
    )
    assert 0 < np.abs(stored - exact).max() < 0.01 * np.abs(exact).max()


def test_random_weights_follow_the_seed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (sam2.load_model(None, CONFIG, random_seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(
        torch.equal(one[name], other[name]) for name in one if one[name].is_floating_point() and one[name].numel() > 1
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "../evil"}, "model name"),
        ({"name": ""}, "model name"),
        ({"image_size": 1000}, "multiple of 32"),
        ({"image_size": 0}, "multiple of 32"),
        ({"precision": "fp8"}, "fp32, fp16, int8"),
        ({"precision": "int8", "half_storage": True}, "half storage"),
        ({"version": 0}, "from 1"),
        ({"device": "nonsense"}, "nonsense"),
        ({"random_seed": None}, "checkpoint"),
        ({"model": "no_such_config"}, "no_such_config"),
        ({"model": None}, "--model-cfg"),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    arguments = {"model": CONFIG, "random_seed": 0, "progress": False, **options}
    with pytest.raises(ConfigurationError, match=text):
        registry.export("sam2", Settings(tmp_path / "repository", **arguments))
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sam2.1_hiera_large.pt", "sam2.1_hiera_l.yaml"),
        ("sam2_hiera_large.pt", "sam2_hiera_l.yaml"),
        ("sam2_hiera_base_plus.pt", "sam2_hiera_b+.yaml"),
        ("my_hiera_tiny.pt", "sam2.1_hiera_t.yaml"),
        ("sam2.1_hiera_micro.pt", "sam2.1_hiera_micro.yaml"),
    ],
)
def test_the_configuration_follows_the_file_name(name: str, config: str) -> None:
    guessed = sam2_model.guess_config(Path(name))
    assert sam2_model.find_config(guessed).name == config
    named = sam2_model.find_config(config)  # as SAM2_MODEL_CFG names it; sam2 has copies beside the folder, too
    assert named.read_bytes() == sam2_model.find_config(guessed).read_bytes()


def test_a_path_into_a_clone_stands_for_the_configuration_of_the_package(tmp_path: Path, monkeypatch) -> None:
    """The first README gave --model-cfg as a path into sam2_repo, which the export does not need any more."""
    monkeypatch.chdir(tmp_path)
    name = "configs/sam2.1/sam2.1_hiera_b+.yaml"
    for clone in (Path("sam2_repo"), tmp_path / "sam2_repo"):
        assert sam2_model.find_config(clone / "sam2" / name) == sam2_model.find_config(name)
    mine = tmp_path / "sam2_repo" / "sam2" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("model: {}")
    assert sam2_model.find_config(f"sam2_repo/sam2/{name}").read_text() == "model: {}"  # the clone itself comes first
    for unknown in ("sam2_repo/sam2/configs/none.yaml", f"elsewhere/{name}"):
        with pytest.raises(ConfigurationError, match="no model configuration"):
            sam2_model.find_config(unknown)


@pytest.mark.parametrize("name", ["mine.pt", "sam2_hiera_micro.pt"])
def test_a_file_name_that_tells_no_size_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="give --model-cfg"):
        sam2_model.guess_config(Path(name))


def test_a_checkpoint_of_sam20_loads_with_its_own_configuration_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "sam2_hiera_tiny.pt"
    model = sam2_model.build_model("sam2_hiera_t.yaml", 256)
    torch.save({"model": model.state_dict()}, checkpoint)
    loaded = sam2.load_model(checkpoint, None, image_size=256).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    with pytest.raises(CheckpointError, match="--model-cfg"):
        sam2.load_model(checkpoint, "sam2.1_hiera_t.yaml", image_size=256)


def test_exporting_again_leaves_the_config_alone(traced_micro: None, tmp_path: Path) -> None:
    registry.export("sam2", Settings(tmp_path, model=CONFIG, random_seed=0, progress=False))
    config = tmp_path / "sam2_decoder" / "config.pbtxt"
    os.utime(config, (1, 1))
    before = (tmp_path / "sam2_decoder/1/model.onnx").read_bytes()
    registry.export("sam2", Settings(tmp_path, model=CONFIG, random_seed=0, progress=False))
    assert config.stat().st_mtime == 1
    assert (tmp_path / "sam2_decoder/1/model.onnx").read_bytes() == before


@pytest.mark.parametrize("name", ["sam2_encoder", "sam2_decoder"])
def test_committed_config_is_what_the_export_writes(micro_export: MicroExport, name: str) -> None:
    """With the metadata of the demo model, since its config.pbtxt names its checkpoint."""
    committed = (bundled("model_repository") / name / "config.pbtxt").read_text()
    file = micro_export.files[name.removeprefix("sam2_")]
    model = onnx.load(file)
    random_weights = config_for(model, name)
    onnx.helper.set_model_props(model, {"triton_sam.checkpoint": Sam2.built_in})
    assert config_for(model, name) == committed
    assert committed.startswith(random_weights)
    assert all(np.isfinite(array).all() for array in run_warm_up(file, committed))


def test_large_weights_go_to_a_file_of_their_own(
    micro_export: MicroExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_tools, "EXTERNAL_DATA_LIMIT", 1_000_000)
    model = onnx.load(micro_export.files["decoder"])
    written = onnx_tools.save(model, tmp_path / "model.onnx")
    assert [path.name for path in written] == ["model.onnx", "model.onnx.data"]
    assert written[0].stat().st_size < 1_000_000 < written[1].stat().st_size
    onnx_tools.try_out(written[0])


@pytest.mark.slow
def test_other_image_size(tmp_path: Path) -> None:
    files = registry.export(
        "sam2", Settings(tmp_path, model=CONFIG, image_size=256, random_seed=0, progress=False)
    ).files
    model = sam2.load_model(None, CONFIG, image_size=256, random_seed=0)
    image = torch.rand(2, 3, 256, 256)
    encoder = onnxruntime.InferenceSession(files["encoder"])
    found = encoder.run(None, {"image": image.numpy()})
    with torch.no_grad():
        expected = sam2.Sam2Encoder(model)(image)
    assert [array.shape for array in found] == [(2, 256, 16, 16), (2, 32, 64, 64), (2, 64, 32, 32)]
    assert max(np.abs(one - other.numpy()).max() for one, other in zip(found, expected, strict=True)) < 1e-4
    assert "dims: [-1, 3, 256, 256]" in (tmp_path / "sam2_encoder" / "config.pbtxt").read_text()
