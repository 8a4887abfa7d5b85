"""Verify: the whole comparison on the micro model, and that it notices what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("sam2")
pytest.importorskip("onnxruntime")

from support.commands import error_of  # noqa: E402
from support.family_exports import sam2_micro  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import ExportError  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient, Row, Thresholds  # noqa: E402

PROMPTS = {"1 point", "3 points, 1 negative", "box", "box + point", "point + mask", "4 boxes", "mask"}


def row(iou: float = 1.0, logit_diff: float = 0.0, pixels: int = 9, score_diff: float = 0.0) -> Row:
    return Row("onnxruntime", "1 point", "single", logit_diff, iou, score_diff, pixels)


@pytest.mark.parametrize(
    ("candidate", "passes"),
    [
        (row(), True),
        (row(iou=0.9999), False),
        (row(iou=0.9998, pixels=1), True),  # of a small mask
        (row(iou=0.9998, pixels=2), False),
        (row(iou=0.9998, logit_diff=1e-3, pixels=1), False),
        (row(logit_diff=1e-3), False),
        (row(logit_diff=float("nan")), False),
        (row(iou=float("nan")), False),
        (row(score_diff=1e-3), False),
        (row(score_diff=float("nan")), False),
    ],
)
def test_bars(candidate: Row, passes: bool) -> None:
    assert candidate.passes(THRESHOLDS["fp32"]) is passes


def test_logits_are_not_judged_without_a_bar() -> None:
    assert row(iou=0.985, logit_diff=3.0).passes(Thresholds(0.98, None, 0.05))
    assert not row(iou=0.97, pixels=1).passes(Thresholds(0.98, None, 0.05))
    assert not row(iou=0.985, score_diff=0.05).passes(Thresholds(0.98, None, 0.05))


def test_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(ExportError, match="cannot load"):
        OnnxClient({"encoder": path, "decoder": path})


def test_command_passes(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(images / "shapes.jpg")
    assert main(["verify", "sam2", "--random", "--size", "micro", "--image", image, "--json", "-q"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["ok"] is True
    assert {row["prompt"] for row in report["rows"]} == PROMPTS
    assert len(report["rows"]) == 2 * len(PROMPTS)
    assert "Warning" not in printed.err


@pytest.mark.slow
def test_command_fails_outside_the_bars(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = ["--size", "micro", "--random", "--seed", "1"]
    arguments = ["verify", "sam2", *other, "--exported", str(sam2_micro().repository), "-q"]
    assert main([*arguments, "--image", str(images / "shapes.jpg")]) == 1
    assert "14 of 14 outside the thresholds" in capsys.readouterr().out


def test_an_image_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--random", "--size", "micro", "--image", "no_such.jpg", "-q"]
    assert "no image at" in error_of(["verify", "sam2", *options], capsys)
