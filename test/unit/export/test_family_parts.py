"""Features of a single family, and parts of official models that our graphs compute in another way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("segment_anything")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("sam2")

from sam2.utils.misc import load_video_frames  # noqa: E402
from segment_anything import SamPredictor  # noqa: E402
from segment_anything.modeling import Sam  # noqa: E402
from segment_anything.utils.onnx import SamOnnxModel  # noqa: E402
from segment_anything.utils.transforms import ResizeLongestSide  # noqa: E402
from support.family_exports import PACKAGES, SMALLEST, FamilyExport, run_graph, sam1_micro  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Decoder  # noqa: E402
from triton_sam.export.sam2.recipe import EXPORTER, find_config, guess_config  # noqa: E402
from triton_sam.export.sam2.video_reference import Sam2VideoReference  # noqa: E402
from triton_sam.families.edgetam import EDGETAM  # noqa: E402
from triton_sam.families.sam1 import PIXEL_MEAN, SAM1  # noqa: E402
from triton_sam.families.sam2 import SAM2  # noqa: E402
from triton_sam.inputs.images import encoder_input, open_image  # noqa: E402
from triton_sam.masks.boxes import intersection_over_union  # noqa: E402
from triton_sam.masks.resize import full_size_logits  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient  # noqa: E402
from triton_sam.verify.compare import verify_sam2  # noqa: E402

SHAPES = [(600, 400), (400, 600), (1024, 1024), (333, 777), (1025, 3), (2047, 1365), (7, 5)]
FAMILY = SAM1


@pytest.fixture(scope="module")
def micro() -> FamilyExport:
    return sam1_micro()


def test_frame_is_the_official_one() -> None:
    transform = ResizeLongestSide(1024)
    drawn = np.random.default_rng(0).integers(10, 3000, (300, 2)).tolist()
    for width, height in [*SHAPES, *drawn]:
        size = width, height
        assert FAMILY.resized(size)[::-1] == transform.get_preprocess_shape(height, width, 1024), size
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
def test_the_official_onnx_decoder_gives_the_official_masks_with_our_embeddings(
    micro: FamilyExport, images: Path
) -> None:
    """Paintera's sam-link decodes our embeddings by an export of this official module."""
    image = open_image(images / "coffee.jpg")
    given = {FAMILY.encoder.input_names[0]: encoder_input(image, FAMILY)}
    (embeddings,) = run_graph(micro.files["encoder"], given).values()
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


CONFIG = "sam2.1_hiera_micro"


def test_single_mask_choice_is_the_official_one() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.randn(8, 4, 32, 32, generator=generator)
    masks[::2, 0] *= 100.0  # stable: few logits are within the delta
    masks[1, 0] = -5.0  # empty: stable by definition
    scores = torch.rand(8, 4, generator=generator)
    decoder = Sam2Decoder(EXPORTER.load(None, CONFIG, image_size=256, random_seed=0))
    chosen = decoder._choose_single(masks, scores)
    expected, expected_scores = decoder.decoder._dynamic_multimask_via_stability(masks, scores)
    assert 0 < int((chosen == 0).sum()) < 8
    assert torch.equal(masks[torch.arange(8), chosen].unsqueeze(1), expected)
    assert torch.equal(scores[torch.arange(8), chosen].unsqueeze(1), expected_scores)


@pytest.mark.slow
def test_the_committed_models_have_the_weights_of_the_committed_checkpoint(images: Path) -> None:
    """The trained weights give logits a hundred times as large as random ones, so that errors show."""
    client = OnnxClient(
        {role: bundled(f"model_repository/sam2_{role}/1/model.onnx") for role in ("encoder", "decoder")}
    )
    model = EXPORTER.load(bundled(f"checkpoints/{SAM2.built_in}.pt"), CONFIG)
    rows = verify_sam2(model, images / "coffee.jpg", {"committed": client})
    assert len(rows) == 14
    assert [row for row in rows if not row.passes(THRESHOLDS["fp32"])] == []
    client.set_image(images / "coffee.jpg")
    (segment,) = client.segment(point_coords=[[300, 200]], point_labels=[1])
    assert np.ptp(segment.logits) > 10


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
    guessed = guess_config(Path(name))
    assert find_config(guessed).name == config
    named = find_config(config)  # as SAM2_MODEL_CFG names it; sam2 has copies beside the folder, too
    assert named.read_bytes() == find_config(guessed).read_bytes()


def test_a_path_into_a_clone_stands_for_the_configuration_of_the_package(tmp_path: Path, monkeypatch) -> None:
    """The first README gave --model-cfg as a path into sam2_repo, which the export does not need any more."""
    monkeypatch.chdir(tmp_path)
    name = "configs/sam2.1/sam2.1_hiera_b+.yaml"
    for clone in (Path("sam2_repo"), tmp_path / "sam2_repo"):
        assert find_config(clone / "sam2" / name) == find_config(name)
    mine = tmp_path / "sam2_repo" / "sam2" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("model: {}")
    assert find_config(f"sam2_repo/sam2/{name}").read_text() == "model: {}"  # the clone itself comes first
    for unknown in ("sam2_repo/sam2/configs/none.yaml", f"elsewhere/{name}"):
        with pytest.raises(ConfigurationError, match="no model configuration"):
            find_config(unknown)


@pytest.mark.parametrize("name", ["mine.pt", "sam2_hiera_micro.pt"])
def test_a_file_name_that_tells_no_size_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="give --model-cfg"):
        guess_config(Path(name))


