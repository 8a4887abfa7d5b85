"""SAM3 in videos: each module computes the same as transformers' model, and so do all graphs together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sam2")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from safetensors.torch import load_file, save_file  # noqa: E402
from support.official_video import noise  # noqa: E402
from support.official_words import whole_configuration  # noqa: E402
from support.video_graphs import (  # noqa: E402
    check_every_case,
    check_signature,
    clip,
    sam3_reduced_graphs,
    sam3_video_model,
    video_client,
)
from transformers import Sam3TrackerVideoInferenceSession, Sam3VideoModel  # noqa: E402

from triton_sam.client.video.sync import SAM2VideoClient  # noqa: E402
from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export.sam2.memory_graphs import get_1d_sine_pe  # noqa: E402
from triton_sam.export.sam2.video_reference import with_meta_rules  # noqa: E402
from triton_sam.export.sam3.recipe import EXPORTER  # noqa: E402
from triton_sam.export.sam3.video_graphs import graphs, sam2_of  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.export.weights import randomise  # noqa: E402
from triton_sam.families.sam3 import TRACKING  # noqa: E402
from triton_sam.families.tables import ENCODER  # noqa: E402
from triton_sam.families.tracking import (  # noqa: E402
    MASK_PROMPT,
    MEMORY_ATTENTION,
    MEMORY_ENCODER,
    TRACKING_DECODER,
)
from triton_sam.verify import video as verify  # noqa: E402

CELLS, FRAMES = 24, 6
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model() -> Any:
    return sam3_video_model()


@pytest.fixture(params=[False, True], ids=["published", "meta"])
def module(request: pytest.FixtureRequest, model: Any) -> Any:
    """Return a function that runs the module of a role; ``added`` is what the encoder adds to the bare embeddings."""
    base = sam2_of(model, request.param)
    added = model.no_memory_embedding.reshape(1, -1, 1, 1) * request.param

    def run(role: str, bare: Any, *inputs: Any) -> Any:
        embeddings = [] if bare is None else [bare + added]
        with torch.no_grad():
            return graphs(request.param)[role](base, False)(*embeddings, *inputs)

    run.added = added  # type: ignore[attr-defined]
    return run


def random(seed: int, *shape: int) -> Any:
    return torch.from_numpy(noise(seed, *shape))


def flat(image: Any) -> Any:
    return image.flatten(2).permute(2, 0, 1)


@pytest.mark.parametrize("prompted", [False, True])
def test_memory_encoder(model: Any, module: Any, prompted: bool) -> None:
    bare, masks = random(1, 1, 256, CELLS, CELLS), random(5, 3, 1, 96, 96) * 5
    scores = torch.tensor([[3.0], [-2.0], [0.0]])
    large = torch.nn.functional.interpolate(masks, (336, 336), mode="bilinear")
    with torch.no_grad():
        memory, _ = model._encode_new_memory(flat(bare.expand(3, -1, -1, -1)), large, scores.unsqueeze(1), prompted)
    expected = memory.permute(1, 2, 0).reshape(3, 64, CELLS, CELLS).float()
    found = module(MEMORY_ENCODER, bare, masks, scores, torch.full((3,), float(prompted)))
    torch.testing.assert_close(found.bfloat16().float(), expected, atol=1e-5, rtol=1 / 128)


def official_attention(model: Any, bare: Any, memories: Any, ages: list[int], vectors: Any, distances: Any) -> Any:
    """Return the conditioned embeddings of one object from transformers' attention."""
    shape = torch.Size([1, 64, CELLS, CELLS])
    position = flat(model.memory_encoder.position_encoding(shape, "cpu", torch.float32))
    of_image = flat(model.vision_encoder.neck.position_encoding(bare.shape, "cpu", torch.float32))
    moments = [position + model.memory_temporal_positional_encoding[age - 1] for age in ages]
    places = model.temporal_positional_encoding_projection_layer(get_1d_sine_pe(distances, dim=256))
    conditioned = model.memory_attention(
        flat(bare),
        torch.cat([*(flat(memory.unsqueeze(0)) for memory in memories), vectors.reshape(-1, 1, 64)]),
        of_image,
        torch.cat([*moments, places.repeat_interleave(4, dim=0).unsqueeze(1)]),
        num_object_pointer_tokens=4 * len(vectors),
    )
    return conditioned.squeeze(1).transpose(1, 2).reshape(1, 256, CELLS, CELLS)


