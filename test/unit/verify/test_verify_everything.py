"""The comparison of automatic masks, words and OpenVINO with their references: it passes for equal answers alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from support.rectangles import mask
from support.toy_decoder import light_repository

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.client.sync import SamTritonClient
from triton_sam.concepts.instances import Instance
from triton_sam.errors import InputError, ModelNotReadyError
from triton_sam.export.reference import FoundInstance
from triton_sam.families import get_family
from triton_sam.transport.onnx import OnnxTransport
from triton_sam.verify import accelerated, concepts, format_table
from triton_sam.verify import everything as verify
from triton_sam.verify.concepts import LIMITS, ConceptTransport, answered_cases, verify_concepts

IMAGE = np.zeros((60, 80, 3), np.uint8)
PACKAGES = {"sam1": "segment_anything", "mobilesam": "mobile_sam", "samhq": "segment_anything_hq", "sam2": "sam2"}
FILES: dict[str, Path] = {
    role: bundled("model_repository") / f"sam2_{role}" / "1" / "model.onnx" for role in ("encoder", "decoder")
}


class Drawn:
    """Answers with discs around the points of a grid. Their scores grow from left to right, and downwards."""

    def __init__(self, shift=0, leaves_out=0):
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


def test_equal_masks_pass_and_others_fail():
    runners = {"equal": Drawn(), "shifted": Drawn(shift=3), "fewer": Drawn(leaves_out=3)}
    rows = list(verify.verify_everything(Drawn(), runners, IMAGE, points_per_side=6))
    fitting = [row for row in rows if row.case.startswith("fitting")]
    assert len(rows) == 12
    verdicts = {(row.runner, row.passes(verify.LIMITS)) for row in fitting}
    assert verdicts == {("equal", True), ("shifted", False), ("fewer", False)}
    assert all(row.official == 9 for row in fitting)  # a quarter of 36 candidates pass both thresholds
    fewer = next(row for row in fitting if row.runner == "fewer")
    assert fewer.masks == 6
    assert fewer.found < 0.99 <= fewer.right
    table = format_table(rows, verify.LIMITS).splitlines()
    assert [line.split()[-1] for line in table[1:]] == ["ok"] * 6 + ["ok", "FAIL", "FAIL"] * 2
    with pytest.raises(InputError, match="the official generator finds nothing"):
        list(verify.verify_everything(lambda image, **_: [], runners, IMAGE, points_per_side=6))


def test_fitting_thresholds_of_scores_below_zero_are_in_range():
    records = [{"predicted_iou": score, "stability_score": 0.9} for score in (-0.3, -0.1, -0.2)]
    found = verify.fitting_thresholds(lambda image, **_: records, IMAGE)
    assert found == {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.9}


@pytest.mark.export
def test_the_reference_without_any_mask_in_its_crops_has_no_records():
    """The official generators fail there: torchvision's box_area gets a tensor without columns."""
    import torch
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


def pair_of(family):
    """Return the official generator of a family, and the ONNX files of its models with the same weights."""
    from support.family_exports import mobilesam_micro, sam1_micro, samhq_micro

    from triton_sam.export import registry

    small = {"sam1": sam1_micro, "mobilesam": mobilesam_micro, "samhq": samhq_micro}
    if family in small:
        exporter, model = registry.official(family, None, "micro", 0)
        return exporter.everything_reference(model), small[family]().files
    exporter, model = registry.official("sam2", bundled("checkpoints") / "sam2.1_hiera_micro.pt", None, None)
    return exporter.everything_reference(model), FILES


@pytest.mark.export
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "package"),
    [pytest.param(*each, marks=() if each[0] == "sam2" else pytest.mark.nightly) for each in PACKAGES.items()],
    ids=PACKAGES,
)
def test_the_official_generators_find_the_same(family, package, images):
    """SAM2 has the weights of the built-in model, the others have random weights."""
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


# `verify sam3-concepts` without a model: rows, verdicts and options

SIZE = (40, 30)


class Reference:
    """Finds ten instances of the first text, with scores from 0.9 down."""

    def set_image(self, image):
        assert image.size == SIZE

    def find(self, text, boxes=None, box_labels=None, *, threshold, mask_threshold=0.5):
        scores = [0.9 - 0.05 * index for index in range(10)]
        return [
            FoundInstance(0, score, (5.0, 5.0, 15.0, 15.0), mask((5, 5, 15, 15), size=(30, 40)))
            for score in scores
            if score > threshold
        ]


class Client:
    """Finds the same, but for what a test changes, as a server with wrong models does."""

    def __init__(self, score=0.0, box=0.0, shift=0, drop=0):
        self.score, self.box, self.shift, self.drop = score, box, shift, drop

    def find(self, text, *, image, threshold, **arguments):
        found = Reference().find(text, threshold=threshold)[self.drop :]
        box = (5.0 + self.box, 5.0, 15.0, 15.0)
        found_mask = mask((5 + self.shift, 5, 15 + self.shift, 15), size=(30, 40))
        return [Instance(found_mask, each.score + self.score, None, 0, 0, box) for each in found]


