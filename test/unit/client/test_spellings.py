"""Second spellings of the clients' parameters: they reach the same call, and both spellings at once are an error."""

import asyncio
import inspect

import numpy as np
import pytest
from support.image_server import ImageServer

import triton_sam
from triton_sam import ConfigurationError, InputError, SAM2TritonClient, SpeculativeSAM2Client, queue_multiple_requests

PIXELS = np.zeros((48, 64, 3), np.uint8)
CLIENTS = [SAM2TritonClient, SpeculativeSAM2Client]


@pytest.fixture
def server():
    with ImageServer() as server:
        yield server


@pytest.mark.parametrize("client", CLIENTS)
def test_the_url_has_two_spellings(client):
    assert client(triton_url="host:1").url == client("host:1").url
    for again in (lambda: client("host:1", triton_url="host:1"), lambda: client(url="host:1", triton_url="host:1")):
        with pytest.raises(ConfigurationError, match="url and triton_url are the same parameter: give one of them"):
            again()


@pytest.mark.parametrize("client", CLIENTS)
def test_set_image_takes_the_first_names_and_returns_the_embeddings(server, client):
    with client(server.url, embeddings="client") as opened:
        for call in (
            lambda: opened.set_image(image_path=PIXELS, image_size=1024),
            lambda: opened.set_image(PIXELS, 1024),
        ):
            embeddings = call()
            assert embeddings is opened.image_embeddings
            assert embeddings["image_embeddings"].shape == (1, 256, 64, 64)
        with pytest.raises(InputError, match="image and image_path are the same"):
            opened.set_image(PIXELS, image_path=PIXELS)
        before = opened.image_embeddings
        with pytest.raises(ConfigurationError, match="image_size=512: the encoder of SAM2 takes 1024 pixels"):
            opened.set_image(PIXELS, image_size=512)
        assert opened.image_embeddings is before
        assert opened.set_image(PIXELS) is not before


@pytest.fixture
def speculative(server):
    with SpeculativeSAM2Client(server.url) as client:
        client.set_image(PIXELS)
        yield client


FIRST_NAMES = {"point_coords": np.array([[3, 4]]), "point_labels": np.array([1])}


def test_async_calls_take_the_names_of_the_sync_client(speculative):
    async def run(client):
        assert await client.set_image_async(image_path=PIXELS, image_size=1024) is client.image_embeddings
        with pytest.raises(InputError, match="image_path"):
            await client.set_image_async(PIXELS, image_path=PIXELS)
        _, task = await client.predict_async(**FIRST_NAMES, session_id="mouse")
        masks, _ = await task
        (segment,) = await client.segment_async(**FIRST_NAMES)
        with pytest.raises(InputError, match="coords and point_coords are the same"):
            await client.predict_async([[3, 4]], point_coords=[[3, 4]])
        with pytest.raises(InputError, match="labels and point_labels are the same"):
            await client.predict_async([[3, 4]], labels=[1], point_labels=[1])
        return masks, segment

    masks, segment = asyncio.run(run(speculative))
    assert masks.shape == (1, 1, 256, 256)
    assert segment.mask.shape == (48, 64)
    np.testing.assert_array_equal(speculative.predict_sync(**FIRST_NAMES)[0], masks)


def test_a_path_of_positions_takes_the_first_names(speculative):
    async def run(client):
        tasks = await queue_multiple_requests(
            client, point_coords_list=[[[3, 4]], [[5, 6]]], point_labels_list=[[1], [1]], session_id="mouse"
        )
        with pytest.raises(InputError, match="coords_list and point_coords_list"):
            await queue_multiple_requests(client, [[[3, 4]]], [[1]], "mouse", point_coords_list=[[[3, 4]]])
        return await triton_sam.wait_for_latest_result(tasks, client, "mouse")

    masks, _ = asyncio.run(run(speculative))
    assert masks.shape == (1, 1, 256, 256)


def test_a_number_in_second_place_is_the_timeout_of_the_speculative_client():
    with SpeculativeSAM2Client("host:1", 30) as client:
        assert client._client._transport._timeout == 30.0
        assert client.family.name == "sam2"
    with SpeculativeSAM2Client("host:1", "sam3", timeout=5, retries=3) as client:
        transport = client._client._transport
        assert (transport._timeout, transport._retries, client.family.name) == (5, 3, "sam3")
    with pytest.raises(ConfigurationError, match="30 in second place is a timeout already"):
        SpeculativeSAM2Client("host:1", 30, timeout=20)


def test_signatures_show_the_first_spelling_and_async_functions_stay_async():
    assert list(inspect.signature(SpeculativeSAM2Client).parameters)[:2] == ["url", "model_type"]
    assert next(iter(inspect.signature(SAM2TritonClient).parameters)) == "url"
    assert inspect.iscoroutinefunction(SpeculativeSAM2Client.predict_async)
    assert inspect.iscoroutinefunction(queue_multiple_requests)
    assert not inspect.iscoroutinefunction(SpeculativeSAM2Client.predict_sync)


def test_the_first_module_forwards():
    import triton_sam2
    import triton_sam2.client
    import triton_sam2.speculative_client
    from triton_sam import speculative_client

    assert {name: getattr(triton_sam2, name) for name in triton_sam.__all__} == {
        name: getattr(triton_sam, name) for name in triton_sam.__all__
    }
    assert triton_sam2.client.SAM2TritonClient is SAM2TritonClient
    for module in (speculative_client, triton_sam2.speculative_client):
        assert module.SpeculativeSAM2Client is SpeculativeSAM2Client
        assert module.queue_multiple_requests is queue_multiple_requests
        assert module.wait_for_latest_result is triton_sam.wait_for_latest_result
