"""The reference for videos: it is the official predictor, and the graphs of the export give its masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("sam2")

from PIL import Image  # noqa: E402

from triton_sam.errors import VideoError  # noqa: E402
from triton_sam.export.sam2.recipe import EXPORTER  # noqa: E402
from triton_sam.export.sam2.video_reference import Sam2VideoReference  # noqa: E402

CONFIG, SIDE = "sam2.1_hiera_micro", 512


@pytest.fixture(scope="module")
def model() -> Any:
    return EXPORTER.load(None, CONFIG, image_size=SIDE, random_seed=0)


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    rows, columns = np.mgrid[:90, :120]
    found = []
    for index in range(4):
        inside = (rows - 45) ** 2 + (columns - 40 - 9 * index) ** 2 < 400
        found.append(np.where(inside[..., None], [210, 60, 20], [20, 90, 160]).astype(np.uint8))
    return found


@pytest.mark.slow
def test_objects_are_prompted_and_followed(model: Any, frames: list[np.ndarray]) -> None:
    video = Sam2VideoReference(model, frames)
    first = video.add(0, 7, points=[[40, 45]], labels=[1])
    assert first[7].shape == (90, 120)
    mask = np.zeros((90, 120), bool)
    mask[10:30, 20:50] = True
    assert list(video.add(1, 3, mask=mask)) == [3]
    found = dict(video.propagate(start=0))
    assert list(found) == [0, 1, 2, 3]
    assert list(found[0]) == [7, 3]
    np.testing.assert_array_equal(found[0][7], first[7])
    assert [frame for frame, _ in video.propagate(start=3, reverse=True)] == [3, 2, 1, 0]
    video.reset()
    assert list(video.add(1, 3, mask=mask)) == [3]
    assert [list(masks) for _, masks in video.propagate()] == [[3]] * 3


def test_the_model_itself_stays_as_it_was(model: Any, frames: list[np.ndarray]) -> None:
    assert not model.binarize_mask_from_pts_for_mem_enc
    Sam2VideoReference(model, frames[:1])
    assert not model.binarize_mask_from_pts_for_mem_enc


def test_frames_enter_as_the_official_loader_reads_them(
    model: Any, frames: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sam2.utils.misc import load_video_frames

    for index, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{index:05}.jpg", quality=95)
    read = [np.array(Image.open(tmp_path / f"{index:05}.jpg")) for index in range(len(frames))]
    official, height, width = load_video_frames(str(tmp_path), SIDE, False, compute_device=torch.device("cpu"))
    own = Sam2VideoReference(model, read)
    assert (height, width) == own._size
    assert torch.equal(own._images, official)


def test_videos_that_cannot_be_tracked(model: Any, frames: list[np.ndarray]) -> None:
    with pytest.raises(VideoError, match="no frames"):
        Sam2VideoReference(model, [])
    with pytest.raises(VideoError, match=r"differ in size: \(90, 120\) and \(45, 120\)"):
        Sam2VideoReference(model, [frames[0], frames[1][:45]])
