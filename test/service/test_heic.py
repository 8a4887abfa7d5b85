"""HEIC photographs: the service keeps them as PNG, so that Triton can read them."""

import io
import sys

import numpy as np
import pytest
from PIL import Image, ImageFile
from support.problems import problem

from triton_sam.service.image_files import check_image
from triton_sam.service.problems import Problem

pytest.importorskip("fastapi")

DAMAGED = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64)


def heic_of(image):
    pytest.importorskip("pillow_heif").register_heif_opener()
    buffer = io.BytesIO()
    image.save(buffer, "HEIF", quality=90)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def photograph(images):
    with Image.open(images / "shapes.jpg") as image:
        return heic_of(image)


def upload(service, content):
    return service.http.post("/v1/images", content=content, headers={"Content-Type": "image/heic"})


def test_a_photograph_is_kept_as_png_with_the_same_pixels(service, photograph):
    answer = upload(service, photograph)
    assert answer.status_code == 201
    info = answer.json()
    assert (info["width"], info["height"]) == (800, 600)
    kept = service.http.get(f"/v1/images/{info['id']}/content").content
    with Image.open(io.BytesIO(kept), formats=("PNG",)) as image, Image.open(io.BytesIO(photograph)) as original:
        assert np.array_equal(np.asarray(image), np.asarray(original.convert("RGB")))
    assert upload(service, kept).json() == upload(service, photograph).json() == info  # one id, by the PNG
    assert service.http.get("/v1/models").json()["heic"] is True


def test_pixels_are_counted_before_they_are_decoded(monkeypatch):
    content = heic_of(Image.new("RGB", (120, 100)))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    assert check_image(content, 0.012) == (120, 100)
    with pytest.raises(Problem, match="120 x 100 pixels") as caught:
        check_image(content, 0.011)
    assert caught.value.status == 413


def test_a_photograph_on_its_side_is_stored_upright(service):
    image, exif = Image.new("RGB", (80, 60), (200, 30, 60)), Image.Exif()
    exif[0x0112] = 6
    image.info["exif"] = exif.tobytes()  # pillow-heif writes it as the property of the file that counts
    content = heic_of(image)
    info = upload(service, content).json()
    assert (info["width"], info["height"]) == check_image(content, 1) == (60, 80)


def test_a_damaged_photograph_is_answered_with_what_to_do(service, photograph):
    pytest.importorskip("pillow_heif")
    assert "save it as JPEG" in problem(upload(service, DAMAGED), 415)["detail"]
    cut = upload(service, photograph[: len(photograph) // 2])
    assert cut.status_code in (415, 422)


def test_without_the_extra_the_answer_says_how_to_install_it(service, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # import fails
    monkeypatch.setattr("triton_sam._common.extras.checkout", lambda: None)
    monkeypatch.setattr(Image, "OPEN", {name: opener for name, opener in Image.OPEN.items() if name != "HEIF"})
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "HEIF"])
    detail = problem(upload(service, DAMAGED), 415)["detail"]
    assert 'pip install "triton-sam[heic] @ git+https://' in detail
    assert "save it as JPEG" in detail


@pytest.mark.slow
def test_the_page_opens_a_photograph(page, photograph):
    assert page.page.get_attribute("#file", "accept").endswith(",.heic,.heif")
    file = {"name": "IMG_0001.HEIC", "mimeType": "", "buffer": photograph}
    page.page.set_input_files("#file", [file, {**file, "name": "IMG_0002.heic"}])
    page.opened("IMG_0001.HEIC")
    page.click(200, 180)
    page.settled()
    assert page.page.evaluate("tritonSam.image.width") == 800
