"""The comparison of video models with the official video predictor: it passes for equal masks, and fails for others."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("sam2")
pytest.importorskip("onnxruntime")

from triton_sam import SAM2VideoClient  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.export.sam2.recipe import CONFIG_OF_SIZE, EXPORTER  # noqa: E402
from triton_sam.export.sam2.video_reference import Sam2VideoReference  # noqa: E402
from triton_sam.scenes.clip import generate_clip  # noqa: E402
from triton_sam.transport.onnx import OnnxTransport  # noqa: E402
from triton_sam.verify import format_table  # noqa: E402
from triton_sam.verify import video as verify  # noqa: E402
from triton_sam.verify.video_transport import VideoTransport  # noqa: E402

FRAMES, SIZE = 4, (512, 512)


@pytest.fixture(scope="module")
def clip():
    return list(generate_clip(3, FRAMES).images)


@pytest.fixture(scope="module")
def reference(video_models, clip):
    return Sam2VideoReference(video_models.model, clip)


@pytest.fixture
def runner(video_models, clip):
    from support.video_graphs import FAMILY

    folders = [folder for folder in video_models.repository.iterdir() if folder.name != "sam2_video"]
    models = OnnxTransport({folder.name: folder / "1" / "model.onnx" for folder in folders})
    with SAM2VideoClient(transport=VideoTransport(FAMILY, models)) as client, client.open(clip) as video:
        yield verify.ClientRunner(video)


class Shifted(verify.ClientRunner):
    """Moves every mask by four pixels."""

    def _logits(self, segment):
        return np.roll(super()._logits(segment), 4, axis=1)


class Late(verify.ClientRunner):
    """Leaves the last frame out."""

    def propagate(self, start=None, *, reverse=False):
        yield from list(super().propagate(start, reverse=reverse))[:-1]


def only(monkeypatch: pytest.MonkeyPatch, *titles: str) -> None:
    chosen = {title: steps for title, steps in verify.cases(SIZE, FRAMES).items() if title in titles}
    assert len(chosen) == len(titles)
    monkeypatch.setattr(verify, "cases", lambda *_: chosen)


@pytest.mark.slow
def test_equal_masks_pass_and_others_fail(reference, runner, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "correction in the middle", "mask prompt")
    runners = {"equal": runner, "shifted": Shifted(runner._video), "late": Late(runner._video)}
    rows = list(verify.verify_video(reference, runners, SIZE, FRAMES))
    verdicts = {(row.runner, row.passes(verify.threshold(FRAMES))) for row in rows}
    assert verdicts == {("equal", True), ("shifted", False), ("late", False)}
    equal = [row for row in rows if row.runner == "equal"]
    assert [row.frames for row in equal] == [1 + FRAMES + 1 + FRAMES // 2, 1 + FRAMES]
    assert max(row.logit_diff for row in equal) < 1e-3
    assert min(row.visible for row in equal) > 0  # masks without pixels would prove nothing
    table = format_table(rows, verify.threshold(FRAMES)).splitlines()
    assert [line.split()[-1] for line in table[1:]] == ["ok", "FAIL", "FAIL"] * 2


def test_masks_without_pixels_are_no_proof() -> None:
    row = verify.VideoRow("equal", "one object", FRAMES, logit_diff=0.0, iou=1.0, pixels=0, visible=0.0)
    assert not row.passes(0.9999)
    assert dataclasses.replace(row, visible=0.25).passes(0.9999)


@pytest.mark.parametrize(
    "size", ["micro", *(pytest.param(size, marks=pytest.mark.slow) for size in ("tiny", "base_plus"))]
)
def test_random_weights_see_objects(size: str) -> None:
    model = EXPORTER.load(None, CONFIG_OF_SIZE[size], image_size=128, random_seed=0)
    tokens = torch.randn(1000, 256, generator=torch.Generator().manual_seed(0))
    assert float(model.sam_mask_decoder.pred_obj_score_head(tokens).min()) > 0


@pytest.mark.nightly
def test_every_case(reference, runner) -> None:
    rows = list(verify.verify_video(reference, {"onnxruntime": runner}, SIZE, FRAMES))
    assert [row.case for row in rows] == list(verify.cases(SIZE, FRAMES))
    assert all(row.passes(verify.threshold(FRAMES)) for row in rows)


def test_the_threshold_is_lower_for_long_videos() -> None:
    assert (verify.threshold(8), verify.threshold(100)) == (0.9999, 0.999)


def test_the_threshold_is_that_of_images_below_fp32() -> None:
    assert (verify.threshold(8, "fp16"), verify.threshold(100, "int8")) == (0.99, 0.98)


@pytest.mark.nightly
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", "sam2-video", "--random", "--size", "micro", "--image-size", "512", "--frames", "4"]
    assert main([*arguments, "--local", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {row["runner"] for row in found["rows"]} == {"onnxruntime", "served over http", "served over grpc"}
