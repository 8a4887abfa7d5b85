"""Videos of other tools on a real Triton: the masks are those of the video client."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fastapi")
from support import clip
from support.running_service import running_service
from support.tools import base64_of, filled, near

from triton_sam import SAM2VideoClient
from triton_sam.families import get_family
from triton_sam.service.engine import Engine, Pair

pytestmark = [pytest.mark.slow, pytest.mark.export, pytest.mark.timeout(600)]

FRAMES = 4


def pairs(_):
    """The fixture's repository has the video model alone, without the models of images."""
    return {"sam2": Pair("sam2", get_family("sam2"), "1", keeps_images=True, tracks_videos=True)}


def test_qupath_and_x_anylabeling_get_the_masks_of_the_video_client(video_server, tmp_path, monkeypatch):
    monkeypatch.setattr(Engine, "_pairs", pairs)
    for index in range(FRAMES):
        (tmp_path / f"{index}.png").write_bytes(clip.png(index))
    point = list(clip.START)
    with SAM2VideoClient(video_server.grpc_url) as client, client.open(tmp_path) as video:
        video.add(2, 1, points=[point], labels=[1])  # tracked from frame 0, which is before the prompt
        expected = {frame: masks[1].mask for frame, masks in video.propagate(start=0)}
    images = [base64_of(clip.png(index)) for index in range(FRAMES)]
    with running_service(video_server.grpc_url, adapters=("qupath", "x-anylabeling")) as service:
        objects = {"2": [{"obj_id": 0, "point_coords": [point], "point_labels": [1]}]}
        body = {"type": "sam2_t", "b64imgs": images, "objs": objects, "start_frame_idx": 0}
        answer = service.http.post("/sam/video/", json=body)
        assert answer.status_code == 200, answer.text
        found = {each["geometry"]["plane"]["t"]: each["geometry"] for each in answer.json()}
        root, model = "/x-anylabeling/v1/video", {"model": "sam2-video"}
        models = service.http.get("/x-anylabeling/v1/models").json()["data"]
        model = {"model": next(name for name in models if name.endswith("-video"))}
        session = service.http.post(f"{root}/init", json={**model, "frames": images}).json()["data"]["session_id"]
        share = [point[0] / clip.WIDTH, point[1] / clip.HEIGHT]
        prompt = {**model, "session_id": session, "frame_index": 2, "points": [share], "point_labels": [1]}
        assert service.http.post(f"{root}/prompt", json={**prompt, "obj_id": 10000}).status_code == 200
        with service.http.stream(
            "POST", f"{root}/propagate/stream", json={**model, "session_id": session, "start_frame": 0}
        ) as stream:
            last = [line for line in stream.iter_lines() if line][-1]
    assert '"type":"completed"' in last
    assert set(expected) == set(range(FRAMES))
    for frame, mask in expected.items():
        assert (frame in found) == bool(mask.any())
        if frame in found:
            assert near(drawn(found[frame]), mask)
    assert all(f'"{frame}":' in last for frame in expected)


def drawn(geometry):
    parts = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    return np.logical_or.reduce([filled(part, (clip.HEIGHT, clip.WIDTH)) for part in parts])
