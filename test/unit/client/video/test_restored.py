"""The clients of videos against a server that loses sessions, frames and answers: no mask changes."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.video_server import VideoServer, open_video, unreachable

from triton_sam import SAM2VideoClient
from triton_sam.client.video.flows import MAX_KNOWN, Operation, SessionFlows, VideoModel
from triton_sam.client.video.frames import SessionFrames
from triton_sam.errors import InferenceError, ServerTimeoutError, UnknownSessionError
from triton_sam.families import get_family
from triton_sam.wire import video as wire

FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(40)]


def number(segment):
    """Return all that a segment says, as one value."""
    logits = None if segment.logits is None else segment.logits.tobytes()
    return segment.frame, segment.object_id, segment.object_score, segment.mask.tobytes(), logits


def numbers(passed):
    return [(frame, [number(segment) for segment in segments.values()]) for frame, segments in passed]


def story(video):
    """Do everything that a video can, and return everything that it said.

    A correction is at one of the last frames: the snapshot of a session does not have the masks before them.
    """
    said = [number(video.add(2, 1, points=[[10, 20]], labels=[1]))]
    said += numbers(video.propagate(count=9))
    said.append(number(video.add(9, 1, points=[[11, 20], [30, 40]], labels=[1, 0], clear_old_points=False)))
    said.append(number(video.add(10, 7, box=[1, 2, 30, 40])))
    said += numbers(video.propagate(count=4, logits=False))
    mask = np.zeros((48, 64), bool)
    mask[3:9] = True
    said.append(number(video.add(12, 8, mask=mask)))
    said += numbers(video.propagate(start=12, reverse=True, count=5))
    video.clear(9, 1)
    said += numbers(video.propagate(start=3, count=4))
    video.remove(7)
    said += numbers(video.propagate(start=9, count=20))
    video.reset()
    said.append(number(video.add(30, 3, points=[[1, 1]])))
    said += numbers(video.propagate())
    return said


@pytest.fixture(scope="module")
def undisturbed():
    with VideoServer() as server, open_video(server, FRAMES, snapshot_every=4, ahead=0) as video:
        said = story(video)
        assert video.restored == 0
    return said, server


def test_losing_the_session_at_any_request_changes_no_mask(undisturbed):
    said, calm = undisturbed
    for at in (0, 1, 2, *range(5, len(calm.requests), 7)):
        with VideoServer() as server:
            server.before = lambda number, at=at, server=server: server.lose_sessions() if number == at else None
            with open_video(server, FRAMES, snapshot_every=4, ahead=0) as video:
                assert story(video) == said, at
            assert len(server.tracked) - len(calm.tracked) <= 5


def test_losing_sessions_and_frames_again_and_again_changes_no_mask(video_server, undisturbed, face):
    def lose(number):
        if number % 9 == 8:
            video_server.lose_sessions()
        elif number % 2:
            video_server.lose_frames()

    video_server.before = lose
    with face(video_server, FRAMES, snapshot_every=4, ahead=2) as video:
        assert story(video) == undisturbed[0]
        assert video.restored > 5
    assert video_server.sessions == {}


def test_a_stream_heals_with_the_frames_that_it_kept(video_server, undisturbed):
    """After a loss, frames long gone from the window are needed: prompted ones whose memory is not encoded yet."""

    def run(before):
        with (
            VideoServer(cache=1) as fresh,
            open_video(fresh, (frame for frame in FRAMES), snapshot_every=50, window=2, ahead=1) as video,
        ):
            fresh.before = lambda number: before(fresh, number)
            said = [number(video.add(0, 1, points=[[1, 1]]))]
            said += numbers(video.propagate(count=20))
            said.append(number(video.add(21, 2, points=[[1, 1]])))
            said += numbers(video.propagate(start=20))
            assert video.num_frames is None
        return said

    calm = run(lambda fresh, number: None)
    assert calm[-1][0] == 39
    assert run(lambda fresh, number: fresh.lose_sessions() if number == 45 else None) == calm


def test_an_answer_that_was_lost_is_not_computed_twice(video_server, undisturbed):
    """The client repeats a request; the server knows its step."""

    def lose(number):
        if number % 5 == 4 and number not in lost:
            lost.update((number, number + 1))  # the repetition gets through
            raise unreachable()

    lost = set()
    video_server.after = lose
    with SAM2VideoClient(video_server.url, retries=1).open(FRAMES, snapshot_every=4, ahead=0) as video:
        assert story(video) == undisturbed[0]
    assert len(lost) > 20
    assert video_server.tracked == undisturbed[1].tracked


@pytest.mark.parametrize(
    ("when", "error"),
    [("before", ServerTimeoutError("late")), ("after", unreachable()), ("after", InferenceError("out of memory"))],
)
def test_a_call_that_failed_has_changed_nothing(video_server, face, error, when):
    """Whether the server has done it or not: the call can be repeated."""

    def fail(number):
        if number in failing:
            failing.clear()
            raise error

    failing = set()
    setattr(video_server, when, fail)
    said = []
    with VideoServer() as calm:
        for fresh in (calm, video_server):
            with face(fresh, FRAMES, ahead=0) as video:
                video.add(0, 1, points=[[1, 1]])
                passed = numbers(video.propagate(count=3))
                if fresh is video_server:
                    failing.add(len(video_server.requests))
                    with pytest.raises(type(error)):
                        video.add(2, 1, points=[[5, 5]])
                    failing.add(len(video_server.requests) + 5)  # inside the restoration of the next call
                    with pytest.raises(type(error)):
                        list(video.propagate(start=3, count=2))
                passed += numbers(video.propagate(start=3, count=3))
                said.append(passed)
    assert said[0] == said[1]
    assert video_server.sessions == {}


def test_a_server_that_loses_every_session_is_an_error(video_server):
    video_server.after = lambda number: video_server.lose_sessions()
    video = open_video(video_server, FRAMES)
    words = "lost the session 4 times in a row: .* all requests of a client must go to one of them"
    with pytest.raises(UnknownSessionError, match=words):
        video.add(0, 1, points=[[1, 1]])
    assert len(video_server.requests) < 12


def test_snapshots_come_at_regular_intervals_and_frames_that_may_be_needed_again_stay():
    frames = SessionFrames(SimpleNamespace(frame=lambda _: SimpleNamespace(content=b"")), every=1, recent=2)
    flows = SessionFlows(VideoModel(get_family("sam2")), frames, snapshot_every=4)
    flows._session = "id"

    def do(name, frame, **arguments):
        """Return whether the operation requests a snapshot."""
        flow = flows.run(Operation(name, arguments, frame=frame))
        wants = wire.SNAPSHOT in next(flow).outputs
        with pytest.raises(StopIteration):
            flow.send({wire.SNAPSHOT: np.array([b"state"], np.object_)} if wants else {})
        return wants

    first = [("add_prompt", 9), ("propagate", 9), ("update_memories", 9), ("propagate", 10)]
    assert not any(do(name, frame, first=frame == 9) for name, frame in first)
    assert frames.pinned == {9, 10}
    assert do("update_memories", 10)
    assert frames.pinned == set()
    assert [do("add_prompt", frame) for frame in (20, 21, 22, 23)] == [False, False, False, True]
    assert frames.pinned == {20, 21, 22, 23}  # no pass has encoded their memories yet
    do("propagate", 20, first=True)
    assert frames.pinned == {20}
    flows._remember("id", range(100, 100 + MAX_KNOWN))
    assert list(flows._known) == list(range(100, 100 + MAX_KNOWN))
