"""Image embeddings without a server: files and identity. test_client tests the embeddings of a client."""

import re
from dataclasses import replace

import numpy as np
import pytest

from triton_sam import ImageEmbeddings, InputError, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.errors import ConfigurationError
from triton_sam.families import get_family

OUTPUTS = get_family("sam2").encoder.outputs


@pytest.fixture
def saved(tmp_path):
    tensors = {spec.name: np.ones((1, *spec.shape[1:]), np.float32) for spec in OUTPUTS}
    ImageEmbeddings("sam2", "sam2_encoder", (8, 6), tensors).save(tmp_path / "image.npz")
    return tmp_path / "image.npz"


@pytest.fixture
def on_server():
    """An image that a server keeps."""
    return SessionImage("sam2", "sam2_encoder", (8, 6), {}, RemoteImage(b"image", "id"))


def test_a_saved_file_is_loaded_unchanged(saved):
    loaded = ImageEmbeddings.load(saved)
    assert (loaded.family, loaded.model, loaded.image_size) == ("sam2", "sam2_encoder", (8, 6))
    assert all((array == 1).all() for array in loaded.values())


def test_a_file_with_another_array_is_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("text")  # NumPy takes it for a pickle
    for name in ("array.npy", "text.npz"):
        with pytest.raises(InputError, match=f"{name} holds no image embeddings: give a file that") as caught:
            ImageEmbeddings.load(tmp_path / name)
        assert "pickle" not in str(caught.value)


def test_a_damaged_file_is_refused(saved):
    whole = saved.read_bytes()
    directory = whole.rindex(b"PK\x01\x02")
    messages = []
    for place in range(directory, directory + 46, 2):  # zipfile raises exceptions of many types
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            ImageEmbeddings.load(saved)
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 5
    assert all("holds no image embeddings" in message for message in messages)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"^there is no file nope\.npz$"):
        ImageEmbeddings.load("nope.npz")
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path))} cannot be read: "):
        ImageEmbeddings.load(tmp_path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, "high_res_feats_0 is missing"),
        ({"high_res_feats_0": np.ones((1, 32, 9, 9), np.float32)}, r"high_res_feats_0 is float32\(1, 32, 9, 9\)"),
    ],
    ids=["missing", "shape"],
)
def test_tensors_that_do_not_fit_are_refused_in_a_file_and_on_assignment(saved, other, words):
    loaded = ImageEmbeddings.load(saved)
    tensors = {name: array for name, array in loaded.items() if name != "high_res_feats_0"}
    wrong = replace(loaded, tensors={**tensors, **other})
    wrong.save(saved)
    with pytest.raises(InputError, match=words):
        ImageEmbeddings.load(saved)
    with SAM2TritonClient("localhost:1") as client:
        with pytest.raises(InputError, match=words):
            client.image_embeddings = wrong
        assert client.image_embeddings is None


def test_embeddings_are_kept_in_a_known_place():
    with pytest.raises(ConfigurationError, match="embeddings must be one of"):
        SAM2TritonClient("localhost:1", embeddings="cloud")


@pytest.mark.parametrize("kind", [SAM2TritonClient, SpeculativeSAM2Client])
def test_an_image_on_the_server_is_accepted(kind, on_server):
    with kind("localhost:1") as client:
        client.image_embeddings = on_server
        assert client.image_embeddings is on_server
        with pytest.raises(ConfigurationError, match="were made by other_encoder"):
            client.image_embeddings = replace(on_server, model="other_encoder")


def test_embeddings_are_compared_by_identity(saved, on_server):
    loaded, again = ImageEmbeddings.load(saved), ImageEmbeddings.load(saved)
    for one, other in ((loaded, again), (on_server, replace(on_server)), (loaded, on_server)):
        assert one == one
        assert one != other
        assert len({one: 1, other: 2}) == 2


@pytest.mark.parametrize(
    "read",
    [lambda image, _: image["image_embeddings"], lambda image, _: dict(image), lambda image, path: image.save(path)],
    ids=["a tensor", "all tensors", "save"],
)
def test_the_handle_of_an_image_on_the_server_has_no_tensors_and_says_who_returns_them(on_server, tmp_path, read):
    with pytest.raises(InputError, match=r"stay on the server.*encode_here\(image\) of the client returns them"):
        read(on_server, tmp_path / "image.npz")
    assert not list(tmp_path.iterdir())
    assert on_server
    assert on_server.nbytes == 0
