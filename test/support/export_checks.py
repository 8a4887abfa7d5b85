"""Checks that the exports of several families share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from PIL import Image
from support.family_exports import FamilyExport, export_once

from triton_sam._common.bundle import bundled
from triton_sam.repository.config import config_for
from triton_sam.verify import BARS, OnnxClient
from triton_sam.verify.compare import Row, format_table, verify


def rows_of_a_tall_image(reference: Any, export: FamilyExport, family: str, images: Path, folder: Path) -> list[Row]:
    """Compare an export with its reference on an image of 333 x 777 pixels; all 14 rows must pass. Return them."""
    path = folder / "tall.png"
    Image.open(images / "coffee.jpg").rotate(90, expand=True).resize((333, 777)).save(path)
    rows = verify(reference, path, {"onnxruntime": OnnxClient(export.files, family)})
    assert len(rows) == 14
    assert all(row.passes(BARS["fp32"]) for row in rows), format_table(rows, BARS["fp32"])
    return rows


def check_that_images_are_encoded_as_one_by_one(encoder: Path, atol: float) -> None:
    session = onnxruntime.InferenceSession(encoder)
    pictures = np.random.default_rng(0).random((3, 3, 1024, 1024), dtype=np.float32)
    together = session.run(None, {"image": pictures})[0]
    alone = [session.run(None, {"image": picture[None]})[0] for picture in pictures]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=atol)
    assert np.abs(together[0] - together[1]).max() > 0.1


def check_that_the_committed_config_names_the_family(export: FamilyExport, family: str, role: str) -> None:
    committed = (bundled("model_repository") / f"{family}_{role}" / "config.pbtxt").read_text()
    assert config_for(export.files[role], f"{family}_{role}") == committed
    assert f'parameters {{ key: "family" value {{ string_value: "{family}" }} }}' in committed


def check_that_fp16_keeps_the_masks(
    reference: Any, export: FamilyExport, family: str, picture: Path, bar: float
) -> None:
    """Export the micro model in fp16: half the weights, FP32 at the wire, an IoU with the reference over ``bar``."""
    _, files = export_once(family, f"{family}_fp16", model="micro", precision="fp16")
    for role, path in files.items():
        assert path.stat().st_size < 0.6 * export.files[role].stat().st_size
        graph = onnx.load(path).graph
        assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}
    rows = verify(reference, picture, {"fp16": OnnxClient(files, family)})
    assert min(row.iou for row in rows) > bar, format_table(rows, BARS["fp16"])
    assert max(row.score_diff for row in rows) < BARS["fp16"].score, format_table(rows, BARS["fp16"])
