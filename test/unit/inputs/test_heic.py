"""HEIC photographs: the error without pillow-heif, and the opener of a stand-in with it."""

import io
import sys
import types

import numpy as np
import pytest
from PIL import Image, ImageFile

from triton_sam.errors import ImageError, MissingDependencyError
from triton_sam.inputs import images
from triton_sam.inputs.formats import HEIF

CONTENT = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64)
COLOUR = (200, 30, 60)


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # import fails


@pytest.fixture
def opener(monkeypatch):
    """A stand-in for pillow-heif that shows each file as an image of one colour."""

    class Heif(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self):
            self._mode, self._size = "RGB", (8, 6)

        def load(self):
            self.im = Image.new("RGB", self._size, COLOUR).im
            return Image.Image.load(self)

    def register():
        Image.register_open("HEIF", Heif, lambda start: start[4:8] == b"ftyp")

    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    monkeypatch.setitem(sys.modules, "pillow_heif", types.SimpleNamespace(register_heif_opener=register))


@pytest.mark.parametrize("read", [images.open_image, images.image_bytes])
@pytest.mark.parametrize("kind", ["bytes", "path", "file"])
def test_the_error_names_the_extra(without, tmp_path, read, kind):
    path = tmp_path / "photo.heic"
    path.write_bytes(CONTENT)
    source = {"bytes": CONTENT, "path": path, "file": io.BytesIO(CONTENT)}[kind]
    with pytest.raises(MissingDependencyError, match=r"need the heic extra \(pillow_heif is missing\)"):
        read(source)


def test_a_photograph_is_opened_and_sent_as_png(opener):
    assert np.asarray(images.open_image(CONTENT)).tolist() == np.full((6, 8, 3), COLOUR).tolist()
    content = images.image_bytes(CONTENT)
    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        assert (image.size, image.getpixel((0, 0))) == ((8, 6), COLOUR)


def test_only_who_names_the_format_opens_it(opener):
    with pytest.raises(ImageError, match="not an image"):  # as in session models
        images.open_image(CONTENT, images.FORMATS)
    assert images.open_image(CONTENT, (*images.FORMATS, HEIF)).size == (8, 6)


def test_other_damaged_files_need_no_extra(without):
    with pytest.raises(ImageError, match="not an image"):
        images.open_image(b"\x00\x00\x00\x18ftypwxyz" + bytes(64))
