"""The table of models: counted parameters, and times that are measured with a real local Triton."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("segment_anything")
pytest.importorskip("psutil")
pytest.importorskip("triton_sam.local_server")

from support.family_exports import sam1_micro  # noqa: E402

from triton_sam._common.bundle import bundled, checkout  # noqa: E402
from triton_sam.benchmark import model_table  # noqa: E402
from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.export import registry  # noqa: E402


@pytest.mark.parametrize("text", ["sam1", "sam1/tiny", "sam9/vit_b", ""])
def test_a_size_that_does_not_exist(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"choose of sam1/vit_b, .*, sam3/full"):
        model_table.parse_size(text)


@pytest.mark.slow
def test_parameters_are_those_that_the_weights_have() -> None:
    counted = sum(parameter.numel() for parameter in sam1_micro().model.parameters())
    assert registry.exporter("sam1").parameters("micro") == counted


@pytest.mark.slow
def test_a_row(tmp_path: Path) -> None:
    size = model_table.parse_size("sam1/micro")
    repository = tmp_path / "sam1_micro"
    shutil.copytree(bundled("model_repository") / "sam1", repository / "sam1")
    for role in ("encoder", "decoder"):
        shutil.copytree(sam1_micro().repository / f"sam1_{role}", repository / f"sam1_{role}")
    weights = model_table.prepare(size, tmp_path, progress=False)
    assert weights.repository == repository  # a model that was kept is not exported again
    row = model_table.measure(size, weights, rounds=1)
    onnx = sum(file.stat().st_size for file in sam1_micro().files.values())
    assert (row.parameters, row.checkpoint, row.onnx) == (registry.exporter("sam1").parameters("micro"), None, onnx)
    assert row.encode.n >= 1
    assert row.encode.median > row.click.median > 0
    head, rule, line = model_table.table([row]).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line.startswith(f"| SAM1 | micro | {row.parameters / 1e6:.1f} | none | {onnx / 1e6:.0f} | ")


@pytest.mark.skipif(checkout() is None, reason="scripts/ is in the checkout only")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["sam1/huge"], "choose of"), (["--export-only"], "--keep DIR"), (["--rounds", "0"], "--rounds")],
)
def test_faults_of_the_script_are_one_line(arguments: list[str], text: str) -> None:
    script = bundled("tools/lab/model_table.py")
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
