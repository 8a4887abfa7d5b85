"""The clients with transports that answer from a list: they carry the same requests, and stop where they must."""

import asyncio
import concurrent.futures
import threading
import time

import numpy as np
import pytest
from support.conditions import wait_until
from support.fake_transport import (
    NEVER,
    AsyncFakeTransport,
    FakeTransport,
    clicked,
    decoded,
    encoded,
    refused,
    uploaded,
)

from triton_sam import AsyncSAM2TritonClient, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client import flows
from triton_sam.client.drivers import carry_async
from triton_sam.errors import (
    ConfigurationError,
    ImageError,
    InferenceError,
    ModelNotReadyError,
    PromptError,
    ServerBusyError,
    ServerUnreachableError,
)
from triton_sam.masks.cleanup import Cleanup
from triton_sam.wire.pair import ModelPair

PIXELS = np.zeros((48, 64, 3), np.uint8)
POINT = [[3, 4]]
MISSING = ModelNotReadyError("no model 'sam2' ready")


class Sync:
    """The sync client."""

    def __init__(self, *answers, **options):
        self.transport = FakeTransport(*answers)
        self.client = SAM2TritonClient("localhost:1", transport=self.transport, **options)
        self.encode, self.set_image = self.client.encode, self.client.set_image
        self.predict, self.segment = self.client.predict, self.client.segment


class Async:
    """The speculative client, called from an event loop."""

    def __init__(self, *answers, **options):
        self.transport = AsyncFakeTransport(*answers)
        self.client = SpeculativeSAM2Client("localhost:1", transport=self.transport, **options)

    def encode(self, image):
        return asyncio.run(self.client.encode_async(image))

    def set_image(self, image):
        asyncio.run(self.client.set_image_async(image))

    def predict(self, *arguments, **options):
        async def wait():
            _, task = await self.client.predict_async(*arguments, **options)
            return await task

        return asyncio.run(wait())

    def segment(self, *arguments, **options):
        return asyncio.run(self.client.segment_async(*arguments, **options))


class Blocking(Async):
    """The speculative client without an event loop of the caller."""

    def __init__(self, *answers, **options):
        super().__init__(*answers, **options)
        self.set_image, self.predict = self.client.set_image, self.client.predict_sync


class Plain:
    """The asynchronous client whose calls are all sent."""

    def __init__(self, *answers, **options):
        self.transport = AsyncFakeTransport(*answers)
        self.client = AsyncSAM2TritonClient("localhost:1", transport=self.transport, **options)

    def __getattr__(self, name):
        return lambda *arguments, **options: asyncio.run(getattr(self.client, name)(*arguments, **options))


CLIENTS = [Sync, Async, Blocking, Plain]


@pytest.fixture(params=CLIENTS)
def make(request):
    """Yield a function that makes a client with answers: of all kinds, or of those that a test is parametrised by."""
    made = []

    def make(*answers, **options):
        made.append(request.param(*answers, **options))
        return made[-1]

    yield make
    for each in made:
        each.client.close()
        assert each.transport.is_closed


def test_an_image_and_a_click(make):
    it = make(uploaded(), clicked(value=2), clicked(value=3))
    it.set_image(PIXELS)
    masks, scores = it.predict(POINT)
    (segment,) = it.segment(POINT)
    assert (masks.max(), scores.shape) == (2, (1, 1))
    assert segment.mask.shape == (48, 64)
    assert segment.logits.max() == 3
    assert it.transport.models == ["sam2"] * 3


def test_it_falls_back_to_the_encoder_and_stays_there(make):
    it = make(MISSING, encoded(), decoded(), encoded())
    it.set_image(PIXELS)
    it.predict(POINT)
    it.set_image(PIXELS)
    assert it.transport.models == ["sam2", "sam2_encoder", "sam2_decoder", "sam2_encoder"]


@pytest.mark.parametrize(
    ("make", "place", "models"),
    [
        *((kind, "server", ["sam2"]) for kind in (Sync, Async)),
        *((kind, "client", ["sam2_encoder"]) for kind in (Blocking, Plain)),
    ],
    indirect=["make"],
)
def test_it_does_not_fall_back_where_the_place_is_given(make, place, models):
    it = make(MISSING, embeddings=place)
    with pytest.raises(ModelNotReadyError) as caught:
        it.set_image(PIXELS)
    assert caught.value is MISSING
    assert it.transport.models == models


