"""The text of objects in a notebook is short and says the things that a user asks first."""

import numpy as np
import pytest

from triton_sam import SAM2TritonClient
from triton_sam.client.session_image import LazyTensors, RemoteImage, SessionImage
from triton_sam.errors import ConfigurationError
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks.segment import Segment


def test_a_segment_says_size_area_box_and_score():
    mask = np.zeros((534, 800), bool)
    mask[10:20, 30:50] = True

    assert repr(Segment(mask, 0.5249, None)) == "Segment(800x534, 200 px, box=(30, 10, 50, 20), score=0.52)"


def test_an_image_on_the_server_shows_neither_its_file_nor_its_tensors():
    def fetch():
        raise AssertionError("a repr must not ask the server")

    remote = RemoteImage(b"x" * 3_000_000, "abc")
    image = SessionImage("sam2", "sam2_encoder", (800, 534), LazyTensors(("image_embed",), fetch), remote)

    assert repr(image) == "SessionImage(sam2_encoder, 800x534)"
    assert repr(remote) == "RemoteImage(abc, 3000000 bytes)"


def test_embeddings_show_no_tensors():
    embeddings = ImageEmbeddings("sam2", "sam2_encoder", (800, 534), {"image_embed": np.zeros((1, 256, 64, 64))})

    assert repr(embeddings) == "ImageEmbeddings(sam2_encoder, 800x534)"


@pytest.mark.parametrize("url", [8000, b"localhost:8000", ["localhost"]])
def test_a_url_that_is_no_text_is_a_configuration_error(url):
    with pytest.raises(ConfigurationError, match="localhost:8000"):
        SAM2TritonClient(url)
