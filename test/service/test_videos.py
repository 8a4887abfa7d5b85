"""`/v1/videos`: uploads, limits, prompts, and what a killed service left behind."""

import base64
import io
import subprocess
import sys
import tempfile
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from support import clip
from support.conditions import wait_until
from support.contents import encoded
from support.drawn_server import drawn_service
from support.running_service import POINT, problem, track, upload, used
from support.tools import near

from triton_sam.masks.rle import mask_to_rle, rle_to_mask
from triton_sam.service.problems import Problem
from triton_sam.service.videos.files import Decoders, VideoFile
from triton_sam.service.videos.uploads import PREFIX, Folder

# --- uploads ---------------------------------------------------------------------------------------------------------


def test_a_video_is_described_shown_and_forgotten(http, running, mp4):
    answer = http.post("/v1/videos", files={"video": ("C:\\my clip.mp4", mp4)})
    info = answer.json()
    assert answer.headers["location"] == f"/v1/videos/{info['id']}"
    described = {name: info[name] for name in ("width", "height", "num_frames", "fps", "duration", "bytes", "model")}
    assert described == {
        "width": 320,
        "height": 240,
        "num_frames": 24,
        "fps": 12.0,
        "duration": 2.0,
        "bytes": len(mp4),
        "model": "sam2",
    }
    path = f"/v1/videos/{info['id']}"
    assert http.get(path).json() == info
    for frame in (20, 0, 23):
        shown = http.get(f"{path}/frames/{frame}")
        assert shown.headers["content-type"] == "image/jpeg"
        pixels = np.asarray(Image.open(io.BytesIO(shown.content)), int)
        assert np.abs(pixels - np.asarray(clip.image(frame), int)).mean() < 12
    small = Image.open(io.BytesIO(http.get(f"{path}/frames/3", params={"width": 96}).content))
    assert small.size == (96, 72)
    problem(http.get(f"{path}/frames/24"), 404)
    folder = running.service.app.state.videos.get(info["id"]).room.folder
    assert folder.exists()
    assert http.delete(path).status_code == 204
    assert not folder.exists()
    assert problem(http.get(path), 404)["code"] == "unknown_video"
    problem(http.delete(path), 404)
    assert (used(running.service, "videos"), used(running.service, "video_bytes")) == (0, 0)


def test_frames_as_images(http):
    files = [("frames", (f"{index}.png", clip.png(index))) for index in range(5)]
    info = http.post("/v1/videos", files=files).json()
    assert (info["num_frames"], info["fps"], info["width"]) == (5, 25.0, 320)
    path = f"/v1/videos/{info['id']}"
    shown = np.asarray(Image.open(io.BytesIO(http.get(f"{path}/frames/4").content)), int)
    assert np.abs(shown - np.asarray(clip.image(4), int)).mean() < 4
    assert http.post(f"{path}/prompts", json=POINT).status_code == 200
    assert [data["frame"] for name, data in track(http, path) if name == "frame"] == list(range(5))
    http.delete(path)