def test_a_failed_image_leaves_the_earlier_one(make):
    it = make(uploaded(b"first"), refused("BAD_IMAGE"), clicked(b"first"))
    it.set_image(PIXELS)
    with pytest.raises(ImageError, match="words of the server"):
        it.set_image(PIXELS)
    it.predict(POINT)
    assert it.transport.requests[-1].inputs["image_id"][0] == b"first"


def test_a_lost_image_is_healed_twice(make):
    lost = refused("UNKNOWN_IMAGE_ID")
    it = make(uploaded(), lost, clicked(value=1), lost, clicked(value=2), clicked(value=3), clicked(value=4))
    it.set_image(PIXELS)
    assert [it.predict(POINT)[0].max() for _ in range(3)] == [1, 3, 4]
    assert ["image" in request.inputs for request in it.transport.requests] == [
        *(True, False, True),
        *(False, True, True),
        False,
    ]


@pytest.mark.parametrize(
    ("make", "answer", "kind"),
    [
        *((client, refused("BAD_PROMPT"), PromptError) for client in CLIENTS),
        *((client, ValueError("a mistake of a transport"), ValueError) for client in CLIENTS),
        (Sync, InferenceError("failed"), InferenceError),
        (Async, ServerBusyError("busy"), ServerBusyError),
        (Blocking, ServerUnreachableError("gone"), ServerUnreachableError),
        (Plain, clicked(objects=2), InferenceError),
    ],
    indirect=["make"],
)
def test_errors_keep_their_types(make, answer, kind):
    it = make(uploaded(), answer, clicked())
    it.set_image(PIXELS)
    with pytest.raises(kind) as caught:
        it.predict(POINT)
    assert type(caught.value) is kind
    assert it.predict(POINT)[0].shape == (1, 1, 256, 256)


def test_a_prompt_too_large_for_one_request_goes_in_parts(make):
    it = make(uploaded(), clicked(objects=64), clicked(objects=6))
    it.set_image(PIXELS)
    assert it.predict(np.ones((70, 1, 2)))[0].shape == (70, 1, 256, 256)
    assert it.transport.models == ["sam2", "sam2", "sam2"]
    with pytest.raises(PromptError, match="an object has 1025 points"):
        it.predict(np.ones((1025, 2)))


def test_all_requests_of_a_call_share_one_timeout():
    it = Sync(MISSING, encoded(), decoded())
    it.set_image(PIXELS)
    it.predict(POINT)
    assert it.transport.calls == [2, 1]
    lost = Sync(uploaded(), refused("UNKNOWN_IMAGE_ID"), clicked())
    lost.set_image(PIXELS)
    lost.predict(POINT)
    assert lost.transport.calls == [1, 2]


def test_many_tasks_of_one_event_loop_get_their_own_answers():
    """Unlike in a lane of the speculative client, no call replaces another one."""

    def answer(request):
        if "image" in request.inputs:
            return uploaded()
        return clicked(value=float(request.inputs["point_coords"][0, 0, 0]))

    async def main():
        async with AsyncSAM2TritonClient("localhost:1", transport=AsyncFakeTransport(answer)) as client:
            await client.set_image(PIXELS)
            found = await asyncio.gather(*(client.segment([[x, 1]]) for x in range(1, 31)))
            return [segment.logits.max() for (segment,) in found]

    assert asyncio.run(main()) == list(range(1, 31))


def test_segments_without_logits_are_made_by_the_server():
    it = Plain(uploaded(), InferenceError("looked at below"))
    it.set_image(PIXELS)
    with pytest.raises(InferenceError):
        it.segment(POINT, logits=False, cleanup=Cleanup(max_hole_area=9))
    inputs = it.transport.requests[-1].inputs
    assert inputs["output_format"][0] == b"rle"
    assert b'"max_hole_area": 9' in inputs["cleanup"][0]
    it.client.close()


def test_the_async_client_is_ready_when_both_models_are():
    it = Plain()
    assert it.is_ready()
    it.transport.ready = ("sam2_encoder",)
    assert not it.is_ready()
    it.client.close()


@pytest.mark.parametrize("call", ["encode", "predict", "segment"])
def test_cancelling_a_task_of_the_async_client_reaches_the_wire(call):
    transport = AsyncFakeTransport(uploaded(), NEVER, clicked())

    async def main():
        async with AsyncSAM2TritonClient("localhost:1", transport=transport) as client:
            await client.set_image(PIXELS)
            task = asyncio.create_task(getattr(client, call)(PIXELS if call == "encode" else POINT))
            await until(lambda: len(transport.requests) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: transport.cancelled == 1)
            return await client.predict(POINT)

    assert asyncio.run(main())[0].shape == (1, 1, 256, 256)
    assert transport.is_closed


