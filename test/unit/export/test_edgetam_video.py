"""EdgeTAM in videos: each graph computes the same as transformers' model, and so do all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # its graphs take minutes to trace
torch = pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")
pytest.importorskip("sam2")
pytest.importorskip("onnxruntime")

from support.official_video import Arrays, noise  # noqa: E402
from support.video_export import write_video_models  # noqa: E402
from support.video_graphs import Graphs, edgetam_micro_graphs  # noqa: E402
from transformers import EdgeTamVideoInferenceSession  # noqa: E402

from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.export.edgetam.recipe import EXPORTER, has_video, image_model  # noqa: E402
from triton_sam.export.edgetam.video_graphs import EdgeTamMemoryAttention, sam2_of  # noqa: E402
from triton_sam.export.sam2.transformers_reference import (  # noqa: E402
    TransformersVideoReference,
    with_meta_rules,
)
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families.tracking import (  # noqa: E402
    MASK_PROMPT,
    MEMORY_ATTENTION,
    MEMORY_ENCODER,
    TRACKING_DECODER,
)
from triton_sam.scenes.clip import generate_clip  # noqa: E402
from triton_sam.verify import video as verify  # noqa: E402

SIDE, FRAMES = 256, 8
CELLS = SIDE // 16
TOLERANCE = 1e-4
TRANSFORMERS_ALONE = ("one object", "three objects", "object added midway", "both directions")
"""The cases in which transformers computes as Meta's predictor."""


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return edgetam_micro_graphs()


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max(initial=0))


