"""Embeddings in files, without a server: those of a client are in test_client."""

from dataclasses import replace

import numpy as np
import pytest

from triton_sam import ImageEmbeddings, InputError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.session_image import LazyTensors, RemoteImage, SessionImage
from triton_sam.errors import ConfigurationError
from triton_sam.families import get_family

OUTPUTS = get_family("sam2").encoder.outputs


@pytest.fixture
def saved(tmp_path):
    tensors = {spec.name: np.ones((1, *spec.shape[1:]), np.float32) for spec in OUTPUTS}
    ImageEmbeddings("sam2", "sam2_encoder", (8, 6), tensors).save(tmp_path / "image.npz")
    return tmp_path / "image.npz"


@pytest.fixture
def elsewhere():
    """An image that a server keeps, and whose client is closed: its tensors cannot be had."""

    def fetch():
        raise ConfigurationError("closed")

    tensors = LazyTensors(tuple(spec.name for spec in OUTPUTS), fetch)
    return SessionImage("sam2", "sam2_encoder", (8, 6), tensors, RemoteImage(b"picture", "id"))


def test_what_was_saved_is_loaded(saved):
    loaded = ImageEmbeddings.load(saved)
    assert (loaded.family, loaded.model, loaded.image_size) == ("sam2", "sam2_encoder", (8, 6))
    assert all((array == 1).all() for array in loaded.values())


def test_an_array_is_no_embeddings(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"array\.npy holds no image embeddings"):
        ImageEmbeddings.load(tmp_path / "array.npy")


def test_a_damaged_file_is_no_embeddings(saved):
    whole = saved.read_bytes()
    directory = whole.rindex(b"PK\x01\x02")
    said = []
    for place in range(directory, directory + 46, 2):  # zipfile's refusals are of many types
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            ImageEmbeddings.load(saved)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 5
    assert all("holds no image embeddings" in each for each in said)


@pytest.mark.parametrize("kind", [SAM2TritonClient, SpeculativeSAM2Client])
def test_what_a_server_keeps_is_handed_on_without_a_look_at_its_tensors(kind, elsewhere):
    with kind("localhost:1") as client:
        client.image_embeddings = elsewhere
        assert client.image_embeddings is elsewhere
        with pytest.raises(ConfigurationError, match="were made by other_encoder"):
            client.image_embeddings = replace(elsewhere, model="other_encoder")


def test_embeddings_are_compared_by_identity(saved, elsewhere):
    loaded, again = ImageEmbeddings.load(saved), ImageEmbeddings.load(saved)
    for one, other in ((loaded, again), (elsewhere, replace(elsewhere)), (loaded, elsewhere)):
        assert one == one
        assert one != other
        assert len({one: 1, other: 2}) == 2