@pytest.mark.parametrize("kind", [Async, Blocking])
def test_the_deadline_of_an_encode_holds_for_all_its_requests(kind):
    it = kind(MISSING, encoded(), decoded(), timeout=30)
    before = time.monotonic() + 30
    it.set_image(PIXELS)
    it.predict(POINT)
    first, second, click = it.transport.ends
    assert before <= first == second <= time.monotonic() + 30
    assert click is None  # as long as a call may take, from the moment when it is sent
    it.client.close()


def test_the_sync_client_asks_its_transport_what_is_ready():
    it = Sync()
    assert it.client.is_ready()
    assert it.client.models().variants == {"sam2": ("sam2",)}
    it.transport.ready = ("sam2_encoder",)
    assert not it.client.is_ready()


# Cancelling


async def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("call", ["encode_async", "predict_async", "segment_async"])
def test_cancelling_a_task_reaches_the_wire(call):
    transport = AsyncFakeTransport(uploaded(), NEVER, clicked())

    async def main():
        async with SpeculativeSAM2Client("localhost:1", transport=transport) as client:
            await client.set_image_async(PIXELS)
            if call == "predict_async":
                _, task = await client.predict_async(POINT)
            else:
                task = asyncio.create_task(getattr(client, call)(PIXELS if call == "encode_async" else POINT))
            await until(lambda: len(transport.requests) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: transport.cancelled == 1)
            return await (await client.predict_async(POINT))[1]

    assert asyncio.run(main())[0].shape == (1, 1, 256, 256)


def test_cancelling_while_an_image_is_sent_again_reaches_the_wire():
    transport = AsyncFakeTransport(uploaded(), refused("UNKNOWN_IMAGE_ID"), NEVER)

    async def main():
        async with SpeculativeSAM2Client("localhost:1", transport=transport) as client:
            await client.set_image_async(PIXELS)
            _, task = await client.predict_async(POINT, session_id="mouse")
            await until(lambda: len(transport.requests) == 3)
            assert client.cancel_session_requests("mouse", keep_latest=False) == 1
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: transport.cancelled == 1)

    asyncio.run(main())


def test_closing_cancels_what_is_on_the_wire():
    transport = AsyncFakeTransport(uploaded(), NEVER)
    client = SpeculativeSAM2Client("localhost:1", transport=transport)
    client.set_image(PIXELS)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(client.predict_sync, POINT)
        wait_until(lambda: len(transport.requests) == 2)
        client.close()
        assert isinstance(job.exception(60), concurrent.futures.CancelledError)
    assert (transport.cancelled, transport.is_closed) == (1, True)
    with pytest.raises(ConfigurationError, match="closed"):
        client.set_image(PIXELS)


def test_of_many_positions_only_the_newest_is_sent():
    transport = AsyncFakeTransport(uploaded(), clicked())

    async def main():
        async with SpeculativeSAM2Client("localhost:1", transport=transport) as client:
            await client.set_image_async(PIXELS)
            tasks = [(await client.predict_async([[x, 1]], session_id="mouse"))[1] for x in range(9)]
            await asyncio.wait(tasks)
            assert [task.cancelled() for task in tasks] == [True] * 8 + [False]

    asyncio.run(main())
    assert transport.requests[-1].inputs["point_coords"].tolist() == [[[8, 1]]]
    assert len(transport.requests) == 2


# Event loops


def test_an_image_is_prepared_off_the_event_loop(monkeypatch):
    threads = []

    def noted(function):
        def wrapper(*arguments):
            threads.append(threading.current_thread())
            return function(*arguments)

        return wrapper

    monkeypatch.setattr(flows, "upload", noted(flows.upload))
    monkeypatch.setattr(ModelPair, "encode", noted(ModelPair.encode))
    it = Async(MISSING, encoded())
    it.set_image(PIXELS)
    it.client.close()
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    assert all(thread.name != "triton-sam-io" for thread in threads)


@pytest.mark.parametrize("model_type", [["a"], {}, None, "sam9"])
def test_a_model_type_that_is_none_is_one_clear_error(model_type):
    with pytest.raises(ConfigurationError, match=r"unknown model type .*: choose one of sam1, sam2"):
        SAM2TritonClient("localhost", model_type)


def test_a_flow_that_asks_nothing_has_a_result():
    def flow():
        return 7
        yield

    assert asyncio.run(carry_async(flow(), None)) == 7