BAD_UPLOADS = (
    ([("video", ("a.mp4", b""))], 400, "empty"),
    ([("video", ("a.mp4", b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"))], 415, "unsupported or damaged video"),
    ([("video", ("a.zip", b"PK\x03\x04" + bytes(100)))], 415, "unsupported or damaged video"),
    ([("video", ("a.mp4", b"\0\0\0\x18ftypmp42" + bytes(500)))], 422, "cannot be opened"),
    ([("frames", ("0.png", b"no picture"))], 415, "unsupported or damaged image; supported: JPEG, PNG"),
    ([("frames", ("0", clip.png(0))), ("video", ("a.mp4", b"x"))], 422, "either"),
    ([("pictures", ("0", clip.png(0)))], 422, "no field 'pictures'"),
    ([("video", ("a", b"x")), ("video", ("b", b"x"))], 422, "has one"),
)


def test_bad_uploads(http, running):
    for files, status, words in BAD_UPLOADS:
        detail = problem(http.post("/v1/videos", files=files), status)["detail"]
        assert words in detail
        assert "triton-sam-videos" not in detail
        assert used(running.service, "videos") == 0


def test_bad_bodies(http):
    problem(http.post("/v1/videos", json={}), 415)
    kind = {"content-type": "multipart/form-data; boundary=b"}
    problem(http.post("/v1/videos", content=b"nothing", headers=kind), 400)
    cut = b'--b\r\nContent-Disposition: form-data; name="video"; filename="a"\r\n\r\nabc'
    assert "ends before" in problem(http.post("/v1/videos", content=cut, headers=kind), 400)["detail"]
    for headers in (b"X: " + b"x" * 10_000 + b"\r\n", b"".join(b"X%d: \r\n" % number for number in range(100))):
        answer = http.post("/v1/videos", content=b"--b\r\n" + headers + b"\r\n", headers=kind)
        assert "not well-formed" in problem(answer, 400)["detail"]


def test_frames_of_two_sizes_are_refused(http):
    other = encoded(Image.new("RGB", (100, 80)))
    files = [("frames", ("0", clip.png(0))), ("frames", ("1", other))]
    assert "frame 1 has 100 x 80 pixels" in problem(http.post("/v1/videos", files=files), 422)["detail"]


def test_limits_of_uploads(mp4, tmp_path, monkeypatch):
    monkeypatch.setattr("triton_sam.service.videos.sessions.MOST_SECONDS", 0.02)
    with drawn_service(max_video=100_000, max_videos=1, max_video_frames=24, max_megapixels=0.08) as drawn:
        http = drawn.service.http
        problem(http.post("/v1/videos", files={"video": bytes(200_000)}), 413)
        info = upload(http, mp4)
        refused = http.post("/v1/videos", files={"video": mp4})
        assert (problem(refused, 503)["code"], refused.headers["retry-after"]) == ("busy", "1")
        problem(http.post("/v1/videos", files=[("frames", clip.png(0))]), 503)
        drawn.service.app.state.videos.sessions._idle = 0.1  # not before all are refused
        wait_until(lambda: http.get("/metrics").text.count('budget_used{budget="videos"} 0.0'))  # unused for too long
        problem(http.get(f"/v1/videos/{info['id']}"), 404)
        long = clip.write_clip(tmp_path / "long.mp4", 30).read_bytes()
        assert "24 frames" in problem(http.post("/v1/videos", files={"video": long}), 413)["detail"]
        large = encoded(Image.new("RGB", (400, 300)))
        problem(http.post("/v1/videos", files=[("frames", large)]), 413)
        files = [("frames", clip.png(0))] * 25
        assert "24 frames" in problem(http.post("/v1/videos", files=files), 413)["detail"]


def test_the_disk_is_a_budget(mp4):
    with drawn_service(max_video=len(mp4) + 1000, video_bytes=2 * len(mp4)) as drawn:
        upload(drawn.service.http, mp4)
        assert problem(drawn.service.http.post("/v1/videos", files={"video": mp4}), 503)["code"] == "busy"
        assert used(drawn.service, "video_bytes") == len(mp4)


def test_without_a_video_model(mp4):
    with drawn_service(videos=False) as drawn:
        answer = problem(drawn.service.http.post("/v1/videos", files={"video": mp4}), 404)
        assert answer["code"] == "no_video_model"
        assert "triton-sam setup sam2 --video" in answer["detail"]
        assert [model["tracks_videos"] for model in drawn.service.http.get("/v1/models").json()["models"]] == [False]


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_prompts_reach_triton_and_answer_with_masks(http, drawing, video):
    answer = http.post(f"{video}/prompts", json={**POINT, "points": [[60, 120], [5, 5]], "labels": [1, 0]}).json()
    (found,) = answer["objects"]
    assert near(rle_to_mask(found["rle"]), clip.disc(0))
    assert (answer["frame"], found["object_id"]) == (0, 1)
    np.testing.assert_allclose(found["bbox"], [30, 90, 61, 61], atol=2)
    (memory,) = (session.tracker.objects[1] for session in drawing.sessions)
    assert memory.points[0].labels.tolist() == [1, 0]
    http.post(f"{video}/prompts", json={"frame": 2, "object_id": 7, "box": [10, 20, 70, 80]})
    http.post(f"{video}/prompts", json={**POINT, "points": [[9, 9]], "clear_old_points": False})
    http.post(f"{video}/prompts", json={"frame": 2, "object_id": 7, "points": [[30, 30]]})
    assert drawing.prompts() == {1: {0: [[60, 120], [5, 5], [9, 9]]}, 7: {2: [[30, 30]]}}
    mask = clip.disc(3)
    as_rle = {"frame": 3, "object_id": 8, "mask_rle": mask_to_rle(mask), "format": "png"}
    masked = http.post(f"{video}/prompts", json=as_rle).json()["objects"][0]
    assert "rle" not in masked
    with Image.open(io.BytesIO(base64.b64decode(masked["png"]))) as png:
        assert near(np.asarray(png) > 0, mask)
    assert http.get(video).json()["objects"] == [
        {"object_id": 1, "prompted_frames": [0]},
        {"object_id": 7, "prompted_frames": [2]},
        {"object_id": 8, "prompted_frames": [3]},
    ]
    assert http.delete(f"{video}/objects/7").status_code == 204
    assert http.delete(f"{video}/prompts", params={"frame": 3, "object_id": 8}).status_code == 204
    assert sorted(drawing.prompts()) == [1, 8]
    assert not drawing.sessions[0].tracker.objects[8].masked
    assert http.get(video).json()["tracked"] == [[0, 0]]
    assert http.post(f"{video}/reset").status_code == 204
    assert (drawing.prompts(), http.get(video).json()["objects"], http.get(video).json()["tracked"]) == ({}, [], [])


BAD_PROMPTS = (
    ({"frame": 24, "object_id": 1, "points": [[1, 1]]}, "the last one is 23"),
    ({"frame": 0, "object_id": 1}, "give points, a box or a mask"),
    ({"frame": 0, "object_id": 1, "points": [[1, 1]], "labels": [1, 0]}, "one label for each point"),
    ({"frame": 0, "object_id": 0, "points": [[1, 1]]}, "object_id"),
    ({"frame": 0, "object_id": 1, "points": [[1, 1]], "mask_rle": {"size": [240, 320], "counts": "0"}}, "alone"),
    ({"frame": 0, "object_id": 1, "mask_rle": {"size": [100000, 100000], "counts": "0"}}, "[240, 320]"),
    ({"frame": 0, "object_id": 1, "mask_rle": {"size": [240, 320], "counts": "!"}}, ""),
    ({"frame": 0, "object_id": 1, "points": [[1, 1]], "format": "geojson"}, "format"),
    ({"frame": 0, "object_id": 1, "points": [[1, 1]], "size": 1}, "size"),
)


def test_bad_prompts_leave_the_video_alive(http, video):
    for body, words in BAD_PROMPTS:
        assert words in problem(http.post(f"{video}/prompts", json=body), 422)["detail"]
        assert http.post(f"{video}/prompts", json=POINT).status_code == 200


def test_what_is_not_there_cannot_be_removed(http, video):
    http.post(f"{video}/prompts", json=POINT)
    assert problem(http.delete(f"{video}/objects/9"), 404)["code"] == "unknown_object"
    gone = http.delete(f"{video}/prompts", params={"frame": 5, "object_id": 1})
    assert problem(gone, 404)["code"] == "unknown_prompt"
    problem(http.post(f"/v1/videos/{'0' * 32}/prompts", json=POINT), 404)


def test_a_request_that_is_late_does_not_open_a_removed_video_again(tmp_path):
    path = clip.write_clip(tmp_path / "clip.mp4", 3)
    video, decoders = VideoFile((path,), True, (320, 240), 3, Fraction(12)), Decoders()
    assert decoders.frame(video, 0, "preview").size == (320, 240)
    decoders.forget(video)
    with pytest.raises(Problem, match="removed"):
        decoders.frame(video, 1, "preview")
    assert not decoders._open


# --- what a killed service left behind -------------------------------------------------------------------------------

A_SERVICE = """
import sys
from triton_sam.service.videos.uploads import Folder
(Folder().new() / "video.mp4").write_bytes(b"frames")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_start_removes_the_videos_of_a_killed_service_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    other = Folder()
    (tmp_path / f"{PREFIX}file").write_text("no folder")
    (tmp_path / "else").mkdir()
    with subprocess.Popen([sys.executable, "-c", A_SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        videos = list(tmp_path.glob(f"{PREFIX}*/*/video.mp4"))
        assert len(videos) == 1
        Folder().remove()
        assert videos[0].exists()  # that service lives
        process.kill()
    mine = Folder()
    assert not videos[0].exists()
    assert {path.name for path in tmp_path.iterdir()} == {other.path.name, mine.path.name, f"{PREFIX}file", "else"}
    mine.remove()
    other.remove()
    assert not mine.path.exists()
    assert not other.path.exists()