def rows(client):
    image = Image.new("RGB", SIZE)
    return list(verify_concepts(answered_cases(Reference(), image), "inside", client, image))


def test_equal_answers_pass_and_each_case_has_instances():
    found = rows(Client())
    assert [row.official for row in found] == [6] * 6 + [0]
    assert all(row.passes(LIMITS["fp32"]) for row in found)
    table = format_table(found, LIMITS["fp32"])
    assert table.count("ok") == 7
    assert "FAIL" not in table


@pytest.mark.parametrize(
    "change", [{"score": 2e-4}, {"box": 0.01}, {"shift": 1}, {"drop": 1}], ids=lambda change: next(iter(change))
)
def test_each_kind_of_difference_fails(change):
    found = rows(Client(**change))
    assert not any(row.passes(LIMITS["fp32"]) for row in found[:6])
    assert found[6].passes(LIMITS["fp32"])
    assert "FAIL" in format_table(found, LIMITS["fp32"])


class Models:
    """Stands for ONNX files of which the detector finds nothing.

    Args:
        config: the names of tensors by role and side.
    """

    def __init__(self, config):
        self.config, self.calls = config, []

    def model_config(self, role):
        return {side: [{"name": self.config.get((role, side))}] for side in ("input", "output")}

    def infer(self, role, inputs, outputs):
        self.calls.append((role, *inputs))
        shapes = {"pred_boxes": (1, 2, 4), "pred_logits": (1, 2), "presence_logits": (1, 1)}
        return {name: np.full(shapes.get(name, (1, 2)), -9, np.float32) for name in outputs}

    def close(self):
        pass


@pytest.mark.parametrize(
    ("config", "calls"),
    [
        ({}, [("concept_encoder", "concept_pixel_values")]),
        (
            {("concept_encoder", "input"): "backbone_states", ("encoder", "output"): "backbone_states"},
            [("encoder", "pixel_values"), ("concept_encoder", "backbone_states")],
        ),
    ],
    ids=["earlier", "one pass"],
)
def test_words_are_compared_by_the_layout_of_the_export(monkeypatch, config, calls):
    models = Models(config)
    monkeypatch.setattr(OnnxTransport, "__init__", lambda *_: None)
    for name in ("model_config", "infer", "close"):
        monkeypatch.setattr(OnnxTransport, name, lambda _, *given, name=name: getattr(models, name)(*given))
    monkeypatch.setattr(concepts, "Tokenizer", FakeTokenizer)
    files = dict.fromkeys(("encoder", "concept_encoder", "text_encoder"), Path("model.onnx"))
    transport = ConceptTransport(get_family("sam3"), files)
    with SamTritonClient("localhost", "sam3", transport=transport) as client:
        assert client.find("dog", image=Image.new("RGB", SIZE)) == []
    assert [call for call in models.calls if "encoder" in call[0] and call[0] != "text_encoder"] == calls
    models.config.pop(("encoder", "output"), None)
    if models.config:
        with pytest.raises(ModelNotReadyError, match="has no output backbone_states"):
            ConceptTransport(get_family("sam3"), files)


class FakeTokenizer:
    def __init__(self, path, length):
        pass

    def tokens(self, texts):
        return np.ones((len(texts), 2), np.int64), np.ones((len(texts), 2), np.int64)


# The comparison of an encoder on OpenVINO with fp32, and `triton-sam verify openvino FAMILY`


class NoisySession:
    """OpenVinoSession, with a noise in place of bf16."""

    noise = 0.0

    def __init__(self, file, precision):
        self._session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        self._rng = np.random.default_rng(0)

    def run(self, outputs, feed):
        arrays = self._session.run(list(outputs), dict(feed))
        return [each + self.noise * self._rng.standard_normal(each.shape, np.float32) for each in arrays]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return light_repository(tmp_path_factory.mktemp("accelerated") / "models")


@pytest.fixture
def noisy(monkeypatch):
    crops = accelerated.crops
    monkeypatch.setattr(accelerated, "OpenVinoSession", NoisySession)
    monkeypatch.setattr(accelerated, "_version", lambda: "stand-in")
    monkeypatch.setattr(accelerated, "crops", lambda images: crops(images, 1))
    return NoisySession


def verify_openvino(*options):
    return main(["verify", "openvino", "sam2", "-q", *map(str, options)])


@pytest.mark.slow
def test_equal_masks_pass_and_others_do_not(repository, noisy, monkeypatch, capsys):
    assert verify_openvino("--exported", repository) == 0
    assert capsys.readouterr().out == (
        "OpenVINO bf16: mask IoU 1.0000 to fp32 (worst 1.0000, 5 masks on 1 images), passed\n"
    )
    monkeypatch.setattr(noisy, "noise", 1.0)
    assert verify_openvino("--exported", repository) == 1
    assert "below 0.995" in capsys.readouterr().out
    assert verify_openvino("--exported", repository, "--precision", "fp32", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["threshold"], told["precision"], told["masks"]) == (False, {"iou": 0.9999}, "fp32", 5)


def test_without_openvino_the_error_names_the_command(repository, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert verify_openvino("--exported", repository) == 1
    assert "openvino extra" in capsys.readouterr().err
