"""The tools that collect data and train the demo model: one run of each."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cv2")
pytest.importorskip("sam2")
pytest.importorskip("mobile_sam")
pytest.importorskip("skimage", reason="needs the evaluate extra")

import cv2
import numpy as np
import torch

if not hasattr(torch.optim, "Muon"):
    pytest.skip("torch older than 2.9", allow_module_level=True)

from tools.demo_model import collect_materials, network, runs, tracking, train_images, train_memory, write_data_set
from tools.demo_model.materials import Material, read_manifest, write_manifest
from triton_sam._common.bundle import checkout
from triton_sam.evaluation.datasets import open_folder
from triton_sam.export.sam2.recipe import EXPORTER

pytestmark = [pytest.mark.nightly, pytest.mark.export]

CLIPART = Path("usr/share/openclipart/png")
WALLPAPERS = Path("usr/share/backgrounds/mate/nature")


def draw_cutout(number):
    """Return an ellipse with two colours on a transparent background: uint8 (96,96,4)."""
    pixels = np.zeros((96, 96, 4), np.uint8)
    middle = (48, 48)
    axes = (44, 32 + number % 5)
    cv2.ellipse(pixels, middle, axes, 10.0 * number, 0, 360, (40, 80 + 20 * number % 100, 200, 255), -1)
    cv2.circle(pixels, middle, 16, (220, 30, 90, 255), -1)
    return pixels


def draw_photograph(number):
    """Return blurred noise with as much detail as a photograph: uint8 (300,300,3)."""
    noise = np.random.default_rng(number).integers(0, 256, (300, 300, 3)).astype(np.uint8)
    return np.asarray(cv2.blur(noise, (3, 3)), np.uint8)


def write_packages(root):
    """Write unpacked packages: openclipart-png and mate-backgrounds."""
    for folder, count, draw in ((CLIPART, 4, draw_cutout), (WALLPAPERS, 3, draw_photograph)):
        (root / folder).mkdir(parents=True)
        for number in range(count):
            cv2.imwrite(str(root / folder / f"{number}.png"), draw(number))


def write_materials(folder, held_out=False):
    """Write a folder of materials: three cut-outs and two photographs. Returns the folder."""
    entries = []
    for kind, count, draw in (("cutout", 3, draw_cutout), ("background", 2, draw_photograph)):
        for number in range(count):
            digest = f"{16 * number + (not held_out):08x}".ljust(64, "0")
            name = f"{kind}s/{digest[:20]}.png"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / name), draw(number))
            entries.append(Material(name, kind, "drawn", f"{number}.png", "none", digest))
    write_manifest(folder, entries)
    return folder


def test_cutouts_and_photographs_are_collected_with_their_licence_but_not_forbidden_ones(tmp_path):
    write_packages(tmp_path / "root")
    forbidden = hashlib.sha256((tmp_path / "root" / WALLPAPERS / "1.png").read_bytes()).hexdigest()
    roots = [tmp_path / "nowhere", tmp_path / "root"]
    materials = collect_materials.collect(tmp_path / "out", roots, frozenset([forbidden]))
    assert [material.kind for material in materials] == ["cutout"] * 4 + ["background"] * 2
    assert read_manifest(tmp_path / "out") == materials
    assert {material.licence for material in materials} == {"public domain", "GPL-2+, CC-BY-SA-4.0"}
    assert all((tmp_path / "out" / material.file).is_file() for material in materials)


def test_no_photograph_that_measures_the_model_is_collected_for_training(monkeypatch, tmp_path):
    import skimage

    root = tmp_path / "root"
    (root / "skimage").mkdir(parents=True)
    (root / "skimage/data").symlink_to(Path(skimage.__file__).parent / "data")
    names = {Path(photo.file).name for photo in write_data_set.read_list()} | {"coins.png", "cell.png"}
    assert not names & collect_materials._ONLY["scikit-image"]
    monkeypatch.setattr(collect_materials, "_ONLY", {})  # as if every photograph of scikit-image were allowed
    kept = {
        material.sha256 for material in collect_materials.collect(tmp_path / "out", [root], write_data_set.hashes())
    }
    every = {material.sha256 for material in collect_materials.collect(tmp_path / "all", [root])}
    assert every - kept == write_data_set.hashes() & every
    assert len(write_data_set.hashes() & every) >= 4


@pytest.mark.parametrize("kind", ["photos", "composites"])
def test_the_command_evaluate_reads_what_the_tool_writes(tmp_path, kind):
    materials = write_materials(tmp_path / "materials", held_out=True)
    script = Path(str(checkout()), "tools/demo_model/write_data_set.py")
    command = [sys.executable, script, kind, tmp_path / "out", "--materials", materials, "--count", "2"]
    subprocess.run(command, check=True, capture_output=True)
    data_set = open_folder(tmp_path / "out", None, 0)
    assert len(data_set) >= 2
    assert not data_set.unused
    assert next(iter(data_set)).labels.max() > 0


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tiny tensors, threads only wait for each other
    yield
    torch.set_num_threads(threads)


def test_two_steps_of_both_trainings(one_thread, tmp_path, monkeypatch):
    small_teacher = network.Teacher(None, "micro", random_seed=3)
    monkeypatch.setattr(train_images, "Teacher", lambda _path: small_teacher)
    monkeypatch.setattr(train_memory, "_measurer", lambda _model: lambda _measured: 0.5)
    torch.manual_seed(0)
    model = EXPORTER.build(runs.CONFIG, network.SIDE)
    init, out = tmp_path / "init.pt", tmp_path / "out"
    runs.write({"model": runs.half(model.state_dict())}, init)
    arguments = [
        *("--teacher", "t.pt", "--materials", str(write_materials(tmp_path / "materials"))),
        *("--init", str(init), "--out", str(out), "--device", "cpu", "--workers", "1"),
        *("--photographs", "1", "--composites", "1", "--drawn", "1", "--images", "2", "--prompts", "2"),
        *("--embeddings", "2", "--masks", "2"),
    ]
    assert train_images.main(arguments) == 0
    assert {path.name for path in out.iterdir()} == {"embeddings", "masks"}  # the files of the images are gone
    memory = tmp_path / "memory"
    arguments = ["--init", str(out / "masks" / runs.WEIGHTS), "--out", str(memory), "--device", "cpu"]
    assert train_memory.main([*arguments, "--stages", "2:2", "--clips", "1", "--tracks", "1", "--workers", "1"]) == 0
    before, after = (torch.load(path / runs.WEIGHTS, weights_only=True)["model"] for path in (out / "masks", memory))
    trained = {name for name, _ in (*tracking.memory_parameters(model), *tracking.object_head(model))}
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed
    assert changed <= trained | {"mask_downsample.weight", "mask_downsample.bias"}  # prepare_memory sets them
