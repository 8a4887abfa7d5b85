"""The comparison of exported models, also for videos, with the official code: it passes for equal masks alone."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from support.family_exports import sam2_micro

from triton_sam import SAM2VideoClient
from triton_sam.cli import main
from triton_sam.errors import ExportError
from triton_sam.export.sam2.recipe import CONFIG_OF_SIZE, EXPORTER
from triton_sam.export.sam2.video_reference import Sam2VideoReference
from triton_sam.scenes.clip import generate_clip
from triton_sam.transport.onnx import OnnxTransport
from triton_sam.verify import THRESHOLDS, OnnxClient, Row, Thresholds, format_table
from triton_sam.verify import video as verify
from triton_sam.verify.video import VideoTransport

pytestmark = pytest.mark.export
LOOSE = Thresholds(0.98, None, 0.05)
PROMPTS = {"1 point", "3 points, 1 negative", "box", "box + point", "point + mask", "4 boxes", "mask"}
FRAMES, SIZE = 4, (512, 512)
VIDEO_ROW = verify.VideoRow("equal", "one object", FRAMES, logit_diff=0.0, iou=1.0, pixels=0, visible=0.0)


def row(iou=1.0, logit_diff=0.0, pixels=9, score_diff=0.0):
    return Row("onnxruntime", "1 point", "single", logit_diff, iou, score_diff, pixels)


@pytest.mark.parametrize(
    ("candidate", "thresholds", "passes"),
    [
        (row(), THRESHOLDS["fp32"], True),
        (row(iou=0.9999), THRESHOLDS["fp32"], False),
        (row(iou=0.9998, pixels=1), THRESHOLDS["fp32"], True),  # of a small mask
        (row(iou=0.9998, pixels=2), THRESHOLDS["fp32"], False),
        (row(iou=0.9998, logit_diff=1e-3, pixels=1), THRESHOLDS["fp32"], False),
        (row(logit_diff=1e-3), THRESHOLDS["fp32"], False),
        (row(logit_diff=float("nan")), THRESHOLDS["fp32"], False),
        (row(iou=float("nan")), THRESHOLDS["fp32"], False),
        (row(score_diff=1e-3), THRESHOLDS["fp32"], False),
        (row(score_diff=float("nan")), THRESHOLDS["fp32"], False),
        (row(iou=0.985, logit_diff=3.0), LOOSE, True),  # without a threshold for logits
        (row(iou=0.97, pixels=1), LOOSE, False),
        (row(iou=0.985, score_diff=0.05), LOOSE, False),
        (row(logit_diff=np.nan), LOOSE, False),
        (VIDEO_ROW, 0.9999, False),  # masks without pixels are no proof
        (dataclasses.replace(VIDEO_ROW, visible=0.25), 0.9999, True),
        (dataclasses.replace(VIDEO_ROW, visible=0.25, logit_diff=np.nan), 0.9999, False),
    ],
)
def test_thresholds(candidate, thresholds, passes):
    assert candidate.passes(thresholds) is passes


def test_file_that_is_no_model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(ExportError, match="cannot load"):
        OnnxClient({"encoder": path, "decoder": path})


def test_command_passes(images, capsys):
    image = str(images / "shapes.jpg")
    assert main(["verify", "sam2", "--random", "--size", "micro", "--image", image, "--json", "-q"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["ok"] is True
    assert {row["prompt"] for row in report["rows"]} == PROMPTS
    assert len(report["rows"]) == 2 * len(PROMPTS)
    assert "Warning" not in printed.err


@pytest.mark.slow
def test_command_fails_outside_the_bars(images, capsys):
    other = ["--size", "micro", "--random", "--seed", "1"]
    arguments = ["verify", "sam2", *other, "--exported", str(sam2_micro().repository), "-q"]
    assert main([*arguments, "--image", str(images / "shapes.jpg")]) == 1
    assert "14 of 14 outside the thresholds" in capsys.readouterr().out


# The comparison of video models with the official video predictor: it passes for equal masks, and fails for others


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


def only(monkeypatch, *titles):
    chosen = {title: steps for title, steps in verify.cases(SIZE, FRAMES).items() if title in titles}
    assert len(chosen) == len(titles)
    monkeypatch.setattr(verify, "cases", lambda *_: chosen)


@pytest.mark.slow
def test_equal_masks_pass_and_others_fail(reference, runner, monkeypatch):
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


@pytest.mark.parametrize(
    "size", ["micro", *(pytest.param(size, marks=pytest.mark.slow) for size in ("tiny", "base_plus"))]
)
def test_random_weights_see_objects(size):
    model = EXPORTER.load(None, CONFIG_OF_SIZE[size], image_size=128, random_seed=0)
    tokens = torch.randn(1000, 256, generator=torch.Generator().manual_seed(0))
    assert float(model.sam_mask_decoder.pred_obj_score_head(tokens).min()) > 0


@pytest.mark.nightly
def test_the_command(capsys):
    arguments = ["verify", "sam2-video", "--random", "--size", "micro", "--image-size", "512", "--frames", "4"]
    assert main([*arguments, "--local", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {row["runner"] for row in found["rows"]} == {"onnxruntime", "served over http", "served over grpc"}


@pytest.mark.nightly
def test_every_case(reference, runner):
    rows = list(verify.verify_video(reference, {"onnxruntime": runner}, SIZE, FRAMES))
    assert [row.case for row in rows] == list(verify.cases(SIZE, FRAMES))
    assert all(row.passes(verify.threshold(FRAMES)) for row in rows)


def test_the_threshold_is_lower_for_long_videos_and_that_of_images_below_fp32():
    assert (verify.threshold(8), verify.threshold(100)) == (0.9999, 0.999)
    assert (verify.threshold(8, "fp16"), verify.threshold(100, "int8")) == (0.99, 0.98)