def features(graphs: Graphs, objects: int = 1) -> tuple[Arrays, Any]:
    """Return random outputs of the encoder, and the embeddings without the no-memory embedding, as torch has them."""
    arrays = {
        "image_embeddings": noise(1, objects, 256, CELLS, CELLS),
        "high_res_feats_0": noise(2, 1, 32, SIDE // 4, SIDE // 4).repeat(objects, 0),
        "high_res_feats_1": noise(3, 1, 64, SIDE // 8, SIDE // 8).repeat(objects, 0),
    }
    bare = torch.from_numpy(arrays["image_embeddings"]) - graphs.model.no_memory_embedding.reshape(1, -1, 1, 1)
    return arrays, bare


def flat(image: Any) -> Any:
    return image.flatten(2).permute(2, 0, 1)


@pytest.mark.parametrize("prompted", [False, True])
@pytest.mark.parametrize("objects", [1, 3])
def test_memory_encoder(graphs: Graphs, objects: int, prompted: bool) -> None:
    arrays, bare = features(graphs)
    masks = noise(5, objects, 1, SIDE // 4, SIDE // 4) * 5
    scores = np.array([[3.0], [-2.0], [0.0]], np.float32)[:objects]
    large = torch.nn.functional.interpolate(torch.from_numpy(masks), (SIDE, SIDE), mode="bilinear")
    with torch.no_grad():
        rows = [
            graphs.model._encode_new_memory(flat(bare), large[row : row + 1], torch.from_numpy(scores[row]), prompted)
            for row in range(objects)
        ]
    inputs = {
        "image_embeddings": arrays["image_embeddings"],
        "masks": masks,
        "object_score_logits": scores,
        "is_prompted": np.full(objects, prompted, np.float32),
    }
    found = graphs.run(MEMORY_ENCODER, inputs)["memory"]
    assert found.shape == (objects, 512, 64)
    assert difference(found, torch.cat([memory for memory, _ in rows]).numpy()) < TOLERANCE


def official_attention(graphs: Graphs, bare: Any, memories: Arrays) -> np.ndarray:
    """Return the conditioned embeddings of each object from transformers' attention, one after the other."""
    model, rows = graphs.model, []
    shape = torch.Size([1, 64, 16, 16])
    parts = model.spatial_perceiver.positional_encoding(shape, "cpu", torch.float32).flatten(2).permute(2, 0, 1)
    positions = torch.cat([torch.zeros(256, 1, 64), parts])
    image_position = model.vision_encoder.neck.position_encoding(bare.shape, "cpu", torch.float32)
    for row, ages in enumerate(memories["memory_ages"]):
        tokens = [torch.from_numpy(memory)[:, None] for memory in memories["memories"][row]]
        pointers = torch.from_numpy(memories["object_pointers"][row]).reshape(-1, 1, 64)
        moments = [positions + model.memory_temporal_positional_encoding[age - 1] for age in ages]
        conditioned = model.memory_attention(
            flat(bare),
            torch.cat([*tokens, pointers]),
            flat(image_position),
            torch.cat([*moments, torch.zeros_like(pointers)]),
            num_object_pointer_tokens=len(pointers),
            num_spatial_memory_tokens=len(tokens),
        )
        rows.append(conditioned.squeeze(1).transpose(1, 2).reshape(1, -1, CELLS, CELLS))
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("pointers", [0, 5])
@pytest.mark.parametrize("ages", [[0], [0, 0, 6, 2, 1]])
@pytest.mark.parametrize("objects", [1, 3])
def test_memory_attention(graphs: Graphs, objects: int, ages: list[int], pointers: int) -> None:
    arrays, bare = features(graphs)
    memories = {
        "memories": noise(11, objects, len(ages), 512, 64),
        "memory_ages": np.tile(np.array(ages, np.int64), (objects, 1)),
        "object_pointers": noise(12, objects, pointers, 256),
        "pointer_ages": noise(13, objects, pointers),
    }
    with torch.no_grad():
        expected = official_attention(graphs, bare, memories)
    inputs = {"image_embeddings": arrays["image_embeddings"], **memories}
    found = graphs.run(MEMORY_ATTENTION, inputs)["conditioned_embeddings"]
    assert difference(found, expected) < TOLERANCE
    turned = {**inputs, "memories": memories["memories"][:, :, ::-1].copy()}  # a token's place decides how it is read
    assert difference(graphs.run(MEMORY_ATTENTION, turned)["conditioned_embeddings"], expected) > 0.01


def test_masks_as_prompts(graphs: Graphs) -> None:
    """The second mask is empty: its object is not visible."""
    arrays, bare = features(graphs, 2)
    mask = np.zeros((2, 1, SIDE, SIDE), np.float32)
    mask[0, :, SIDE // 3 : -7, 3 : SIDE // 2] = 1
    prepared = graphs.run(MASK_PROMPT, {"mask": mask})
    inputs = {
        **arrays,
        "point_coords": np.zeros((2, 1, 2), np.float32),
        "point_labels": -np.ones((2, 1), np.float32),
        "multimask": np.zeros(2, np.float32),
        "mask_prompt": np.array([1, -1], np.float32),
        "mask_input": prepared["mask_input"],
    }
    found = graphs.run(TRACKING_DECODER, inputs)
    official = with_meta_rules(graphs.model)
    for row in range(2):
        one = slice(row, row + 1)
        fine = [torch.from_numpy(arrays[f"high_res_feats_{level}"][one]) for level in (0, 1)]
        with torch.no_grad():
            expected = official._use_mask_as_output(bare[one], fine, torch.from_numpy(mask[one]))
        assert difference(prepared["masks"][one], expected.pred_masks.numpy()) < 1e-5
        assert difference(found["object_pointers"][one], expected.object_pointer.reshape(1, -1).numpy()) < TOLERANCE
        assert found["object_score_logits"][row, 0] == expected.object_score_logits.item()


def clip() -> list[np.ndarray]:
    return list(generate_clip(10_000_001, FRAMES).images)


@pytest.fixture(scope="module")
def runner(graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[verify.ClientRunner]:
    from triton_sam.client.video.sync import SAM2VideoClient
    from triton_sam.transport.onnx import OnnxTransport
    from triton_sam.verify.video_transport import VideoTransport

    folder = write_video_models(tmp_path_factory.mktemp("edgetam_video"), graphs).repository
    files = [folder / graphs.family.model_name(role) / "1" / "model.onnx" for role in graphs.specs]
    transport = VideoTransport(graphs.family, OnnxTransport({file.parents[1].name: file for file in files}))
    with SAM2VideoClient(model_type="edgetam", transport=transport) as client, client.open(clip()) as video:
        yield verify.ClientRunner(video)


@pytest.mark.parametrize("as_meta", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_every_case(
    graphs: Graphs, runner: verify.ClientRunner, as_meta: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = clip()
    size = frames[0].shape[1::-1]
    titles = [title for title in verify.cases(size, FRAMES) if as_meta or title in TRANSFORMERS_ALONE]
    chosen = {title: steps for title, steps in verify.cases(size, FRAMES).items() if title in titles}
    monkeypatch.setattr(verify, "cases", lambda *_: chosen)
    official = TransformersVideoReference(
        graphs.family, graphs.model, EdgeTamVideoInferenceSession, frames, as_meta=as_meta
    )
    reference = verify.ReferenceRunner(official)
    rows = list(verify.verify_video(reference, {"onnxruntime": runner}, size, FRAMES))
    assert [row.case for row in rows] == titles
    assert [row for row in rows if not row.passes(verify.threshold(FRAMES))] == []
    assert min(row.visible for row in rows) > 0.5


def test_tokens_of_the_whole_frame_are_not_rotated(graphs: Graphs) -> None:
    attention = EdgeTamMemoryAttention(sam2_of(graphs.model), fused=False)
    cosines, sines = attention._key_rotation(attention._rotation())
    assert (cosines[:256] == 1).all()
    assert (sines[:256] == 0).all()
    assert cosines.shape == (512, 128)
    assert cosines[256:].std() > 0.1


def test_checkpoints_hold_the_video_half(graphs: Graphs, tmp_path: Path) -> None:
    model = graphs.model
    model.save_pretrained(tmp_path / "videos")
    loaded = EXPORTER.load(tmp_path / "videos", "micro", image_size=SIDE)
    assert has_video(loaded)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())
    image_model(model).save_pretrained(tmp_path / "images")
    loaded = EXPORTER.load(tmp_path / "images", "micro", image_size=SIDE)
    assert not has_video(loaded)
    settings = Settings(tmp_path, tmp_path / "images", "micro", image_size=SIDE, video=True)
    with pytest.raises(ConfigurationError, match="no weights for videos"):
        EXPORTER.check(loaded, settings)
