"""EdgeTAM in videos: its graphs together follow objects as transformers' model does.

test_sam2_video.py compares each of the graphs that EdgeTAM shares with SAM2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # its graphs take minutes to trace
torch = pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")
pytest.importorskip("sam2")
pytest.importorskip("onnxruntime")

from support.video_graphs import (  # noqa: E402
    Graphs,
    edgetam_micro_graphs,
    write_video_models,
)
from transformers import EdgeTamVideoInferenceSession  # noqa: E402

from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.export.edgetam.graphs import EdgeTamMemoryAttention, sam2_of  # noqa: E402
from triton_sam.export.edgetam.recipe import EXPORTER, has_video, image_model  # noqa: E402
from triton_sam.export.sam2.transformers_reference import TransformersVideoReference  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.scenes.clip import generate_clip  # noqa: E402
from triton_sam.verify import video as verify  # noqa: E402

SIDE, FRAMES = 256, 8
TRANSFORMERS_ALONE = ("one object", "three objects", "object added midway", "both directions")
"""The cases in which transformers computes as Meta's predictor."""


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return edgetam_micro_graphs()


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
    reference = TransformersVideoReference(
        graphs.family, graphs.model, EdgeTamVideoInferenceSession, frames, as_meta=as_meta
    )
    rows = list(verify.verify_video(reference, {"onnxruntime": runner}, size, FRAMES))
    assert [row.case for row in rows] == titles
    assert [row for row in rows if not row.passes(verify.threshold(FRAMES))] == []
    assert min(row.visible for row in rows) > 0.5
    assert max(row.logit_diff for row in rows) < 1e-2


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