@pytest.mark.slow
def test_a_checkpoint_of_sam20_loads_with_its_own_configuration_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "sam2_hiera_tiny.pt"
    model = EXPORTER.build("sam2_hiera_t.yaml", 256)
    torch.save({"model": model.state_dict()}, checkpoint)
    loaded = EXPORTER.load(checkpoint, None, image_size=256).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    with pytest.raises(CheckpointError, match="--model-cfg"):
        EXPORTER.load(checkpoint, "sam2.1_hiera_t.yaml", image_size=256)


def test_frames_of_the_video_reference_enter_as_the_official_loader_reads_them(tmp_path: Path) -> None:
    side, read = 512, []
    for index in range(4):
        drawn = np.random.default_rng(index).integers(0, 256, (9, 12, 3), np.uint8)
        Image.fromarray(drawn).resize((120, 90)).save(tmp_path / f"{index:05}.jpg", quality=95)
        read.append(np.array(Image.open(tmp_path / f"{index:05}.jpg")))
    official, height, width = load_video_frames(str(tmp_path), side, False, compute_device=torch.device("cpu"))
    own = Sam2VideoReference(EXPORTER.load(None, CONFIG, image_size=side, random_seed=0), read)
    assert (height, width) == own._size
    assert torch.equal(own._images, official)


COORDS = torch.tensor([[[300.0, 200], [700, 800]], [[10, 20], [500, 400]]])
LABELS = torch.tensor([[1.0, 0], [1, 1]])


def noise(*shape: int) -> Any:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def edgetam(model: Any) -> tuple[Any, Any]:
    from triton_sam.export.edgetam.graphs import EdgeTamEncoder

    image = noise(1, 3, 1024, 1024)
    mean, std = (torch.tensor(each).reshape(1, 3, 1, 1) for each in (EDGETAM.pixel_mean, EDGETAM.pixel_std))
    fine, middle, coarse = model.get_image_embeddings((image - mean) / std)
    return EdgeTamEncoder(model)(image), (coarse, fine, middle)


def mobilesam(model: Any) -> tuple[Any, Any]:
    from triton_sam.export.mobilesam import MobileSamEncoder

    image = noise(1, 3, 1024, 1024)
    model.eval()  # the official code copies the attention biases here
    official = model.image_encoder((image * 255 - model.pixel_mean) / model.pixel_std)
    return (MobileSamEncoder(model)(image),), (official,)


def samhq(model: Any, *, multimask: bool = False) -> tuple[Any, Any]:
    """Decode two prompts on random embeddings. The results are logits and scores."""
    from segment_anything_hq import SamPredictor

    from triton_sam.export.samhq import SamHqDecoder, SamHqEncoder

    embeddings, early = noise(1, 256, 64, 64) - 0.5, noise(1, 64, 64, 32) - 0.5
    features = SamHqEncoder(model).features(embeddings, early.permute(0, 3, 1, 2))
    found = SamHqDecoder(model)(embeddings, features, COORDS, LABELS, torch.zeros(1, 1, 256, 256), torch.zeros(1))
    predictor = SamPredictor(model)
    predictor.features, predictor.interm_features, predictor.is_image_set = embeddings, [early], True
    predictor.input_size = predictor.original_size = (1024, 1024)
    _, scores, logits = predictor.predict_torch(COORDS, LABELS, multimask_output=multimask)
    return found[2 * multimask : 2 * multimask + 2], (logits, scores)


ATTENTION = "layers.2.blocks.0.attn."
PARTS: dict[Callable[[Any], tuple[Any, Any]], list[str]] = {
    edgetam: ["no_memory_embedding", "running_mean", "running_var"],  # 0 or 1 in a fresh model
    mobilesam: [f"{ATTENTION}{name}" for name in ("norm.weight", "norm.bias", "qkv.bias", "attention_biases")],
    samhq: ["hf_token", "hf_mlp", "embedding_encoder", "compress_vit_feat", "embedding_maskfeature"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("compute", "part"), [(compute, part) for compute in PARTS for part in PARTS[compute]])
@torch.no_grad()
def test_each_part_is_in_the_graph(compute: Callable[[Any], tuple[Any, Any]], part: str) -> None:
    family = compute.__name__
    pytest.importorskip(PACKAGES[family])
    model = registry.exporter(family).load(None, SMALLEST[family], random_seed=0)
    before = compute(model)[0][0].clone()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if part in name:
            tensor.mul_(1.5).add_(torch.linspace(-0.3, 0.3, tensor.numel()).reshape(tensor.shape))
    ours, official = compute(model)
    tolerances = [3e-5 * max(1.0, float(expected.abs().max())) for expected in official]
    assert (ours[0] - before).abs().max() > 5 * tolerances[0]
    for found, expected, tolerance in zip(ours, official, tolerances, strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


@pytest.mark.slow
@torch.no_grad()
def test_each_object_of_samhq_gets_the_best_of_its_three_masks() -> None:
    """The bias of the last layer prefers one mask after the other."""
    pytest.importorskip(PACKAGES["samhq"])
    model = registry.exporter("samhq").load(None, SMALLEST["samhq"], random_seed=0)
    best, bias = set(), model.mask_decoder.iou_prediction_head.layers[-1].bias
    for token in (1, 2, 3):
        bias[token] += 100
        (logits, scores), (expected, expected_scores) = samhq(model, multimask=True)
        bias[token] -= 100
        assert logits.shape == (2, 1, 256, 256)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=1e-5)
        best.add(float(logits.sum()))
    assert len(best) == 3
