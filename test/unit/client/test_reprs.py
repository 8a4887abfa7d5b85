"""The text of objects in a notebook is short and says the things that a user asks first."""

import numpy as np
import pytest

from triton_sam import (
    AsyncSAM2TritonClient,
    AsyncSAM2VideoClient,
    SAM2TritonClient,
    SAM2VideoClient,
    SpeculativeSAM2Client,
)
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.client.video.frames import VideoOptions
from triton_sam.client.video.words import FoundObject as FoundInVideo
from triton_sam.errors import ConfigurationError
from triton_sam.everything.parts import FoundObject
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks.segment import Segment

CLIENTS = [SAM2TritonClient, AsyncSAM2TritonClient, SpeculativeSAM2Client, SAM2VideoClient, AsyncSAM2VideoClient]


def test_an_object_says_size_area_box_and_score():
    mask = np.zeros((534, 800), bool)
    mask[10:20, 30:50] = True
    for kind in (Segment, FoundObject):
        text = f"{kind.__name__}(800x534, 200 px, box=(30, 10, 50, 20), score=0.52)"
        assert repr(kind(mask, 0.5249, None)) == text
    in_video = FoundInVideo(3, 40, "dog", 0.5249, (30.4, 9.6, 50.0, 20.0), mask)
    assert repr(in_video) == "FoundObject(3, 'dog', frame=40, box=(30, 10, 50, 20), score=0.52)"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_says_server_and_model_but_no_token(client):
    text = repr(client("grpc://localhost:8001", headers={"Authorization": "Bearer secret"}))
    model = "sam2_video" if "Video" in client.__name__ else "sam2"
    assert text == f"{client.__name__}('grpc://localhost:8001', model='{model}')"


@pytest.mark.parametrize(
    ("client", "wrong"),
    [
        (SAM2TritonClient, {"timeout": "5"}),
        (AsyncSAM2TritonClient, {"timeout": None}),
        (SpeculativeSAM2Client, {"timeout": True}),
        (SAM2VideoClient, {"retries": 1.5}),
        (AsyncSAM2VideoClient, {"retries": "2"}),
    ],
)
def test_a_number_of_another_type_is_a_configuration_error(client, wrong):
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"{name} must be a (whole )?number, not "):
        client("localhost:8000", **wrong)


def test_further_numbers_are_checked_too_and_those_of_numpy_are_taken():
    with pytest.raises(ConfigurationError, match="max_in_flight must be a whole number, not '2'"):
        SpeculativeSAM2Client("localhost:8000", max_in_flight="2")
    with pytest.raises(ConfigurationError, match="every must be a whole number, not '5'"):
        VideoOptions(every="5")
    SAM2TritonClient("localhost:8000", timeout=np.float32(5), retries=np.int64(1)).close()


def test_an_image_on_the_server_shows_neither_its_file_nor_its_tensors():
    remote = RemoteImage(b"x" * 3_000_000, "abc")
    image = SessionImage("sam2", "sam2_encoder", (800, 534), {}, remote)
    assert repr(image) == "SessionImage(sam2_encoder, 800x534)"
    assert repr(remote) == "RemoteImage(abc, 3000000 bytes)"


def test_embeddings_show_no_tensors():
    embeddings = ImageEmbeddings("sam2", "sam2_encoder", (800, 534), {"image_embed": np.zeros((1, 256, 64, 64))})

    assert repr(embeddings) == "ImageEmbeddings(sam2_encoder, 800x534)"


@pytest.mark.parametrize("url", [8000, b"localhost:8000", ["localhost"]])
def test_a_url_that_is_no_text_is_a_configuration_error(url):
    with pytest.raises(ConfigurationError, match="localhost:8000"):
        SAM2TritonClient(url)
