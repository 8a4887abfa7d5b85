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
from support.micro_export import SEED, MicroExport  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import ExportError  # noqa: E402
from triton_sam.verify import THRESHOLDS, OnnxClient, Row, Thresholds  # noqa: E402
from triton_sam.verify.compare import format_table, verify_sam2  # noqa: E402

PROMPTS = {"1 point", "3 points, 1 negative", "box", "box + point", "point + mask", "4 boxes", "mask"}


def test_export_equals_the_official_predictor(micro_export: MicroExport, images: Path) -> None:
    with OnnxClient(micro_export.files) as client:
        rows = verify_sam2(micro_export.model, images / "coffee.jpg", {"onnxruntime": client})
    assert {(row.prompt, row.output) for row in rows} == {(p, o) for p in PROMPTS for o in ("single", "multimask")}
    assert all(row.passes(THRESHOLDS["fp32"]) for row in rows), format_table(rows, THRESHOLDS["fp32"])
    assert max(row.score_diff for row in rows) < 1e-4


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


def test_table_is_aligned() -> None:
    lines = format_table([row(), row(iou=0.5)], THRESHOLDS["fp32"]).splitlines()
    assert lines[1].endswith("ok")
    assert lines[2].endswith("FAIL")
    assert len({line.index(word) for line, word in zip(lines, ("mask IoU", "1.000000", "0.500000"), strict=True)}) == 1


def test_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(ExportError, match="cannot load"):
        OnnxClient({"encoder": path, "decoder": path})


def test_command_passes(traced_micro: None, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(images / "shapes.jpg")
    assert main(["verify", "sam2", "--random", "--size", "micro", "--image", image, "--json", "-q"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["ok"] is True
    assert len(report["rows"]) == 2 * len(PROMPTS)
    assert "Warning" not in printed.err


@pytest.mark.slow
def test_command_fails_outside_the_bars(
    micro_export: MicroExport, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ["--size", "micro", "--random", "--seed", str(SEED + 1)]
    arguments = ["verify", "sam2", *other, "--exported", str(micro_export.repository), "-q"]
    assert main([*arguments, "--image", str(images / "shapes.jpg")]) == 1
    assert "14 of 14 outside the thresholds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--checkpoint", "no_such_hiera_tiny.pt"], "no checkpoint at"),
        (["--checkpoint", "x.pt", "--size", "tiny"], "no checkpoint at x.pt"),
        (["--random", "--size", "micro", "--image", "no_such.jpg"], "no image at"),
    ],
)
def test_command_errors_are_one_line(
    traced_micro: None, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert text in error_of(["verify", "sam2", "-q", *arguments], capsys)
