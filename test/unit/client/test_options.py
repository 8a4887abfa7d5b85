"""How clients are made and shown: both spellings of parameters, wrong values, and the texts of objects."""

import asyncio

import numpy as np
import pytest
from support.rectangles import mask

import triton_sam
from triton_sam import (
    AsyncSAM2TritonClient,
    AsyncSAM2VideoClient,
    ConfigurationError,
    InputError,
    SAM2TritonClient,
    SAM2VideoClient,
    SpeculativeSAM2Client,
    queue_multiple_requests,
)
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.client.video.words import FoundInVideo
from triton_sam.everything.search import FoundObject
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks.segment import Segment

PIXELS = np.zeros((48, 64, 3), np.uint8)
CLIENTS = [SAM2TritonClient, SpeculativeSAM2Client]
ALL_CLIENTS = [*CLIENTS, AsyncSAM2TritonClient, SAM2VideoClient, AsyncSAM2VideoClient]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_url_has_two_spellings(client):
    assert client(triton_url="host:1").url == client("host:1").url
    for again in (lambda: client("host:1", triton_url="host:1"), lambda: client(url="host:1", triton_url="host:1")):
        with pytest.raises(ConfigurationError, match="url and triton_url are the same parameter: give one of them"):
            again()


@pytest.mark.parametrize("client", CLIENTS)
def test_set_image_takes_the_first_names_and_returns_the_embeddings(image_server, client):
    with client(image_server.url, embeddings="client") as opened:
        for given, named in (((), {"image_path": PIXELS, "image_size": 1024}), ((PIXELS, 1024), {})):
            embeddings = opened.set_image(*given, **named)
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
def speculative(image_server):
    with SpeculativeSAM2Client(image_server.url) as client:
        client.set_image(PIXELS)
        yield client


FIRST_NAMES = {"point_coords": np.array([[3, 4]]), "point_labels": np.array([1])}


def ready(url):
    with SAM2TritonClient(url) as client:
        return client.models()


def test_async_calls_take_the_names_of_the_sync_client(speculative):
    assert speculative.is_ready()

    async def run(client):
        assert await client.set_image_async(image_path=PIXELS, image_size=1024) is client.image_embeddings
        _, task = await client.predict_async(**FIRST_NAMES, session_id="mouse")
        masks, _ = await task
        points = {"point_coords_list": [[[3, 4]], [[5, 6]]], "point_labels_list": [[1], [1]]}
        tasks = await queue_multiple_requests(client, **points, session_id="mouse")
        latest, _ = await triton_sam.wait_for_latest_result(tasks, client, "mouse")
        for call, message in (
            (lambda: client.set_image_async(PIXELS, image_path=PIXELS), "image_path"),
            (lambda: client.predict_async([[3, 4]], point_coords=[[3, 4]]), "coords and point_coords are the same"),
            (lambda: client.predict_async(labels=[1], point_labels=[1]), "labels and point_labels are the same"),
            (lambda: queue_multiple_requests(client, [[[3, 4]]], **points), "coords_list and point_coords_list"),
        ):
            with pytest.raises(InputError, match=message):
                await call()
        async with AsyncSAM2TritonClient(client.url) as other:
            await other.set_image(PIXELS, image_size=1024)
            assert (await other.models(), await other.is_ready()) == (await asyncio.to_thread(ready, client.url), True)
        return masks, latest, await client.segment_async(**FIRST_NAMES)

    masks, latest, (segment,) = asyncio.run(run(speculative))
    assert masks.shape == latest.shape == (1, 1, 256, 256)
    assert segment.mask.shape == (48, 64)
    np.testing.assert_array_equal(speculative.predict_sync(**FIRST_NAMES)[0], masks)


def test_a_number_in_second_place_is_the_timeout_of_the_speculative_client():
    with SpeculativeSAM2Client("host:1", 30) as client:
        assert client._client._transport._timeout == 30.0
        assert client.family.name == "sam2"
    with SpeculativeSAM2Client("host:1", "sam3", timeout=5, retries=3) as client:
        transport = client._client._transport
        assert (transport._timeout, transport._retries, client.family.name) == (5, 3, "sam3")
    with pytest.raises(ConfigurationError, match="30 in second place is a timeout already"):
        SpeculativeSAM2Client("host:1", 30, timeout=20)


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


# Wrong values, and texts of objects

REFUSED = {  # words of the error: a parameter and its wrong values
    "timeout must be a number, not ": ("timeout", ["5", None, True]),
    "timeout must be above 0 seconds": ("timeout", [0, -1, float("nan"), float("inf"), 1e12]),
    "retries must be a whole number, not ": ("retries", [1.5, "2"]),
    "busy must be one of raise, wait, not 'later'": ("busy", ["later"]),
    "unknown model type .*: choose one of sam1, sam2": ("model_type", [["a"], {}, None, "sam9"]),
    "url must be a text such as 'localhost:8000', not ": ("url", [8000, b"localhost:8000", ["localhost"]]),
}


@pytest.mark.parametrize("client", ALL_CLIENTS)
@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_value_is_a_configuration_error(client, message):
    name, values = REFUSED[message]
    for value in values:
        with pytest.raises(ConfigurationError, match=message):
            client(**{"url": "localhost:8000", name: value})


@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_a_client_shows_server_and_model_but_no_token(client):
    text = repr(client("grpc://localhost:8001", headers={"Authorization": "Bearer secret"}))
    model = "sam2_video" if "Video" in client.__name__ else "sam2"
    assert text == f"{client.__name__}('grpc://localhost:8001', model='{model}')"


def test_objects_show_what_a_user_asks_first_and_neither_files_nor_tensors():
    found, remote = mask((30, 10, 50, 20), size=(534, 800)), RemoteImage(b"x" * 3_000_000, "abc")
    members = "800x534, 200 px, box=(30, 10, 50, 20), score=0.52"
    shown = {
        f"Segment({members})": Segment(found, 0.5249, None),
        f"FoundObject({members})": FoundObject(found, 0.5249, None),
        "FoundInVideo(3, 'dog', frame=40, box=(30, 10, 50, 20), score=0.52)": FoundInVideo(
            3, 40, "dog", 0.5249, (30.4, 9.6, 50.0, 20.0), found
        ),
        "RemoteImage(abc, 3000000 bytes)": remote,
        "SessionImage(sam2_encoder, 800x534)": SessionImage("sam2", "sam2_encoder", (800, 534), {}, remote),
        "ImageEmbeddings(sam2_encoder, 800x534)": ImageEmbeddings(
            "sam2", "sam2_encoder", (800, 534), {"image_embed": np.zeros((1, 256, 64, 64))}
        ),
    }
    assert [repr(each) for each in shown.values()] == list(shown)
