"""Videos of other tools on a real Triton, at the same time: the masks are those of the video client."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import clip
from support.running_service import running_service
from support.tools import base64_of, filled, filled_each, near, without_holes, without_specks

from triton_sam import SAM2VideoClient
from triton_sam.families import get_family
from triton_sam.masks import mask_to_box
from triton_sam.service.engine import Pair

pytestmark = [pytest.mark.slow, pytest.mark.export, pytest.mark.timeout(600)]

FRAMES = 4
SHAPE = (clip.HEIGHT, clip.WIDTH)


def pairs(_):
    """The fixture's repository has the video model alone, without the models of images."""
    return {"sam2": Pair("sam2", get_family("sam2"), "1", keeps_images=True, tracks_videos=True)}


@dataclass(frozen=True)
class User:
    """Somebody who follows an object through the clip: by a click in a frame, or in CVAT by a box in the first one."""

    tool: str
    point: tuple[int, int]
    frame: int = 0

    @property
    def prompt(self) -> dict[str, Any]:
        x, y = self.point
        return {"box": [x - 30, y - 30, x + 30, y + 30]} if self.tool == "cvat" else {"points": [self.point]}


X, Y = clip.START
USERS = (
    *(User("qupath", (X, Y), 2), User("qupath", (X + 90, Y - 40))),
    *(User("x-anylabeling", (X, Y), 2), User("x-anylabeling", (X + 60, Y + 50))),
    *(User("cvat", (X, Y)), User("cvat", (X + 120, Y + 10))),
)


def test_six_users_of_three_tools_get_the_masks_of_the_video_client(video_server, tmp_path):
    clip.write_frames(tmp_path, FRAMES)
    expected = []
    with SAM2VideoClient(video_server.grpc_url) as client:
        for user in USERS:
            with client.open(tmp_path) as video:
                video.add(user.frame, 1, **user.prompt)
                expected.append([masks[1].mask for _, masks in video.propagate(start=0)])
    tools = {"qupath": by_qupath, "x-anylabeling": by_x_anylabeling, "cvat": by_cvat}
    options = {"adapters": tuple(tools), "max_videos": len(USERS)}
    with (
        running_service(video_server.grpc_url, {"_pairs": pairs}, **options) as service,
        ThreadPoolExecutor(len(USERS)) as threads,
    ):
        found = [threads.submit(tools[user.tool], service.http, user) for user in USERS]
        answers = [each.result() for each in found]
    assert any(mask.any() for masks in expected for mask in masks)
    for user, masks, answer in zip(USERS, expected, answers, strict=True):
        for mask, shown in zip(masks, answer, strict=True):
            if user.tool == "cvat":
                assert shown == mask_to_box(mask)
            elif user.tool == "qupath":
                assert near(shown, without_specks(mask))
            else:
                assert near(shown, without_holes(without_specks(mask, 0.2)), 2)


IMAGES = [base64_of(clip.png(index)) for index in range(FRAMES)]


def by_qupath(http, user):
    """Return the masks of all frames."""
    objects = {str(user.frame): [{"obj_id": 0, "point_coords": [user.point], "point_labels": [1]}]}
    body = {"type": "sam2_t", "b64imgs": IMAGES, "objs": objects, "start_frame_idx": 0}
    found = {each["geometry"]["plane"]["t"]: each["geometry"] for each in posted(http, "/sam/video/", body)}
    empty = {"type": "MultiPolygon", "coordinates": []}
    return [drawn(found.get(frame, empty)) for frame in range(FRAMES)]


def by_x_anylabeling(http, user):
    """Return the masks of all frames."""
    root, model = "/x-anylabeling/v1/video", {"model": "sam2-video"}
    session = posted(http, f"{root}/init", {**model, "frames": IMAGES})["data"]["session_id"]
    share = [user.point[0] / clip.WIDTH, user.point[1] / clip.HEIGHT]
    fine = {"params": {"epsilon_factor": 0}}
    prompt = {**model, **fine, "session_id": session, "frame_index": user.frame, "points": [share], "obj_id": 10000}
    posted(http, f"{root}/prompt", {**prompt, "point_labels": [1]})
    way = {**model, "session_id": session, "start_frame": 0}
    with http.stream("POST", f"{root}/propagate/stream", json=way) as stream:
        *_, last = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    told = json.loads(last)
    assert told["type"] == "completed"
    rings = [[each["points"] for each in told["results"][str(frame)]["masks"]] for frame in range(FRAMES)]
    return [filled_each(each, SHAPE) if each else np.zeros(SHAPE, bool) for each in rings]


def by_cvat(http, user):
    """Return the boxes of all frames; None where the object is not seen."""
    headers = {"x-nuclio-function-name": "triton-sam-sam2-tracker"}
    shapes, states, boxes = [user.prompt["box"]], [], []
    for image in IMAGES:
        body = {"image": image, "shapes": shapes, "states": states}
        answer = posted(http, "/api/function_invocations", body, headers)
        (box,), states = answer["shapes"], answer["states"]
        shapes = [None]
        boxes.append(None if box is None else tuple(box))
    return boxes


def posted(http, path, body, headers=None):
    answer = http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def drawn(geometry):
    parts = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    return np.logical_or.reduce([np.zeros(SHAPE, bool), *(filled(part, SHAPE) for part in parts)])
