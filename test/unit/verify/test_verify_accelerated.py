"""The comparison of an encoder on OpenVINO with fp32, and `triton-sam verify openvino FAMILY`.

Most tests have a stand-in for OpenVINO: ONNX Runtime and some noise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from triton_sam._common.bundle import bundled
from triton_sam._common.extras import find_package
from triton_sam.verify.accelerated import IMAGES, compare_precision, crops

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from support.toy_decoder import light_repository  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.verify import accelerated  # noqa: E402


class NoisySession:
    """OpenVinoSession, with a noise in place of bf16."""

    noise = 0.0

    def __init__(self, file: Path, precision: str) -> None:
        self._session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        self._rng = np.random.default_rng(0)

    def run(self, outputs: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        arrays = self._session.run(list(outputs), dict(feed))
        return [each + self.noise * self._rng.standard_normal(each.shape, np.float32) for each in arrays]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_repository(tmp_path_factory.mktemp("accelerated") / "models")


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> type[NoisySession]:
    crops = accelerated.crops
    monkeypatch.setattr(accelerated, "OpenVinoSession", NoisySession)
    monkeypatch.setattr(accelerated, "_version", lambda: "stand-in")
    monkeypatch.setattr(accelerated, "crops", lambda images: crops(images, 1))
    return NoisySession


def verify(*options: object) -> int:
    return main(["verify", "openvino", "sam2", "-q", *map(str, options)])


@pytest.mark.slow
def test_equal_masks_pass_and_others_do_not(
    repository: Path, noisy: type[NoisySession], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify("--exported", repository) == 0
    assert capsys.readouterr().out == (
        "OpenVINO bf16: mask IoU 1.0000 to fp32 (worst 1.0000, 5 masks on 1 images), passed\n"
    )
    monkeypatch.setattr(noisy, "noise", 1.0)
    assert verify("--exported", repository) == 1
    assert "below 0.995" in capsys.readouterr().out
    assert verify("--exported", repository, "--precision", "fp32", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["threshold"], told["precision"], told["masks"]) == (False, {"iou": 0.9999}, "fp32", 5)


@pytest.mark.parametrize(
    ("family", "options", "missing"),
    [("sam1", [], "sam1"), ("sam3", [], "sam3"), ("sam2", ["--name", "sam2.1"], "sam2.1")],
)
def test_a_family_without_weights(
    repository: Path,
    family: str,
    options: list[str],
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", str(repository))
    assert main(["verify", "openvino", family, "-q", *options]) == 1
    error = capsys.readouterr().err.strip()
    assert f"{repository} holds no weights for {missing}: see `triton-sam export {family}`" in error
    assert "\n" not in error


def test_without_openvino_the_error_names_the_command(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert verify("--exported", repository) == 1
    assert "openvino extra" in capsys.readouterr().err


FILES: dict[str, Path] = {
    role: bundled("model_repository") / f"sam2_{role}" / "1" / "model.onnx" for role in ("encoder", "decoder")
}
PHOTOS = [bundled("test/images") / name for name in ("coffee.jpg", "shapes.jpg")]


def test_crops_are_equal_each_time_and_different_from_each_other() -> None:
    first, second = crops(PHOTOS), crops(PHOTOS)
    assert len(first) == IMAGES
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert len({part.tobytes() for part in first}) == IMAGES
    assert all(part.dtype == np.uint8 and part.shape[2] == 3 and min(part.shape[:2]) > 100 for part in first)


@pytest.mark.slow
@pytest.mark.skipif(find_package("openvino") is None, reason="openvino is not installed: pip install openvino")
def test_masks_in_fp32_are_those_of_onnx_runtime() -> None:
    found = compare_precision(FILES, "sam2", "fp32", crops(PHOTOS, 1))
    assert (found.images, found.masks) == (1, 5)
    assert found.passed
    assert found.worst_iou <= found.mean_iou <= 1
