"""Thresholds that fit a model: in its metadata, in the session model, and where a caller names none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.fuzzing import text
from support.image_server import ImageServer

from triton_sam import ConfigurationError, SAM2AutomaticMaskGenerator, SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.everything.parameters import METADATA_KEY, thresholds_in, thresholds_of
from triton_sam.repository.folder import BUILT_IN_CHECKPOINT
from triton_sam.sessions.image.everything import read_job, read_part

IMAGE = np.zeros((48, 64, 3), np.uint8)
FITTING = {"pred_iou_thresh": 0.3, "stability_score_thresh": 0.5}


def test_metadata_have_the_thresholds():
    assert thresholds_of({METADATA_KEY: json.dumps(FITTING)}) == FITTING
    assert thresholds_of({"triton_sam.checkpoint": "sam2.1_hiera_tiny"}) == {}
    demo = thresholds_of({"triton_sam.checkpoint": BUILT_IN_CHECKPOINT})
    assert set(demo) == set(FITTING)
    assert thresholds_in(bundled("model_repository") / "sam2_decoder", "model.onnx") == demo
    assert thresholds_in(bundled("model_repository") / "sam2", "model.onnx") == {}


def test_both_ends_of_the_range_are_thresholds():
    assert thresholds_of({METADATA_KEY: json.dumps({"pred_iou_thresh": 0, "stability_score_thresh": 1})}) == {
        "pred_iou_thresh": 0,
        "stability_score_thresh": 1,
    }


def test_a_folder_without_versions_has_the_thresholds_of_its_own_file(tmp_path):
    shutil.copy(bundled("model_repository") / "sam2_decoder" / "1" / "model.onnx", tmp_path)
    assert set(thresholds_in(tmp_path, "model.onnx")) == set(FITTING)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"box_nms_thresh": 0.5}', '{"pred_iou_thresh": 2}', '{"pred_iou_thresh": "a"}']
)
def test_broken_metadata_are_one_clear_error(content):
    with pytest.raises(ConfigurationError):
        thresholds_of({METADATA_KEY: content})


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda client: client.everything(IMAGE), (0.3, 0.5)),
        (lambda client: client.everything(IMAGE, pred_iou_thresh=0.9), (0.9, 0.5)),
        (lambda client: SAM2AutomaticMaskGenerator(client).generate(IMAGE), (0.8, 0.95)),
    ],
    ids=["none named", "one named", "the official class"],
)
def test_a_session_model_fills_in_what_the_caller_does_not_name(ask, expected):
    with ImageServer() as server, SAM2TritonClient(server.url) as client:
        server.failures = [None, KeyError("sent")]
        with pytest.raises(KeyError, match="sent"):
            ask(client)
    chosen = read_part(server.requests[1].inputs, "sam2", FITTING).parameters
    assert (chosen.pred_iou_thresh, chosen.stability_score_thresh) == expected


def test_without_fitting_thresholds_the_official_ones_hold():
    inputs = {"image": text(b"image"), "everything": text(b"{}")}
    chosen = [read_job(inputs, family, {})[1].pred_iou_thresh for family in ("sam1", "sam2")]
    assert chosen == [0.88, 0.8]


def test_models_shows_the_thresholds(capsys: pytest.CaptureFixture[str]):
    folder = str(bundled("model_repository"))
    assert main(["models", "--model-repository", folder]) == 0
    # The list of a server that runs at the default URL comes later.
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  sam2_decoder "))
    assert "demo model, everything: pred_iou_thresh 0.35, stability_score_thresh 0.6" in line


def test_an_export_with_a_wrong_threshold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torch")
    arguments = ["export", "sam2", "--random", "0", "--model-repository", str(tmp_path), "--pred-iou-thresh", "3"]
    assert main(arguments) != 0
    assert "pred_iou_thresh must be a number within 0..1, not 3.0" in capsys.readouterr().err
