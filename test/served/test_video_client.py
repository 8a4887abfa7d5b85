"""The clients of videos against a real Triton: both protocols, lost sessions, a killed process."""

import asyncio
import contextlib

import numpy as np
import pytest
from support.conditions import settled

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.client.video.predictor import SAM2VideoPredictor
from triton_sam.errors import PromptError, VideoError
from triton_sam.transport import Transport, parse_url

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of the models takes most of a minute
pytest.importorskip("psutil")

from support.processes import kill_model  # noqa: E402

COUNT = 60


def drawn(index):
    """A bright disc that moves over noise."""
    rows, columns = np.mgrid[:90, :120]
    frame = np.random.default_rng(0).integers(0, 80, (90, 120, 3)).astype(np.uint8)
    frame[(rows - 40) ** 2 + (columns - 20 - 1.3 * index) ** 2 < 150] = (230, 180, 60)
    return frame


FRAMES = [drawn(index) for index in range(COUNT)]


@pytest.fixture(params=["http", "grpc"])
def url(request, video_server):
    return video_server.http_url if request.param == "http" else video_server.grpc_url


def prompt(video):
    return video.add(2, 1, points=[[22, 40]]), video.add(4, 5, box=[10, 20, 50, 60])


def values(segments):
    return {id_: (segment.mask.tobytes(), segment.logits.tobytes()) for id_, segment in segments.items()}


@pytest.fixture(scope="module")
def undisturbed(video_server):
    """All masks of 60 frames, tracked without a disturbance."""
    with SAM2VideoClient(video_server.http_url) as client, client.open(FRAMES) as video:
        prompt(video)
        passed = [(frame, values(segments)) for frame, segments in video.propagate(start=0)]
        assert video.restored == 0
    return passed


def test_the_masks_are_the_same_over_both_protocols(url, undisturbed):
    with SAM2VideoClient(url) as client:
        assert client.is_ready()
        with client.open(FRAMES) as video:
            prompt(video)
            passed = [(frame, values(segments)) for frame, segments in video.propagate(start=0, count=12)]
    assert passed == undisturbed[:12]


def test_the_async_client_gives_the_same_masks(url, undisturbed):
    async def run():
        async with AsyncSAM2VideoClient(url, variant="sam2_none") as client:
            assert not await client.is_ready()
        async with AsyncSAM2VideoClient(url) as client, await client.open(FRAMES) as video:
            assert await client.is_ready()
            await video.add(2, 1, points=[[22, 40]])
            await video.add(4, 5, box=[10, 20, 50, 60])
            return [(frame, values(segments)) async for frame, segments in video.propagate(start=0, count=12)]

    assert asyncio.run(run()) == undisturbed[:12]


def test_masks_made_by_the_server_are_those_made_here(url):
    with SAM2VideoClient(url) as client, client.open(FRAMES[:6]) as video:
        video.add(2, 1, points=[[22, 40]])
        here = [segments[1].mask for _, segments in video.propagate()]
        there = [segments[1] for _, segments in video.propagate(logits=False)]
    assert all(segment.logits is None for segment in there)
    np.testing.assert_array_equal([segment.mask for segment in there], here)


def test_refusals_are_clear_and_the_session_lives_on(url):
    with SAM2VideoClient(url) as client, client.open(FRAMES[:5]) as video:
        with pytest.raises(PromptError, match="nothing to track"):
            video.propagate()
        video.add(0, 1, points=[[22, 40]])
        video.clear(0, 1)
        with pytest.raises(PromptError):
            list(video.propagate(start=0))
        video.add(0, 1, points=[[22, 40]])
        assert len(list(video.propagate())) == 5
        video.remove(1)
        video.add(1, 2, mask=np.eye(90, 120) > 0)
        video.reset()
        assert video.object_ids == []
        assert video.restored == 0
    with (
        SAM2VideoClient(url) as client,
        client.open(FRAMES[:2]) as video,
    ):
        video.add(0, 1, points=[[22, 40]])
        video._frames._read[1] = b"\x89PNG damaged"
        with pytest.raises(VideoError, match="the server cannot read frame 1"):
            list(video.propagate())


def test_cancel_computes_at_most_one_more_frame(url, video_server):
    def computed():
        with contextlib.closing(Transport(parse_url(video_server.http_url))) as transport:
            return int(transport.statistics("sam2_memory_encoder")["inference_count"])

    with SAM2VideoClient(url) as client, client.open(FRAMES) as video:
        video.add(0, 1, points=[[22, 40]])
        before = settled(computed)
        for frame, _ in video.propagate():
            if frame == 5:
                video.cancel()
        assert frame == 5
        assert settled(computed) - before in (6, 7)


def test_the_official_words_work_on_a_real_server(url):
    predictor = SAM2VideoPredictor(SAM2VideoClient(url))
    state = predictor.init_state(FRAMES[:6])
    _, ids, first = predictor.add_new_points_or_box(state, 1, 3, points=[[22, 40]], labels=[1])
    _, ids, both = predictor.add_new_mask(state, 2, 4, np.eye(90, 120) > 0)
    assert (ids, first.shape, both.shape) == ([3, 4], (1, 1, 90, 120), (2, 1, 90, 120))
    assert [frame for frame, _, _ in predictor.propagate_in_video(state)] == [1, 2, 3, 4, 5]
    assert [frame for frame, _, _ in predictor.propagate_in_video(state, reverse=True)] == [1, 0]
    frame, ids, masks = predictor.clear_all_prompts_in_frame(state, 2, 4)
    assert (frame, ids, masks.shape) == (2, [3, 4], (2, 1, 90, 120))
    ids, updated = predictor.remove_object(state, 3)
    assert ids == [4]
    assert [frame for frame, _ in updated] == [1]
    state.video.close()


@pytest.mark.parametrize(
    ("protocol", "frame"),
    [
        pytest.param("http", 31, marks=pytest.mark.nightly),
        ("grpc", 3),
        pytest.param("http", 3, marks=pytest.mark.nightly),
        pytest.param("grpc", 31, marks=pytest.mark.nightly),
    ],
)
def test_killing_the_process_in_the_middle_changes_no_mask(protocol, frame, video_server, undisturbed):
    passed = []
    url = video_server.http_url if protocol == "http" else video_server.grpc_url
    with SAM2VideoClient(url, timeout=120, retries=5) as client, client.open(FRAMES) as video:
        prompt(video)
        for index, segments in video.propagate(start=0):
            passed.append((index, values(segments)))
            if index == frame:
                kill_model(video_server.pid, "sam2_video")
        assert video.restored >= 1
    assert [index for index, _ in passed] == [index for index, _ in undisturbed]
    assert passed == undisturbed
