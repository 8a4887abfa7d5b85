"""The video model on a real Triton: masks equal to those of the official predictor."""

import json

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of the models takes most of a minute
pytest.importorskip("torch")

from support.session_requests import text  # noqa: E402

from triton_sam.masks.boxes import intersection_over_union  # noqa: E402
from triton_sam.masks.resize import resize_logits  # noqa: E402
from triton_sam.transport import Transport  # noqa: E402
from triton_sam.transport.url import parse_url  # noqa: E402

COUNT = 6
SIZE = (200, 150)
ROWS = ["result", "frame_indexes", "object_ids", "masks", "object_scores", "iou_predictions"]


@pytest.fixture(scope="module")
def video(tmp_path_factory, video_models):
    """Official predictor, the folder of the drawn clip, and its frames."""
    from support.video_graphs import draw_frames, official_predictor

    folder = tmp_path_factory.mktemp("clip")
    files = draw_frames(folder, COUNT, SIZE)
    return official_predictor(video_models.model), folder, [file.read_bytes() for file in files]


@pytest.fixture
def transport(video_server):
    made = Transport(parse_url(video_server.grpc_url))
    yield made
    made.close()


class Session:
    """A session, and the requests of a client."""

    def __init__(self, transport, frames, **arguments):
        self.transport, self.frames, self.step, self.id = transport, frames, 0, None
        self.start = self.ask("start_session", ["result"], **arguments)["result"]
        self.id = self.start["session_id"]

    def ask(self, operation, outputs=ROWS, tensors=None, **arguments):
        inputs = {
            "operation": text(operation.encode()),
            "arguments": text(json.dumps(arguments).encode()),
            **(tensors or {}),
        }
        if self.id is not None:
            inputs["session_id"] = text(self.id.encode())
        answer = self.transport.infer("sam2_video", inputs, outputs)
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
        self.official, folder, frames = video
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
