"""Sizes, options and checkpoints of every family: what the exporters take, and what they refuse in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from support.commands import error_of  # noqa: E402
from support.family_exports import PACKAGES, SMALLEST  # noqa: E402

from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families import FAMILIES, get_family  # noqa: E402

OPTIONS = [
    *((family, {"name": "../evil"}, "model name") for family in FAMILIES),
    ("sam2", {"name": ""}, "model name"),
    *((family, {"image_size": 1000}, "multiple of 16") for family in ("sam1", "mobilesam", "samhq")),
    *((family, {"image_size": 1000}, "multiple of 32") for family in ("sam2", "edgetam")),
    ("sam3", {"image_size": 1024}, "1008 only"),
    ("sam2", {"image_size": 0}, "multiple of 32"),
    ("edgetam", {"image_size": 640, "video": True}, "a multiple of 256"),
    *((family, {"video": True}, f"{family} has no models for videos") for family in ("sam1", "mobilesam", "samhq")),
    *((family, {"concepts": True}, f"{family} has no models for concepts") for family in FAMILIES if family != "sam3"),
    ("sam1", {"model": "vit_x"}, "vit_b, vit_l, vit_h"),
    ("sam1", {"model": None}, "--size"),
    ("sam2", {"model": None}, "--model-cfg"),
    ("sam2", {"model": "no_such_config"}, "no_such_config"),
    ("sam3", {"model": "tiny"}, "full, reduced"),
    ("sam3", {"options": {"no_memory": "x"}}, "published, meta"),
    ("sam2", {"precision": "fp8"}, "fp32, fp16, int8"),
    ("sam2", {"precision": "int8", "half_storage": True}, "half storage"),
    ("sam2", {"version": 0}, "from 1"),
    ("sam2", {"device": "nonsense"}, "nonsense"),
    ("sam2", {"random_seed": None}, "checkpoint"),
]
COMMANDS = [
    ("export sam1 --random 0 --size tiny", "no size 'tiny': choose one of vit_b, vit_l"),
    ("export samhq --random 0 --size huge", "choose one of vit_tiny, vit_b, vit_l, vit_h"),
    ("export sam1 --random 0 --model-cfg x", "--model-cfg is for sam2"),
    ("export sam1 --random 0 --size vit_b --model-type vit_b", "--size and --model-type say the same: give one of"),
    ("export sam1 --checkpoint mine.pth --size vit_l", "triton-sam download sam1 vit_l"),
    ("export sam1 --checkpoint no_such_vit_b.pth", "triton-sam download sam1 vit_b"),
    ("export sam2 --random 0 --image-size 0", "image size 0: it must be"),
    ("export sam2 --random 0 --required-inputs", "give --name or --output-dir"),
    ("verify sam1 --random --exported .", "no weights for sam1"),
]
OFFICIAL = [
    ("mobilesam", "vit_t"),
    ("samhq", "vit_tiny"),
    pytest.param("sam1", "vit_b", marks=pytest.mark.slow),
    pytest.param("samhq", "vit_b", marks=pytest.mark.slow),
]
"""Sizes of families whose packages have a registry of their official models. Others need gigabytes, and add nothing."""


@pytest.mark.parametrize(("family", "options", "text"), OPTIONS)
def test_options_that_cannot_work(family: str, options: dict[str, Any], text: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[family])
    arguments = {"model": SMALLEST[family], "random_seed": 0, "progress": False, **options}
    with pytest.raises(ConfigurationError, match=text):
        registry.export(family, Settings(tmp_path / "repository", **arguments))
    assert not (tmp_path / "repository").exists()


def test_a_mistake_in_a_command_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {line: error_of([*line.split(), "-q"], capsys) for line, _ in COMMANDS}
    assert [(line, said[line]) for line, text in COMMANDS if text not in said[line]] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("family", "size"), OFFICIAL)
def test_an_official_size_is_that_of_the_package_and_loads_its_checkpoint(
    family: str, size: str, tmp_path: Path
) -> None:
    package = pytest.importorskip(PACKAGES[family])
    official, exporter = package.sam_model_registry[size](), registry.exporter(family)
    path = tmp_path / next(each.file_name for each in get_family(family).checkpoints if each.size == size)
    torch.save(official.state_dict(), path)
    loaded = exporter.load(path, None, image_size=1024, random_seed=None)
    assert str(loaded) == str(official)  # strides, epsilons, activations
    torch.testing.assert_close(loaded.state_dict(), official.state_dict())
    with pytest.raises(CheckpointError, match=r"give another --size|a checkpoint of MobileSAM"):
        exporter.load(path, SMALLEST[family], image_size=1024, random_seed=None)


@pytest.mark.parametrize("family", ["sam1", "samhq"])
def test_the_size_follows_the_name_of_the_file(family: str) -> None:
    pytest.importorskip(PACKAGES[family])
    table, choose = get_family(family), registry.exporter(family).choose
    sizes = [size.name for size in table.sizes if size.official]
    assert [choose(each.file_name, None) for each in table.checkpoints] == sizes
    with pytest.raises(ConfigurationError, match="give --size"):
        choose("mine.pth", None)


def test_random_weights_follow_the_seed_and_leave_torch_alone() -> None:
    exporter = registry.exporter("sam2")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (
        exporter.load(None, SMALLEST["sam2"], image_size=256, random_seed=seed).state_dict() for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name, value in one.items() if value.is_floating_point() and value.numel() > 1]
    assert not any(torch.equal(one[name], other[name]) for name in drawn)
