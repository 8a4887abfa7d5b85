"""Embeddings in files, without a server: those of a client are in test_client."""

import numpy as np
import pytest

from triton_sam import ImageEmbeddings, InputError
from triton_sam.families import get_family


@pytest.fixture
def saved(tmp_path):
    specs = get_family("sam2").encoder.outputs
    tensors = {spec.name: np.ones((1, *spec.shape[1:]), np.float32) for spec in specs}
    ImageEmbeddings("sam2", "sam2_encoder", (8, 6), tensors).save(tmp_path / "image.npz")
    return tmp_path / "image.npz"


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
