"""Templates: a checkpoint fills the same files as a trace of the official model, without torch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("mobile_sam")

from support.contents import files_below  # noqa: E402
from support.family_exports import SMALLEST  # noqa: E402

from triton_sam._common.bundle import checkout  # noqa: E402
from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.pipeline import Exported, build  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.export.templates import FOLDER, _members, misfit, templates  # noqa: E402
from triton_sam.families import FAMILIES, get_family  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.xdist_group("templates")]

MAKER = "tools/maintain/make_templates.py"
ROUNDED = {"edgetam": 2, "sam3": 1}
"""The families whose weights may differ in the last places: torch rounds roots and sines otherwise than NumPy."""
FAMILIES_WITH_TEMPLATES = [name for name in FAMILIES if (FOLDER / f"{name}.tar.xz").is_file()]


def sources() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sources", Path(str(checkout()), "tools/maintain/sources.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checkpoint_of(family: str, path: Path, change: Any = None) -> Path:
    """Write the official model with random weights, as its publisher would."""
    official, table = registry.exporter(family), get_family(family)
    settings = Settings(Path(), model=SMALLEST[family], random_seed=5, video=table.tracking is not None)
    state = dict(official.state(build(official, official.prepare(settings.complete(table)))))
    if change is not None:
        change(state)
    if family == "sam3":
        return sam3_folder(state, path)
    torch.save({"model": state}, path)
    return path


def sam3_folder(tracker: dict[str, Any], folder: Path) -> Path:
    """Write SAM3's tracker as facebook/sam3 has it, with a tensor of the detector."""
    from safetensors.torch import save_file
    from support.official_words import whole_configuration

    whole_configuration().save_pretrained(folder)
    state = {"detector_model.text_projection.bias": torch.zeros(2)}
    for name, tensor in tracker.items():
        is_backbone = name.startswith("vision_encoder.backbone.")
        placed = f"detector_model.{name}" if is_backbone else f"tracker_model.{name}"
        state[placed.replace("tracker_model.vision_encoder.neck.", "tracker_neck.")] = tensor.contiguous()
    save_file(state, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MobileSAM's quick size, in a file whose name says nothing."""
    return checkpoint_of("mobilesam", tmp_path_factory.mktemp("checkpoint") / "fine-tune 3.bin")


def exported(family: str, folder: Path, **settings: Any) -> Exported:
    return registry.export(family, Settings(folder, progress=False, **settings))


def filled(family: str, folder: Path, **settings: Any) -> Exported:
    """Export without the exporter that traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "exporter", lambda _: pytest.fail("the template was not used"))
        return exported(family, folder, **settings)


@pytest.mark.parametrize("family", FAMILIES_WITH_TEMPLATES)
def test_the_templates_belong_to_the_code_that_traces(family: str) -> None:
    made = json.loads(sources().MADE.read_text())
    assert made[family]["sources"] == sources().digest(family), f"run `python {MAKER} {family} --check`, and commit"


@pytest.mark.parametrize("family", FAMILIES_WITH_TEMPLATES)
def test_each_official_size_has_the_graphs_of_its_table(family: str) -> None:
    table = get_family(family)
    found = {(each.size, each.side) for each in templates(table)}
    assert {(size.name, table.image_size) for size in table.sizes if size.official} <= found
    for size, side in found:
        at = table.at(side)
        for role in at.models_for(video=table.tracking is not None, concepts=False):
            assert {f"{size}/{side}/{role}.onnx", f"{size}/{side}/{role}.json"} <= _members(family).keys()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_all_files_equal_those_of_a_trace(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    filled("mobilesam", tmp_path / "filled", checkpoint=checkpoint, precision=precision)
    exported("mobilesam", tmp_path / "traced", checkpoint=checkpoint, precision=precision, model="micro", trace=True)
    found, expected = files_below(tmp_path / "filled"), files_below(tmp_path / "traced")
    assert found.keys() == expected.keys()
    for name, content in expected.items():
        assert found[name] == content, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.nightly if get_family(name).tracking else ())  # six models to trace
        for name in FAMILIES_WITH_TEMPLATES
        if name != "mobilesam"
    ],
)
def test_each_family_fills_the_files_of_a_trace(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family, tmp_path / "weights.pt")
    own = {"checkpoint": checkpoint, "video": get_family(family).tracking is not None}
    graphs = filled(family, tmp_path / "filled", **own).files
    traced = exported(family, tmp_path / "traced", model=SMALLEST[family], trace=True, **own).files
    found, expected = files_below(tmp_path / "filled"), files_below(tmp_path / "traced")
    assert found.keys() == expected.keys()
    for name, content in expected.items():
        assert found[name] == content or (family in ROUNDED and name.endswith((".onnx", "SHA256SUMS"))), name
    for role, path in traced.items() if family in ROUNDED else ():
        one, other = onnx.load(graphs[role]), onnx.load(path)
        for ours, theirs in zip(one.graph.initializer, other.graph.initializer, strict=True):
            array, wanted = onnx.numpy_helper.to_array(ours), onnx.numpy_helper.to_array(theirs)
            limit = ROUNDED[family] * np.spacing(np.abs(wanted).max()) if wanted.dtype.kind == "f" else 0
            np.testing.assert_allclose(array, wanted, rtol=0, atol=limit, err_msg=ours.name)
            ours.CopyFrom(theirs)
        assert one == other


WITHOUT_TORCH = """
import sys
for name in ("torch", "torchvision", "sam2", "transformers", "timm", "mobile_sam", "segment_anything"):
    sys.modules[name] = None  # as if it were not installed
from triton_sam.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_it_works_where_there_is_no_torch(checkpoint: Path, tmp_path: Path) -> None:
    command = ["export", "mobilesam", "--checkpoint", str(checkpoint), "--output-dir", str(tmp_path / "models")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "without PyTorch" in done.stderr
    filled("mobilesam", tmp_path / "expected", checkpoint=checkpoint)
    assert files_below(tmp_path / "models") == files_below(tmp_path / "expected")


def test_damaged_weights_leave_nothing_behind(tmp_path: Path) -> None:
    def damage(state: dict[str, Any]) -> None:
        next(iter(state.values())).view(-1)[0] = float("nan")

    damaged = checkpoint_of("mobilesam", tmp_path / "damaged.pt", damage)
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        exported("mobilesam", tmp_path / "models", checkpoint=damaged)
    assert files_below(tmp_path / "models") == {}


@pytest.mark.parametrize(
    ("shapes", "fits"),
    [
        ({"a": (2, 3), "b": (4,)}, True),
        ({"a": (3, 2), "b": (4,)}, False),
        ({"a": (2, 3)}, False),
        ({"a": (2, 3), "b": (4,), "c": (1,)}, False),
    ],
)
def test_a_checkpoint_fits_by_names_and_shapes(shapes: dict[str, tuple[int, ...]], fits: bool) -> None:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert any(misfit({"a": (2, 3), "b": (4,)}, tensors)) is not fits