@pytest.mark.parametrize(("ages", "pointers"), [([0], 0), ([0, 0, 6, 2, 1], 5)])
def test_memory_attention(model: Any, module: Any, ages: list[int], pointers: int) -> None:
    bare, memories = random(1, 1, 256, CELLS, CELLS), random(11, 2, len(ages), 64, CELLS, CELLS)
    vectors, distances = random(12, 2, pointers, 256), random(13, 2, pointers)
    with torch.no_grad():
        rows = [official_attention(model, bare, memories[row], ages, vectors[row], distances[row]) for row in range(2)]
    found = module(MEMORY_ATTENTION, bare, memories, torch.tensor([ages, ages]), vectors, distances)
    expected = torch.cat(rows) + module.added - model.no_memory_embedding.reshape(1, -1, 1, 1)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def prompt(coords: Any, labels: Any, multimask: bool, mask_prompt: float = 0) -> list[Any]:
    count = len(coords)
    return [coords, labels, torch.full((count,), float(multimask)), torch.full((count,), float(mask_prompt))]


@pytest.mark.parametrize("multimask", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
def test_tracking_decoder(model: Any, module: Any, multimask: bool, earlier: bool) -> None:
    bare, fine, middle = random(1, 1, 256, CELLS, CELLS), random(2, 1, 32, 96, 96), random(3, 1, 64, 48, 48)
    coords, labels = torch.tensor([[[100.0, 80.0], [30.0, 200.0]]]), torch.tensor([[1, 0]])
    mask = random(4, 1, 1, 96, 96) * 8
    with torch.no_grad():
        expected = model._single_frame_forward(
            input_points=coords.unsqueeze(1),
            input_labels=labels.unsqueeze(1),
            input_masks=mask if earlier else None,
            image_embeddings=[fine, middle, bare + model.no_memory_embedding.reshape(1, -1, 1, 1)],
            multimask_output=multimask,
        )
    given = [*prompt(coords, labels.float(), multimask), mask, torch.tensor([float(earlier)])]
    masks, _, score, pointer = module(TRACKING_DECODER, bare, fine, middle, *given)
    torch.testing.assert_close(masks, expected.pred_masks, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(score.reshape(-1), expected.object_score_logits.reshape(-1), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(pointer.reshape(-1), expected.object_pointer.reshape(-1), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("is_empty", [False, True])
def test_masks_as_prompts(model: Any, module: Any, is_empty: bool) -> None:
    bare, fine, middle = random(1, 1, 256, CELLS, CELLS), random(2, 1, 32, 96, 96), random(3, 1, 64, 48, 48)
    mask = torch.zeros(1, 1, 336, 336)
    mask[0, :, 110:-7, 3:170] = not is_empty
    with torch.no_grad():
        expected = with_meta_rules(model)._use_mask_as_output(bare, [fine, middle], mask)
    low, logits = module(MASK_PROMPT, None, mask)
    torch.testing.assert_close(logits, expected.pred_masks, atol=1e-5, rtol=0)
    nothing = torch.zeros(1, 1, 2), -torch.ones(1, 1)
    given = [*prompt(*nothing, multimask=False, mask_prompt=-1 if is_empty else 1), low, torch.zeros(1)]
    _, _, score, pointer = module(TRACKING_DECODER, bare, fine, middle, *given)
    assert score.item() == expected.object_score_logits.item() == (-10 if is_empty else 10)
    torch.testing.assert_close(pointer.reshape(-1), expected.object_pointer.reshape(-1), atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SAM2VideoClient]:
    with video_client(sam3_reduced_graphs(), tmp_path_factory.mktemp("sam3_video")) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("as_meta", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_every_case(client: SAM2VideoClient, as_meta: bool) -> None:
    frames = clip(FRAMES)
    click = {"object_id": 1, "points": [[170, 180]], "labels": [1]}
    many = [verify.Step({"frame": frame, **click}) for frame in range(6)]
    more = {"more prompted frames than are attended to": [*many, verify.Step()]} if as_meta else {}
    with client.open(frames) as video:
        check_every_case(sam3_reduced_graphs(), video, Sam3TrackerVideoInferenceSession, frames, as_meta, more)


@pytest.mark.slow
@pytest.mark.parametrize("role", [ENCODER, *TRACKING.models])
def test_signatures_and_guards(role: str) -> None:
    check_signature(sam3_reduced_graphs(), role)


@pytest.mark.slow
def test_a_checkpoint_of_the_whole_model(tmp_path: Path) -> None:
    """The tracker of Sam3VideoModel has the memory, and one backbone for words, clicks and videos."""
    official: Any = Sam3VideoModel(whole_configuration())
    randomise(official, 3)
    official.save_pretrained(tmp_path)
    # transformers writes another prefix than facebook/sam3 has.
    state = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("tracker_model.tracker_model.", "tracker_model."): value for name, value in state.items()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    settings = Settings(tmp_path, tmp_path, video=True)
    tracker: Any = EXPORTER.load(tmp_path)
    EXPORTER.add_video(tracker, settings)
    found = tracker.video.state_dict()
    for name, tensor in official.tracker_model.state_dict().items():
        assert torch.equal(found[name], tensor), name
    assert tracker.video.vision_encoder is tracker.vision_encoder
    alone = {name: value for name, value in renamed.items() if "memory_encoder" not in name}
    save_file(alone, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="not a complete SAM3 checkpoint"):
        EXPORTER.add_video(tracker, settings)
