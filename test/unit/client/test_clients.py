"""The clients of images against the real session model: their requests, masks and errors, and where they stop."""

import asyncio
import concurrent.futures
import contextlib
import io
import threading
import time

import numpy as np
import pytest
from PIL import Image
from support.conditions import until, wait_until
from support.contents import encoded
from support.in_process import CLIENTS, Face, ImageServer, refusal

from triton_sam import AsyncSAM2TritonClient, Cleanup, SAM2TritonClient, SamTritonClient, SpeculativeSAM2Client
from triton_sam.client import session_image
from triton_sam.client.session_image import SessionImage
from triton_sam.errors import (
    ConfigurationError,
    ImageError,
    InferenceError,
    InputError,
    ModelNotReadyError,
    PromptError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from triton_sam.wire.pair import ModelPair

PIXELS = np.zeros((48, 64, 3), np.uint8)
POINT, OTHER = [[30, 20]], [[10, 9]]


@pytest.fixture
def without_session():
    with ImageServer(keeps_images=False) as server:
        yield server


@pytest.fixture(params=CLIENTS)
def kind(request):
    return request.param


def masks_of(server, point=POINT):
    """Return the logits that the sync client gets."""
    with SAM2TritonClient(server.url) as client:
        client.set_image(PIXELS)
        return client.predict(point)[0]


def test_an_image_and_a_click(image_server, kind):
    with Face(kind, image_server) as it:
        it.set_image(PIXELS)
        masks, scores = it.predict(POINT)
        (segment,), (small,) = it.segment(POINT, logits=True), it.segment(POINT)
        encoded = it.encode(PIXELS)
        assert encoded.remote.image_id == it.client.image_embeddings.remote.image_id
    assert image_server.asked == ["sam2"] * 5
    assert image_server.sent() == [True, False, False, False, True]
    assert set(image_server.requests[1].inputs) == {"image_id", "multimask_output", "point_coords", "point_labels"}
    assert image_server.requests[1].outputs == ("masks", "iou_predictions", "image_id")
    assert (encoded.image_size, scores.shape) == ((64, 48), (1, 1))
    np.testing.assert_array_equal(masks, masks_of(image_server))
    assert segment.mask.shape == (48, 64)
    np.testing.assert_array_equal(segment.logits, masks[0, 0])
    assert image_server.requests[3].outputs[0] == "encoded_masks"
    assert small.logits.size == 0
    np.testing.assert_array_equal(small.mask, segment.mask)


@pytest.mark.parametrize("family", ["sam1", "sam2"])
def test_results_may_be_written(family):
    with ImageServer(family=family) as server, SamTritonClient(server.url, family) as client:
        client.set_image(PIXELS)
        masks, scores = client.predict(POINT)
        (segment,) = client.segment(POINT, logits=True)
    for array in (masks, scores, segment.logits, segment.mask):
        array[...] = 0


def test_multimask_output_is_a_bool(image_server):
    with SAM2TritonClient(image_server.url) as client:
        client.set_image(PIXELS)
        for given in (1, np.True_):
            assert client.predict(POINT, multimask_output=given)[1].shape == (1, 3)
        assert {request.inputs["multimask_output"].dtype for request in image_server.requests[1:]} == {np.dtype(bool)}
        with pytest.raises(PromptError, match="multimask_output must be True or False, not 'no'"):
            client.predict(POINT, multimask_output="no")


def test_a_server_on_this_machine_sends_logits_by_default(image_server, without_session):
    for far in (image_server, without_session):
        with SAM2TritonClient(far.url) as other:
            near = SAM2TritonClient("localhost:8000", transport=other._transport)
            for client in (near, other):
                client.set_image(PIXELS)
            first, second = (client.segment(POINT)[0] for client in (near, other))
            assert [first.logits.size > 0, second.logits.size > 0] == [True, far is without_session]
            assert other.segment(POINT, logits=False)[0].logits is None
            near.segment(POINT, mask_input=first.logits)
            with pytest.raises(PromptError, match="logits=True") if far is image_server else contextlib.nullcontext():
                other.segment(POINT, mask_input=second.logits)


def test_it_falls_back_to_the_encoder_and_stays_there(image_server, without_session):
    """An open file is not read again for it."""
    buffer = io.BytesIO(encoded(Image.fromarray(PIXELS)))
    with Face("speculative", without_session) as it:
        it.set_image(buffer)
        masks, _ = it.predict(POINT)
        it.set_image(PIXELS)
    assert without_session.asked == ["sam2", "sam2_encoder", "sam2_decoder", "sam2_encoder"]
    np.testing.assert_array_equal(masks, masks_of(image_server))


@pytest.mark.parametrize("place", ["server", "client"])
def test_it_does_not_fall_back_where_the_place_is_given(without_session, place):
    with Face("sync", without_session, embeddings=place) as it:
        if place == "client":
            it.set_image(PIXELS)
            assert not isinstance(it.client.image_embeddings, SessionImage)
        else:
            with pytest.raises(ModelNotReadyError):
                it.set_image(PIXELS)
    assert without_session.asked == ["sam2_encoder" if place == "client" else "sam2"]


def test_a_failed_image_leaves_the_earlier_one(image_server):
    with Face("speculative", image_server) as it:
        it.set_image(PIXELS)
        with pytest.raises(ImageError, match="not an image") as caught:
            it.set_image(b"no image")
        with pytest.raises(ImageError):
            it.set_image(b"")  # which asks nothing
        np.testing.assert_array_equal(it.predict(POINT)[0], masks_of(image_server))
    assert isinstance(caught.value.__cause__, InferenceError)
    assert image_server.sent()[:3] == [True, True, False]


def test_a_lost_image_is_sent_again_and_twice_at_the_second_time(image_server):
    """Two servers may take turns, so that one gets all ids, and the other one all images."""
    expected = masks_of(image_server)
    with Face("speculative", image_server) as it:
        it.set_image(PIXELS)
        for sent in ([False, True], [False, True, True]):
            image_server.lose_images()
            image_server.requests.clear()
            np.testing.assert_array_equal(it.predict(POINT)[0], expected)
            assert image_server.sent() == sent
            assert "point_coords" in image_server.requests[-1].inputs
        it.predict(OTHER)
        assert image_server.sent()[3:] == [False]
        assert it.client.image_embeddings.remote.misses == 0  # an image that is there ends the series


def test_a_server_with_other_weights_gives_an_image_another_id(image_server):
    with Face("sync", image_server) as it:
        it.set_image(PIXELS)
        image_server.lose_images()
        image_server.program._model.images._identity = b"other weights"
        it.predict(POINT)
        image_server.requests.clear()
        it.predict(POINT)
        assert image_server.sent() == [False]  # the client has taken the new id over


ERRORS = [
    (refusal("BAD_PROMPT"), PromptError),
    (refusal("INTERNAL", "INTERNAL"), InferenceError),
    (refusal("BUSY", "UNAVAILABLE"), ServerBusyError),
    (ConnectionRefusedError("gone"), ServerUnreachableError),
    (TimeoutError(), ServerTimeoutError),
    (ZeroDivisionError("a mistake of a transport"), ZeroDivisionError),
]
"""The error that a protocol raises, and the one that a client makes of it."""


@pytest.mark.parametrize("kind", ["sync", "speculative"])
@pytest.mark.parametrize(("error", "meant"), ERRORS)
def test_errors_keep_their_types_also_while_an_image_is_sent_again(image_server, kind, error, meant):
    with Face(kind, image_server) as it:
        it.set_image(PIXELS)
        for image_server.failures in ([error], [refusal("UNKNOWN_IMAGE_ID", "NOT_FOUND"), error]):
            with pytest.raises(meant) as caught:
                it.predict(POINT)
            assert type(caught.value) is meant
            assert caught.value.__cause__ is not caught.value  # whoever follows the causes would never end
        assert it.predict(POINT)[0].shape == (1, 1, 256, 256)
        image_server.failures = [error]
        if meant is not PromptError:
            with pytest.raises(meant):
                it.set_image(PIXELS)


@pytest.mark.parametrize("kind", ["sync", "speculative"])
def test_all_requests_of_a_call_share_one_timeout(without_session, kind):
    with Face(kind, without_session, timeout=30) as it:
        before = time.monotonic() + 30
        it.set_image(PIXELS)
        between = time.monotonic() + 30
        it.predict(POINT)
    first, second, click = without_session.ends
    assert before - 0.1 <= first == pytest.approx(second, abs=0.001)
    assert second <= between
    assert between - 0.1 <= click <= time.monotonic() + 30
    assert click > second


def test_the_masks_that_a_server_makes_and_cleans_are_those_that_a_client_makes_and_cleans(image_server, kind):
    boxes, cleanup = [[8, 8, 30, 30], [20, 20, 60, 40]], Cleanup(max_hole_area=9, clip_to_box=True)
    with Face(kind, image_server) as it, SAM2TritonClient(image_server.url) as other:
        it.set_image(PIXELS)
        other.set_image(PIXELS)
        here = it.segment(box=boxes, logits=True, cleanup=cleanup)
        alone = other.segment(box=boxes, cleanup=cleanup, image=other.encode_here(PIXELS))
        there = other.segment(box=boxes, logits=False, cleanup=cleanup)
        inputs = image_server.requests[-1].inputs
        plain = [other.segment(POINT, logits=False, cleanup=each)[0].mask for each in (None, Cleanup())]
        with pytest.raises(InputError, match="Cleanup"):
            it.segment(POINT, cleanup={"keep_clicked": True})
    assert inputs["output_format"][0] == b"rle"
    assert b'"max_hole_area": 9' in inputs["cleanup"][0]
    for one, other, third, box in zip(here, there, alone, boxes, strict=True):
        np.testing.assert_array_equal(one.mask, other.mask)
        np.testing.assert_array_equal(one.mask, third.mask)
        assert one.mask.any()
        assert (one.score, one.logits is None, other.logits is None) == (other.score, False, True)
        assert one.box[0] >= box[0]
    np.testing.assert_array_equal(*plain)
    assert image_server.sent("cleanup")[-2:] == [False, False]  # so that an earlier server answers as before


def test_readiness(image_server):
    with SAM2TritonClient(image_server.url) as client:
        assert client.is_ready()
        assert client.models().variants == {"sam2": ("sam2",)}
        del image_server.models["sam2_decoder"]
        assert not client.is_ready()

    async def is_ready():
        async with AsyncSAM2TritonClient(image_server.url) as client:
            return await client.is_ready()

    assert not asyncio.run(is_ready())
    image_server.add_pair("sam2", "sam2")
    assert asyncio.run(is_ready())


@pytest.mark.parametrize("kind", ["async", "speculative", "blocking"])
def test_images_are_encoded_here_for_callers_who_want_the_embeddings(image_server, kind):
    with Face(kind, image_server) as it:
        embeddings = it.encode_here(PIXELS)
        assert it.predict(POINT, image=embeddings)[0].shape == (1, 1, 256, 256) if kind == "async" else True
    assert not isinstance(embeddings, SessionImage)
    assert image_server.asked[0] == "sam2_encoder"


# Cancelling


@pytest.mark.parametrize("call", ["encode", "predict", "segment"])
@pytest.mark.parametrize("client", [AsyncSAM2TritonClient, SpeculativeSAM2Client])
def test_cancelling_a_task_reaches_the_wire(image_server, client, call):
    async def main():
        async with client(image_server.url) as it:
            name = call if client is AsyncSAM2TritonClient else f"{call}_async"
            await (it.set_image if client is AsyncSAM2TritonClient else it.set_image_async)(PIXELS)
            image_server.triton.gate.clear()
            if name == "predict_async":
                _, task = await it.predict_async(POINT)
            else:
                task = asyncio.create_task(getattr(it, name)(PIXELS + 1 if call == "encode" else POINT))
            await until(lambda: len(image_server.requests) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: image_server.cancelled == 1)
            image_server.triton.gate.set()
            return await (it.segment if client is AsyncSAM2TritonClient else it.segment_async)(POINT)

    assert asyncio.run(main())[0].mask.shape == (48, 64)


def test_cancelling_while_an_image_is_sent_again_reaches_the_wire(image_server):
    async def main():
        async with SpeculativeSAM2Client(image_server.url) as client:
            await client.set_image_async(PIXELS)
            image_server.lose_images()
            image_server.triton.gate.clear()
            _, task = await client.predict_async(POINT, session_id="mouse")
            await until(lambda: len(image_server.requests) == 3)
            assert client.cancel_session_requests("mouse", keep_latest=False) == 1
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: image_server.cancelled == 1)

    asyncio.run(main())


