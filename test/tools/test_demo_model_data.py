"""The data that train the demo model, and the held-out data that measure it."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("skimage", reason="needs the evaluate extra")
from support.materials import WALLPAPERS, write_materials, write_packages

from tools.demo_model import collect_materials, composites, photos
from tools.demo_model.materials import Materials, read_manifest
from triton_sam._common.bundle import checkout
from triton_sam.errors import ConfigurationError
from triton_sam.evaluation.datasets import open_folder

pytestmark = pytest.mark.nightly

SEEDS = range(16)


def test_objects_of_composites_are_disjoint_and_parts_lie_inside_their_object(tmp_path):
    materials = Materials(write_materials(tmp_path))
    for seed in SEEDS:
        scene = composites.generate_composite(materials, seed, 160, 0.8)
        masks, parents = scene.masks, scene.parents
        assert len(masks) == len(parents)
        assert masks.any((1, 2)).all()
        assert masks[parents < 0].sum(0).max(initial=0) <= 1
        for mask, parent in zip(masks, parents, strict=True):
            assert parent < 0 or not (mask & ~masks[parent]).any()
    again = composites.generate_composite(materials, SEEDS[-1], 160, 0.8)
    assert np.array_equal(scene.image, again.image)


def test_held_out_materials_and_others_are_never_mixed(tmp_path):
    folder = write_materials(tmp_path, held_out=True)
    with pytest.raises(ConfigurationError, match="contains no cutout"):
        Materials(folder)
    scene = composites.held_out_composite(Materials(folder, held_out=True), 3, 128)
    assert scene.labels.max() > 0


def test_cutouts_and_photographs_are_collected_with_their_licence_but_not_forbidden_ones(tmp_path):
    write_packages(tmp_path / "root")
    forbidden = hashlib.sha256((tmp_path / "root" / WALLPAPERS / "1.png").read_bytes()).hexdigest()
    roots = [tmp_path / "nowhere", tmp_path / "root"]
    materials = collect_materials.collect(tmp_path / "out", roots, frozenset([forbidden]))
    assert [material.kind for material in materials] == ["cutout"] * 4 + ["background"] * 2
    assert read_manifest(tmp_path / "out") == materials
    assert {material.licence for material in materials} == {"public domain", "GPL-2+, CC-BY-SA-4.0"}
    assert all((tmp_path / "out" / material.file).is_file() for material in materials)


class TestPhotographs:
    def test_twenty_objects_have_masks_that_were_drawn_by_hand(self):
        found = list(photos.open_photos())
        drawn = [sample for sample in found if not sample.name.startswith("0")]
        assert sum(len(np.unique(sample.labels)) - 1 for sample in drawn) >= 20
        assert sum(len(photo.objects) for photo in photos.read_list()) == 20
        maps = {sample.name: sample.labels for sample in found}
        cup, coffee = maps["coffee 1"], maps["coffee 2"]
        assert (cup[coffee > 0] > 0).mean() > 0.9  # objects inside others have label maps of their own

    def test_outlines_follow_edges(self):
        """The image changes more across the outline of the astronaut's helmet than elsewhere."""
        sample = next(sample for sample in photos.open_photos() if sample.name == "astronaut 1")
        helmet = sample.labels == 2
        steps = np.abs(np.diff(np.asarray(sample.image.convert("L"), float), axis=1))
        border = helmet[:, 1:] != helmet[:, :-1]
        assert steps[border].mean() > 2 * steps[~border].mean()

    def test_a_photograph_with_other_bytes_is_left_out(self, monkeypatch, tmp_path, capsys):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "astronaut.png").write_bytes(b"another file")
        monkeypatch.setattr(photos, "_folder", lambda package: tmp_path if package == "skimage" else None)
        assert list(photos.open_photos()) == []
        assert "skimage/data/astronaut.png" in capsys.readouterr().out

    def test_none_is_collected_for_training(self, monkeypatch, tmp_path):
        import skimage

        root = tmp_path / "root"
        (root / "skimage").mkdir(parents=True)
        (root / "skimage/data").symlink_to(Path(skimage.__file__).parent / "data")
        names = {Path(photo.file).name for photo in photos.read_list()} | {"coins.png", "cell.png"}
        assert not names & collect_materials._ONLY["scikit-image"]
        monkeypatch.setattr(collect_materials, "_ONLY", {})  # as if every photograph of scikit-image were allowed
        kept = {material.sha256 for material in collect_materials.collect(tmp_path / "out", [root], photos.hashes())}
        every = {material.sha256 for material in collect_materials.collect(tmp_path / "all", [root])}
        assert every - kept == photos.hashes() & every
        assert len(photos.hashes() & every) >= 4


@pytest.mark.parametrize("kind", ["photos", "composites"])
def test_the_command_evaluate_reads_what_the_tool_writes(tmp_path, kind):
    materials = write_materials(tmp_path / "materials", held_out=True)
    script = Path(str(checkout()), "tools/demo_model/write_data_set.py")
    command = [sys.executable, script, kind, tmp_path / "out", "--materials", materials, "--count", "2"]
    subprocess.run(command, check=True, capture_output=True)
    data_set = open_folder(tmp_path / "out", None, 0)
    assert len(data_set) >= 2
    assert not data_set.unused
    sample = next(iter(data_set))
    assert sample.labels.max() > 0
