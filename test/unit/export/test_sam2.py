"""What only SAM2 has: its choice of a single mask, the demo model, and configurations by the names of checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("sam2")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from PIL import Image  # noqa: E402
from sam2.utils.misc import load_video_frames  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Decoder  # noqa: E402
from triton_sam.export.sam2.recipe import EXPORTER, find_config, guess_config  # noqa: E402
from triton_sam.export.sam2.video_reference import Sam2VideoReference  # noqa: E402
from triton_sam.families.sam2 import SAM2  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient  # noqa: E402
from triton_sam.verify.compare import verify_sam2  # noqa: E402

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