def test_closing_cancels_what_is_on_the_wire(image_server):
    client = SpeculativeSAM2Client(image_server.url)
    client.set_image(PIXELS)
    image_server.triton.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(client.predict_sync, POINT)
        wait_until(lambda: len(image_server.requests) == 2)
        client.close()
        assert isinstance(job.exception(60), concurrent.futures.CancelledError)
    wait_until(lambda: image_server.cancelled == 1)
    with pytest.raises(ConfigurationError, match="closed"):
        client.set_image(PIXELS)


def test_of_many_positions_only_the_newest_is_sent(image_server):
    async def main():
        async with SpeculativeSAM2Client(image_server.url) as client:
            await client.set_image_async(PIXELS)
            tasks = [(await client.predict_async([[x, 1]], session_id="mouse"))[1] for x in range(9)]
            await asyncio.wait(tasks)
            assert [task.cancelled() for task in tasks] == [True] * 8 + [False]

    asyncio.run(main())
    assert image_server.requests[-1].inputs["point_coords"].tolist() == [[[8, 1]]]
    assert len(image_server.requests) == 2


# Event loops


def test_an_image_is_prepared_off_the_event_loop(without_session, monkeypatch):
    threads = []

    def noted(function):
        def wrapper(*arguments):
            threads.append(threading.current_thread())
            return function(*arguments)

        return wrapper

    monkeypatch.setattr(session_image, "upload", noted(session_image.upload))
    monkeypatch.setattr(ModelPair, "encode", noted(ModelPair.encode))
    with Face("speculative", without_session) as it:
        it.set_image(PIXELS)
    assert len(threads) == 2
    assert threading.main_thread() not in threads
