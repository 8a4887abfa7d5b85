"""The comparison of automatic masks with the official generator: it passes for equal masks, and fails for others."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from triton_sam._common.bundle import bundled
from triton_sam.verify import everything as verify
from triton_sam.verify import format_table

IMAGE = np.zeros((60, 80, 3), np.uint8)
PACKAGES = {
    "sam1": "segment_anything",
    "mobilesam": "mobile_sam",
    "samhq": "segment_anything_hq",
    "sam2": "sam2",
}


class Drawn:
    """Answers with discs around the points of a grid. Their scores grow from left to right, and downwards."""

    def __init__(self, shift: int = 0, leaves_out: int = 0) -> None:
        self.shift, self.leaves_out = shift, leaves_out

    def __call__(self, image, points_per_side=32, pred_iou_thresh=0.8, stability_score_thresh=0.95, **_):
        height, width = image.shape[:2]
        y, x = np.mgrid[:height, :width]
        places = (np.arange(points_per_side) + 0.5) / points_per_side
        records = [
            {
                "segmentation": (x - a * width - self.shift) ** 2 + (y - b * height) ** 2 < 100,
                "predicted_iou": a / 2,
                "stability_score": 0.5 + b / 4,
            }
            for a in places
            for b in places
            if a / 2 > pred_iou_thresh and 0.5 + b / 4 >= stability_score_thresh
        ]
        return records[self.leaves_out :]


def test_equal_masks_pass_and_others_fail() -> None:
    runners = {"equal": Drawn(), "shifted": Drawn(shift=3), "fewer": Drawn(leaves_out=3)}
    rows = list(verify.verify_everything(Drawn(), runners, IMAGE, points_per_side=6))
    fitting = [row for row in rows if row.case.startswith("fitting")]
    assert len(rows) == 12
    assert {(row.runner, row.passes()) for row in fitting} == {("equal", True), ("shifted", False), ("fewer", False)}
    assert all(row.official == 9 for row in fitting)  # a quarter of 36 candidates pass both thresholds
    fewer = next(row for row in fitting if row.runner == "fewer")
    assert fewer.masks == 6
    assert fewer.found < 0.99 <= fewer.right
    table = format_table(rows, verify.LIMITS).splitlines()
    assert [line.split()[-1] for line in table[1:]] == ["ok"] * 6 + ["ok", "FAIL", "FAIL"] * 2


def test_fitting_thresholds_are_between_two_scores() -> None:
    found = verify.fitting_thresholds(Drawn(), IMAGE)
    assert found == {"pred_iou_thresh": pytest.approx(0.25), "stability_score_thresh": pytest.approx(0.625)}


@pytest.mark.export
def test_the_reference_without_any_mask_in_its_crops_has_no_records() -> None:
    """The official generators fail there: torchvision's box_area gets a tensor without columns."""
    torch = pytest.importorskip("torch")
    from torchvision.ops.boxes import box_area

    from triton_sam.export.reference import official_records

    class Empty:
        def generate(self, image):
            return box_area(torch.zeros(0, 0))

    class Broken:
        def generate(self, image):
            raise IndexError("another one")

    assert official_records(lambda _: Empty(), None, IMAGE) == []
    with pytest.raises(IndexError, match="another one"):
        official_records(lambda _: Broken(), None, IMAGE)


def pair_of(family: str):
    """Return the official generator of a family, and the ONNX files of its models with the same weights."""
    from support.family_exports import mobilesam_micro, sam1_micro, samhq_micro

    from triton_sam.export import registry

    small = {"sam1": sam1_micro, "mobilesam": mobilesam_micro, "samhq": samhq_micro}
    if family in small:
        exporter, model = registry.official(family, None, "micro", 0)
        return exporter.everything_reference(model), small[family]().files
    repository, checkpoint = bundled("model_repository"), bundled("checkpoints") / "sam2.1_hiera_micro.pt"
    files = {role: repository / f"sam2_{role}" / "1" / "model.onnx" for role in ("encoder", "decoder")}
    exporter, model = registry.official("sam2", checkpoint, None, None)
    return exporter.everything_reference(model), files


@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "package"),
    [pytest.param(*each, marks=() if each[0] == "sam2" else pytest.mark.nightly) for each in PACKAGES.items()],
    ids=PACKAGES,
)
def test_the_official_generators_find_the_same(family: str, package: str, images) -> None:
    """SAM2 has the weights of the built-in model, the others have random weights."""
    pytest.importorskip("torch")
    pytest.importorskip(package)
    from triton_sam.inputs.images import open_image
    from triton_sam.verify.compare import OnnxClient

    image = np.asarray(open_image(images / "shapes.jpg"))
    reference, files = pair_of(family)
    least = {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "points_per_side": 3}
    if family != "sam2":  # random masks cover each other
        least |= {"box_nms_thresh": 1.0, "crop_nms_thresh": 1.0}
    with OnnxClient(files, family) as client:
        ours = verify.by_client(client)
        for more in ({}, {"crop_n_layers": 1, "crop_n_points_downscale_factor": 3}):
            expected, found = (each(image, **least, **more) for each in (reference, ours))
            assert len(found) == len(expected) > 3
            for one, other in zip(found, expected, strict=True):
                assert (one["segmentation"] != other["segmentation"]).mean() < 1e-3
                for name in ("predicted_iou", "stability_score"):
                    assert one[name] == pytest.approx(other[name], abs=1e-3)
                assert np.abs(np.subtract(one["bbox"], other["bbox"])).max() <= 1
                np.testing.assert_allclose(one["point_coords"], other["point_coords"], rtol=1e-6)
                assert one["crop_box"] == other["crop_box"]


def test_thresholds_are_in_range_for_scores_below_zero() -> None:
    records = [{"predicted_iou": score, "stability_score": 0.9} for score in (-0.3, -0.1, -0.2)]
    fitting = verify.fitting_thresholds(lambda image, **_: records, IMAGE)
    assert fitting == {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.9}
