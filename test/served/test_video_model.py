"""The video model on a real Triton and in this process: masks equal to those of the official predictor."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import ClassVar

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of the models takes most of a minute
pytest.importorskip("torch")
pytest.importorskip("sam2")
pytest.importorskip("onnxruntime")

from support.conditions import wait_until  # noqa: E402
from support.exposition import Growth, Scrape  # noqa: E402
from support.session_requests import text  # noqa: E402

from triton_sam.errors import (  # noqa: E402
    InferenceError,
    PromptError,
    ServerBusyError,
    UnknownImageError,
    UnknownSessionError,
    VideoError,
)
from triton_sam.masks.compare import intersection_over_union  # noqa: E402
from triton_sam.masks.resize import resize_logits  # noqa: E402
from triton_sam.transport import Transport  # noqa: E402
from triton_sam.transport.onnx import OnnxTransport  # noqa: E402
from triton_sam.transport.url import parse_url  # noqa: E402
from triton_sam.wire.contract import read_error  # noqa: E402

COUNT = 6
SIZE = (200, 150)
ROWS = ["result", "frame_indexes", "object_ids", "masks", "object_scores", "iou_predictions"]


@pytest.fixture(scope="module")
def video(tmp_path_factory, video_models):
    """Repository, official predictor, its state of the drawn clip, and the frames."""
    from support.video_export import draw_frames, official_predictor

    folder = tmp_path_factory.mktemp("clip")
    files = draw_frames(folder, COUNT, SIZE)
    return (
        video_models.repository,
        official_predictor(video_models.model),
        folder,
        [file.read_bytes() for file in files],
    )


@pytest.fixture(params=["grpc", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("process", "http"))])
def transport(request, video):
    if request.param == "process":
        from support.video_export import FAMILY

        from triton_sam.verify.video_transport import VideoTransport

        files = {
            folder.name: folder / "1" / "model.onnx" for folder in video[0].iterdir() if folder.name != "sam2_video"
        }
        made = VideoTransport(FAMILY, OnnxTransport(files))
    else:
        server = request.getfixturevalue("video_server")
        made = Transport(parse_url(server.http_url if request.param == "http" else server.grpc_url))
    yield made
    close_sessions()
    made.close()


def close_sessions():
    """Close the sessions of a test, because all tests share one server."""
    for session in Session.opened:
        with contextlib.suppress(UnknownSessionError):
            session.ask("close_session", ["result"])
    Session.opened.clear()


class Session:
    """A session, and the requests of a client."""

    opened: ClassVar[list] = []

    def __init__(self, transport, frames, **arguments):
        self.transport, self.frames, self.step, self.id = transport, frames, 0, None
        self.start = self.ask("start_session", ["result"], **arguments)["result"]
        self.id = self.start["session_id"]
        self.opened.append(self)

    def ask(self, operation, outputs=ROWS, tensors=None, **arguments):
        inputs = {
            "operation": text(operation.encode()),
            "arguments": text(json.dumps(arguments).encode()),
            **(tensors or {}),
        }
        if self.id is not None:
            inputs["session_id"] = text(self.id.encode())
        try:
            answer = self.transport.infer("sam2_video", inputs, outputs)
        except InferenceError as error:  # clients read the code in the text
            raise read_error(error) from error
        return {**answer, "result": json.loads(answer["result"][0])}

    def do(self, operation, outputs=ROWS, tensors=None, **arguments):
        answer = self.ask(operation, outputs, tensors, step=self.step + 1, **arguments)
        self.step += 1
        return answer

    def send(self, *indexes):
        files = np.array([self.frames[index] for index in indexes], np.object_)
        return self.ask("add_frames", ["result"], {"frames": files}, frame_indexes=list(indexes))


class Both:
    """Does the same with the official predictor and with a session, and compares."""

    def __init__(self, video, transport):
        _, self.official, folder, frames = video
        self.state = self.official.init_state(str(folder))
        self.ours = Session(transport, frames, num_frames=COUNT)
        self.worst = 1.0

    def points(self, frame, object_id=1, **prompt):
        expected = self.official.add_new_points_or_box(self.state, frame, object_id, **prompt)
        self.ours.send(frame)
        self.same(self.ours.do("add_prompt", frame_index=frame, object_id=object_id, **prompt), expected)

    def mask(self, frame, object_id, mask):
        expected = self.official.add_new_mask(self.state, frame, object_id, mask)
        self.ours.send(frame)
        self.same(self.ours.do("add_prompt", tensors={"mask": mask}, frame_index=frame, object_id=object_id), expected)

    def propagate(self, start=None, reverse=False):
        first = True
        for each in self.official.propagate_in_video(self.state, start, None, reverse):
            self.ours.send(each[0])
            self.same(self.ours.do("propagate", frame_index=each[0], reverse=reverse, first=first), each)
            first = False

    def same(self, answer, expected):
        frame, ids, masks = expected
        assert answer["object_ids"].tolist() == list(ids)
        for logits, official in zip(answer["masks"], masks.numpy(), strict=True):
            full = resize_logits(logits[0], SIZE)
            # Memories are rounded to bfloat16, so that a difference in the last bit of a sum may grow.
            assert np.abs(full - official[0]).max() < 2e-2, frame
            self.worst = min(self.worst, intersection_over_union(full > 0, official[0] > 0))
        assert self.worst >= 0.999


@pytest.fixture
def both(video, transport):
    made = Both(video, transport)
    yield made
    print(f"lowest IoU {made.worst:.6f}")
    made.ours.ask("close_session", ["result"])


def test_one_object(both):
    both.points(0, points=[[50, 60]], labels=[1])
    both.propagate()


def test_three_objects_by_points_box_and_mask(both):
    both.points(0, 1, points=[[50, 60], [100, 10]], labels=[1, 0])
    both.points(0, 2, box=[115, 70, 165, 110])
    mask = np.zeros(SIZE[::-1], bool)
    mask[20:70, 60:130] = True
    both.mask(0, 7, mask)
    both.propagate()


def test_a_correction_in_the_middle_an_object_midway_and_reverse(both):
    both.points(0, points=[[50, 60]], labels=[1])
    both.propagate()
    both.points(3, points=[[80, 60]], labels=[1])
    both.points(3, points=[[20, 20]], labels=[0], clear_old_points=False)
    both.points(4, 2, points=[[120, 90]], labels=[1])
    both.propagate(start=3)
    both.propagate(start=5, reverse=True)


def test_a_lost_session_goes_on(video, transport):
    session = Session(transport, video[3], num_frames=COUNT)
    session.send(0)
    session.do("add_prompt", frame_index=0, object_id=1, points=[[50, 60]])
    session.do("add_prompt", frame_index=0, object_id=2, box=[115, 70, 165, 110])
    masks, snapshots = [], []
    for frame in range(COUNT):
        session.send(frame)
        answer = session.do("propagate", [*ROWS, "snapshot"], frame_index=frame, first=frame == 0)
        masks.append(answer["masks"])
        snapshots.append(answer["snapshot"])
    session.ask("close_session", ["result"])
    with pytest.raises(UnknownSessionError, match="no video session"):
        session.send(0)
    restored = Session(transport, video[3])
    restored.ask("close_session", ["result"])
    restored.id = transport_start(restored, snapshots[2])
    for frame in range(3, COUNT):
        restored.send(frame)
        np.testing.assert_array_equal(restored.do("propagate", frame_index=frame)["masks"], masks[frame])


def transport_start(session, snapshot):
    inputs = {"operation": text(b"start_session"), "snapshot": snapshot}
    return json.loads(session.transport.infer("sam2_video", inputs, ["result"])["result"][0])["session_id"]


def test_errors_have_the_classes_of_the_package(video, transport):
    session = Session(transport, video[3], num_frames=COUNT)
    with pytest.raises(PromptError, match="add a prompt first"):
        session.do("propagate", frame_index=0, first=True)
    with pytest.raises(UnknownImageError, match="frame 0 is not here"):
        session.do("add_prompt", frame_index=0, object_id=1, points=[[5, 5]])
    with pytest.raises(VideoError, match="no frames"):
        Session(transport, [], num_frames=0)
    session.send(0)
    session.do("add_prompt", frame_index=0, object_id=1, points=[[5, 5]])
    session.ask("close_session", ["result"])


def test_one_session_too_many_is_refused_at_once(video, transport):
    seconds = 0.0

    def open_another():
        nonlocal seconds
        began = time.perf_counter()
        try:
            Session(transport, video[3])
        finally:
            seconds = time.perf_counter() - began

    def open_too_many():
        for _ in range(33):
            open_another()

    with pytest.raises(ServerBusyError, match="32 video sessions are open"):
        open_too_many()
    assert seconds < 2  # 2 ms on a quiet machine
    # A start_session that was repeated because its answer was lost may leave a session, until that has been idle.
    assert len(Session.opened) >= 30


def test_the_next_frame_may_be_encoded_while_one_is_tracked(video, video_server):
    def run(transport, at_once):
        session = Session(transport, video[3], num_frames=COUNT)
        session.send(0)
        session.do("add_prompt", frame_index=0, object_id=1, points=[[50, 60]])
        masks = []
        for frame in range(COUNT - 1):
            thread = threading.Thread(target=session.send, args=(frame + 1,))
            thread.start()
            if not at_once:
                thread.join()
            masks.append(session.do("propagate", frame_index=frame, first=frame == 0)["masks"])
            thread.join()
        return np.stack(masks)

    with contextlib.closing(Transport(parse_url(video_server.grpc_url))) as transport:
        assert np.array_equal(run(transport, at_once=True), run(transport, at_once=False))
        close_sessions()


def test_the_metrics_have_the_times_of_operations_and_frames(video, video_server):
    """Triton takes a request for done before the video model begins with it."""
    took = {"frame": 0.0, "operation": 0.0}
    grown = {kind: Growth(video_server.metrics_url, "sam2_video", kind) for kind in took}

    def timed(kind, act):
        began = time.perf_counter()
        act()
        took[kind] += time.perf_counter() - began

    with contextlib.closing(Transport(parse_url(video_server.grpc_url))) as transport:
        session = Session(transport, video[3], num_frames=COUNT)
        timed("frame", lambda: session.send(*range(COUNT)))
        timed("operation", lambda: session.do("add_prompt", frame_index=0, object_id=1, points=[[50, 60]]))
        timed("operation", lambda: session.do("propagate", frame_index=0, first=True))
        close_sessions()
    for kind, count in (("frame", 1), ("operation", 2)):
        wait_until(lambda kind=kind, count=count: grown[kind]("triton_sam_request_seconds_count") == count)
        assert 0 < grown[kind]("triton_sam_request_seconds_sum") < took[kind]  # which the client measured
        assert Scrape(video_server.metrics_url).total("triton_sam_waiting_requests", kind=kind) == 0
