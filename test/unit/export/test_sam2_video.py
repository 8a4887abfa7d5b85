"""The four graphs that follow objects through a video compute the same as the official modules."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the exports take a minute
torch = pytest.importorskip("torch")
pytest.importorskip("sam2")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.official_video import (  # noqa: E402
    Arrays,
    History,
    noise,
    official_mask_answer,
    official_memory,
    official_tracking,
)
from support.video_graphs import MICRO, Graphs, check_signature, sam2_graphs  # noqa: E402

from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.export.sam2.video_graphs import check_video_model  # noqa: E402
from triton_sam.families.tracking import (  # noqa: E402
    MASK_PROMPT,
    MEMORY_ATTENTION,
    MEMORY_ENCODER,
    TRACKING_DECODER,
)

TINY, TINY_20 = "configs/sam2.1/sam2.1_hiera_t.yaml", "configs/sam2/sam2_hiera_t.yaml"
TOLERANCE = 1e-4


@pytest.fixture(
    params=[
        (MICRO, 512),
        pytest.param((MICRO, 1024), marks=pytest.mark.nightly),
        pytest.param((TINY, 512), marks=pytest.mark.nightly),
        pytest.param((TINY_20, 512), marks=pytest.mark.nightly),
    ],
    ids=["micro", "micro at 1024", "tiny", "tiny of SAM2.0"],
    scope="module",
)
def graphs(request: pytest.FixtureRequest) -> Graphs:
    return sam2_graphs(*request.param)  # traced, and not filled as micro_graphs() is


def embeddings(side: int, images: int = 1) -> Arrays:
    """Return random outputs of the encoder."""
    return {
        "image_embeddings": noise(1, images, 256, side // 16, side // 16),
        "high_res_feats_0": noise(2, images, 32, side // 4, side // 4),
        "high_res_feats_1": noise(3, images, 64, side // 8, side // 8),
    }


def own_images(side: int, objects: int) -> Arrays:
    """Return embeddings of their own for several objects, as the memory attention gives them, of one frame."""
    frame = {name: array.repeat(objects, axis=0) for name, array in embeddings(side).items()}
    return {**frame, "image_embeddings": noise(7, objects, 256, side // 16, side // 16)}


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max(initial=0))


HISTORIES = {
    "one memory": {"prompted": [0], "tracked": [], "frame": 1},
    "no pointer": {"prompted": [20], "tracked": [], "frame": 12},
    "a few": {"prompted": [0], "tracked": [1, 2, 4], "frame": 5},
    "all slots": {"prompted": [0], "tracked": range(1, 30), "frame": 20},
    "many prompts": {"prompted": [0, 3, 9, 25], "tracked": range(4, 24), "frame": 17},
    "reverse": {"prompted": [5, 28], "tracked": range(10, 28), "frame": 9, "reverse": True},
    "short video": {"prompted": [0], "tracked": [1, 2], "frame": 3, "num_frames": 5},
}


@pytest.mark.parametrize("objects", [1, 3])
@pytest.mark.parametrize("history", HISTORIES)
def test_memory_attention(graphs: Graphs, objects: int, history: str) -> None:
    chosen = dict(HISTORIES[history])
    past = History(graphs.model, objects, chosen.pop("prompted"), chosen.pop("tracked"))
    where = {"num_frames": 30, "reverse": False, **chosen}
    image = embeddings(graphs.side)["image_embeddings"]
    inputs = {"image_embeddings": image, **past.inputs(**where)}
    expected = past.official(image, **where)
    found = graphs.run(MEMORY_ATTENTION, inputs)["conditioned_embeddings"]
    assert difference(found, expected) < TOLERANCE
    assert np.ptp(expected) > 1
    own = {**inputs, "image_embeddings": image.repeat(objects, axis=0)}
    assert difference(graphs.run(MEMORY_ATTENTION, own)["conditioned_embeddings"], expected) < TOLERANCE


def test_memory_attention_of_standard_operators(graphs: Graphs) -> None:
    graph = graphs.graph(MEMORY_ATTENTION, standard=True)
    assert {node.domain for node in graph.graph.node} == {""}
    past = History(graphs.model, 2, [0], [1, 2])
    where = {"frame": 3, "num_frames": 30, "reverse": False}
    image = embeddings(graphs.side)["image_embeddings"]
    found = graphs.run(MEMORY_ATTENTION, {"image_embeddings": image, **past.inputs(**where)}, standard=True)
    assert difference(found["conditioned_embeddings"], past.official(image, **where)) < TOLERANCE


def test_memory_encoder(graphs: Graphs) -> None:
    """Objects with a prompt and others in one call, on the image that they share or each on one of its own."""
    image = embeddings(graphs.side)["image_embeddings"]
    masks = noise(5, 3, 1, graphs.side // 4, graphs.side // 4) * 5
    score = np.array([[3.0], [-2.0], [0.0]], np.float32)
    without, prompted = (official_memory(graphs.model, image, masks, score, each) for each in (False, True))
    assert np.abs(prompted - without).max() > 0.01
    for chosen in ([1, 0, 1], [0, 1, 0]):
        expected = np.where(np.reshape(chosen, (3, 1, 1, 1)), prompted, without)
        inputs = {"masks": masks, "object_score_logits": score, "is_prompted": np.array(chosen, np.float32)}
        for images in (image, image.repeat(3, axis=0)):
            found = graphs.run(MEMORY_ENCODER, {"image_embeddings": images, **inputs})["memory"]
            assert difference(found, expected) < TOLERANCE


def prompt(objects: int, count: int, side: int) -> Arrays:
    labels = np.random.default_rng(count).integers(0, 4, (objects, count)).astype(np.float32)
    coords = np.random.default_rng(count).uniform(0, side, (objects, count, 2)).astype(np.float32)
    return {"point_coords": coords, "point_labels": labels}


NO_POINTS = {"point_coords": np.zeros((1, 1, 2), np.float32), "point_labels": -np.ones((1, 1), np.float32)}
"""The prompt of an object without points."""


def flags(objects: int, multimask: int = 0, mask_prompt: int = 0) -> Arrays:
    return {
        "multimask": np.full(objects, multimask, np.float32),
        "mask_prompt": np.full(objects, mask_prompt, np.float32),
    }


@pytest.mark.parametrize("multimask", [0, 1])
@pytest.mark.parametrize(("objects", "points"), [(1, 0), (3, 0), (1, 1), (3, 4)])
def test_tracking_decoder(graphs: Graphs, objects: int, points: int, multimask: int) -> None:
    image = own_images(graphs.side, objects)
    given = prompt(objects, points, graphs.side) if points else None
    expected = official_tracking(graphs.model, image, given, multimask=bool(multimask))
    absent = {name: np.repeat(array, objects, axis=0) for name, array in NO_POINTS.items()}
    found = graphs.run(TRACKING_DECODER, {**image, **(given or absent), **flags(objects, multimask)})
    for name, value in expected.items():
        assert difference(found[name], value) < TOLERANCE, name
    if (objects, points) == (3, 0):
        visible = expected["object_score_logits"] > 0
        assert set(visible.ravel()) == {True, False}
        assert (found["masks"][~visible[:, 0]] == -1024).all()


def test_tracking_decoder_corrects_earlier_logits(graphs: Graphs) -> None:
    image, given = own_images(graphs.side, 2), prompt(2, 3, graphs.side)
    logits = noise(8, 2, 1, graphs.side // 4, graphs.side // 4) * 8
    expected = official_tracking(graphs.model, image, given, multimask=False, mask=logits)
    earlier = {"mask_input": logits, "has_mask_input": np.ones(2, np.float32)}
    found = graphs.run(TRACKING_DECODER, {**image, **given, **flags(2), **earlier})
    for name, value in expected.items():
        assert difference(found[name], value) < TOLERANCE, name


def test_objects_with_different_prompts_in_one_call(graphs: Graphs) -> None:
    """Points that do not exist have the label -2, and each object has its own choice of masks."""
    image = embeddings(graphs.side)
    prompts = [prompt(1, 1, graphs.side), prompt(1, 3, graphs.side)]
    rows = [
        official_tracking(graphs.model, image, given, bool(multi)) for given, multi in zip(prompts, (1, 0), strict=True)
    ]
    coords, labels = np.zeros((2, 3, 2), np.float32), np.full((2, 3), -2, np.float32)
    for row, given in enumerate(prompts):
        count = given["point_labels"].shape[1]
        coords[row, :count], labels[row, :count] = given["point_coords"][0], given["point_labels"][0]
    both = {"multimask": np.array([1, 0], np.float32), "mask_prompt": np.zeros(2, np.float32)}
    found = graphs.run(TRACKING_DECODER, {**image, "point_coords": coords, "point_labels": labels, **both})
    for row, expected in enumerate(rows):
        for name, value in expected.items():
            assert difference(found[name][row : row + 1], value) < TOLERANCE, name


def test_masks_as_prompts(graphs: Graphs) -> None:
    """The third mask is empty: its object is not visible."""
    side = graphs.side
    mask = np.zeros((3, 1, side, side), np.float32)
    mask[0, :, side // 3 : -7, 3 : side // 2] = 1
    mask[1] = np.random.default_rng(1).random((1, side, side)) > 0.5
    image = own_images(side, 3)
    expected = official_mask_answer(graphs.model, image, mask)
    prepared = graphs.run(MASK_PROMPT, {"mask": mask})
    assert difference(prepared["masks"], expected.pop("masks")) < 1e-5
    assert set(expected["object_score_logits"].ravel()) == {10.0, -10.0}
    inputs = {
        **image,
        **{name: np.repeat(array, 3, axis=0) for name, array in NO_POINTS.items()},
        "multimask": np.ones(3, np.float32),
        "mask_prompt": np.array([1, 1, -1], np.float32),
        "mask_input": prepared["mask_input"],
    }
    found = graphs.run(TRACKING_DECODER, inputs)
    for name, value in expected.items():
        assert difference(found[name], value) < TOLERANCE, name


@pytest.mark.parametrize("role", [MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER, MASK_PROMPT])
def test_signatures_and_guards(graphs: Graphs, role: str) -> None:
    check_signature(graphs, role)


def test_a_configuration_without_the_usual_memory(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs.model, "num_maskmem", 5)
    with pytest.raises(ConfigurationError, match="num_maskmem: 5, but the models for videos need 7"):
        check_video_model(graphs.model)
