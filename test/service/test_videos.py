"""`/v1/videos` with a video client that needs no Triton: uploads, limits, prompts, tracking, downloads."""

import io
import json
import re
import subprocess
import threading
import time
import zipfile

import httpx
import numpy as np
import pytest
from PIL import Image
from support import clip
from support.problems import problem

pytest.importorskip("fastapi")
pytest.importorskip("av")
from support.conditions import wait_until
from support.fake_video_client import service_with_videos

from triton_sam._common.bundle import checkout
from triton_sam.errors import ServerUnreachableError
from triton_sam.masks.rle import mask_to_rle, rle_to_mask

POINT = {"frame": 0, "object_id": 1, "points": [[60, 120]]}


@pytest.fixture(scope="module")
def mp4(tmp_path_factory):
    return clip.write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4").read_bytes()


@pytest.fixture(scope="module")
def running():
    with service_with_videos() as running:
        yield running


@pytest.fixture
def http(running):
    return running[0].http


@pytest.fixture
def client(running):
    client = running[1]
    yield client
    client.seconds, client.gate, client.failure = 0.0, None, None


def upload(http, content, name="clip.mp4"):
    answer = http.post("/v1/videos", files={"video": (name, content)})
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
def video(http, client, mp4):
    """Path of an uploaded video; it is removed afterwards."""
    path = f"/v1/videos/{upload(http, mp4)['id']}"
    yield path
    http.delete(path)


def events_of(lines):
    """Yield (name, data) of each server-sent event."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def track(http, video, **body):
    with http.stream("POST", f"{video}/propagate", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events_of(answer.iter_lines()))


def used(service, budget):
    return service.app.state.engine.budgets.__dict__[budget].used


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
    folder = running[0].app.state.videos.get(info["id"]).folder
    assert folder.exists()
    assert http.delete(path).status_code == 204
    assert not folder.exists()
    assert problem(http.get(path), 404)["code"] == "unknown_video"
    problem(http.delete(path), 404)
    assert (used(running[0], "videos"), used(running[0], "video_bytes")) == (0, 0)


def test_frames_as_images(http, client):
    files = [("frames", (f"{index}.png", clip.png(index))) for index in range(5)]
    info = http.post("/v1/videos", files=files).json()
    assert (info["num_frames"], info["fps"], info["width"]) == (5, 25.0, 320)
    path = f"/v1/videos/{info['id']}"
    shown = np.asarray(Image.open(io.BytesIO(http.get(f"{path}/frames/4").content)), int)
    assert np.abs(shown - np.asarray(clip.image(4), int)).mean() < 4
    assert http.post(f"{path}/prompts", json=POINT).status_code == 200
    assert client.videos[-1].source.frame(2).content == clip.png(2)
    http.delete(path)


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ([("video", ("a.mp4", b""))], 400, "empty"),
        ([("video", ("a.mp4", b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"))], 415, "none of MP4"),
        ([("video", ("a.zip", b"PK\x03\x04" + bytes(100)))], 415, "none of MP4"),
        ([("video", ("a.mp4", b"\0\0\0\x18ftypmp42" + bytes(500)))], 422, "cannot be opened"),
        ([("frames", ("0.png", b"no picture"))], 415, "the image is none of"),
        ([("frames", ("0", clip.png(0))), ("video", ("a.mp4", b"x"))], 422, "either"),
        ([("pictures", ("0", clip.png(0)))], 422, "no field 'pictures'"),
        ([("video", ("a", b"x")), ("video", ("b", b"x"))], 422, "has one"),
    ],
    ids=["empty", "playlist", "zip", "damaged", "no-image", "both", "unknown-field", "two"],
)
def test_bad_uploads(http, running, files, status, words):
    detail = problem(http.post("/v1/videos", files=files), status)["detail"]
    assert words in detail
    assert "triton-sam-videos" not in detail
    assert used(running[0], "videos") == 0


def test_bad_bodies(http):
    problem(http.post("/v1/videos", json={}), 415)
    kind = {"content-type": "multipart/form-data; boundary=b"}
    problem(http.post("/v1/videos", content=b"nothing", headers=kind), 400)
    cut = b'--b\r\nContent-Disposition: form-data; name="video"; filename="a"\r\n\r\nabc'
    assert "ends before" in problem(http.post("/v1/videos", content=cut, headers=kind), 400)["detail"]
    long = b"--b\r\nX: " + b"x" * 10_000 + b"\r\n\r\n"
    problem(http.post("/v1/videos", content=long, headers=kind), 400)


def test_frames_of_two_sizes_are_refused(http):
    other = io.BytesIO()
    Image.new("RGB", (100, 80)).save(other, "PNG")
    files = [("frames", ("0", clip.png(0))), ("frames", ("1", other.getvalue()))]
    assert "frame 1 has 100 x 80 pixels" in problem(http.post("/v1/videos", files=files), 422)["detail"]


def test_limits_of_uploads(mp4):
    with service_with_videos(
        max_video=100_000, max_videos=1, max_video_frames=24, max_megapixels=0.08, video_idle_seconds=0.4
    ) as (service, _):
        http = service.http
        problem(http.post("/v1/videos", files={"video": bytes(200_000)}), 413)
        info = upload(http, mp4)
        refused = http.post("/v1/videos", files={"video": mp4})
        assert (problem(refused, 503)["code"], refused.headers["retry-after"]) == ("busy", "1")
        problem(http.post("/v1/videos", files=[("frames", clip.png(0))]), 503)
        wait_until(lambda: http.get("/metrics").text.count('budget_used{budget="videos"} 0.0'))  # unused for too long
        problem(http.get(f"/v1/videos/{info['id']}"), 404)
        large = io.BytesIO()
        Image.new("RGB", (400, 300)).save(large, "PNG")
        problem(http.post("/v1/videos", files=[("frames", large.getvalue())]), 413)
        files = [("frames", clip.png(0))] * 25
        assert "24 frames" in problem(http.post("/v1/videos", files=files), 413)["detail"]


def test_the_disk_is_a_budget(mp4):
    with service_with_videos(max_video=len(mp4) + 1000, video_bytes=2 * len(mp4)) as (service, _):
        upload(service.http, mp4)
        assert problem(service.http.post("/v1/videos", files={"video": mp4}), 503)["code"] == "busy"
        assert used(service, "video_bytes") == len(mp4)


def test_without_a_video_model(mp4):
    with service_with_videos(tracks_videos=False) as (service, _):
        answer = problem(service.http.post("/v1/videos", files={"video": mp4}), 404)
        assert answer["code"] == "no_video_model"
        assert "triton-sam setup sam2 base_plus --video" in answer["detail"]
        assert [model["tracks_videos"] for model in service.http.get("/v1/models").json()["models"]] == [False]


def test_tokens_hold_for_videos(mp4):
    with service_with_videos(token="open sesame") as (service, _):
        problem(service.http.post("/v1/videos", files={"video": mp4}), 401)
        headers = {"authorization": "Bearer open sesame"}
        assert service.http.post("/v1/videos", files={"video": mp4}, headers=headers).status_code == 201


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_prompts_reach_the_client_and_answer_with_masks(http, client, video):
    answer = http.post(f"{video}/prompts", json={**POINT, "points": [[60, 120], [5, 5]], "labels": [1, 0]}).json()
    (found,) = answer["objects"]
    np.testing.assert_array_equal(rle_to_mask(found["rle"]), clip.disc(0))
    assert (answer["frame"], found["object_id"], found["area"]) == (0, 1, clip.disc(0).sum())
    assert found["bbox"] == [30, 90, 61, 61]
    fake = client.videos[-1]
    assert fake.prompts[1][0] == {
        "points": [[60, 120], [5, 5]],
        "labels": [1, 0],
        "box": None,
        "mask": None,
        "clear_old_points": True,
    }
    http.post(f"{video}/prompts", json={"frame": 2, "object_id": 7, "box": [10, 20, 70, 80], "clear_old_points": False})
    assert fake.prompts[7][2]["box"] == [10, 20, 70, 80]
    assert fake.prompts[7][2]["clear_old_points"] is False
    mask = clip.disc(3)
    as_rle = {"frame": 3, "object_id": 8, "mask_rle": mask_to_rle(mask), "format": "png"}
    masked = http.post(f"{video}/prompts", json=as_rle).json()["objects"][0]
    assert "rle" not in masked
    np.testing.assert_array_equal(fake.prompts[8][3]["mask"], mask)
    assert http.get(video).json()["objects"] == [
        {"object_id": 1, "prompted_frames": [0]},
        {"object_id": 7, "prompted_frames": [2]},
        {"object_id": 8, "prompted_frames": [3]},
    ]
    assert http.delete(f"{video}/objects/7").status_code == 204
    assert http.delete(f"{video}/prompts", params={"frame": 3, "object_id": 8}).status_code == 204
    assert (sorted(fake.prompts), fake.prompts[8]) == ([1, 8], {})
    assert http.get(video).json()["tracked"] == [[0, 0]]
    assert http.post(f"{video}/reset").status_code == 204
    assert (fake.prompts, http.get(video).json()["objects"], http.get(video).json()["tracked"]) == ({}, [], [])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"frame": 24, "object_id": 1, "points": [[1, 1]]}, "the last one is 23"),
        ({"frame": 0, "object_id": 1}, "give points, a box or a mask"),
        ({"frame": 0, "object_id": 1, "points": [[1, 1]], "labels": [1, 0]}, "one label for each point"),
        ({"frame": 0, "object_id": 0, "points": [[1, 1]]}, "object_id"),
        ({"frame": 0, "object_id": 65, "points": [[1, 1]]}, "max_objects"),
        ({"frame": 0, "object_id": 1, "points": [[1, 1]], "mask_rle": {"size": [240, 320], "counts": "0"}}, "alone"),
        ({"frame": 0, "object_id": 1, "mask_rle": {"size": [100000, 100000], "counts": "0"}}, "[240, 320]"),
        ({"frame": 0, "object_id": 1, "mask_rle": {"size": [240, 320], "counts": "!"}}, ""),
        ({"frame": 0, "object_id": 1, "points": [[1, 1]], "format": "geojson"}, "format"),
        ({"frame": 0, "object_id": 1, "points": [[1, 1]], "size": 1}, "size"),
    ],
)
def test_bad_prompts_leave_the_video_alive(http, video, body, words):
    assert words in problem(http.post(f"{video}/prompts", json=body), 422)["detail"]
    assert http.post(f"{video}/prompts", json=POINT).status_code == 200


def test_what_is_not_there_cannot_be_removed(http, video):
    http.post(f"{video}/prompts", json=POINT)
    assert problem(http.delete(f"{video}/objects/9"), 404)["code"] == "unknown_object"
    gone = http.delete(f"{video}/prompts", params={"frame": 5, "object_id": 1})
    assert problem(gone, 404)["code"] == "unknown_prompt"
    problem(http.post(f"/v1/videos/{'0' * 32}/prompts", json=POINT), 404)


# --- tracking --------------------------------------------------------------------------------------------------------


def test_tracking_sends_each_frame_progress_and_the_end(http, running, video):
    problem(http.post(f"{video}/propagate", json={}), 422)
    http.post(f"{video}/prompts", json=POINT)
    problem(http.post(f"{video}/propagate", json={"start": 24}), 422)
    before = running[0].metric("triton_sam_service_tracked_frames_total")
    found = track(http, video)
    frames = [data for name, data in found if name == "frame"]
    assert [data["frame"] for data in frames] == list(range(24))
    for data in frames[::5]:
        np.testing.assert_array_equal(rle_to_mask(data["objects"][0]["rle"]), clip.disc(data["frame"]))
    assert found[-1] == ("done", {"frames": 24, "cancelled": False})
    last = [data for name, data in found if name == "progress"][-1]
    assert (last["done"], last["total"], last["seconds_left"]) == (24, 24, 0)
    assert http.get(video).json()["tracked"] == [[0, 23]]
    assert running[0].metric("triton_sam_service_tracked_frames_total") == before + 24
    back = track(http, video, start=10, count=3, reverse=True, format="polygons")
    assert [data["frame"] for name, data in back if name == "frame"] == [10, 9, 8]
    assert "polygons" in back[0][1]["objects"][0]


def test_every_third_frame(http, client, mp4):
    info = http.post("/v1/videos", files={"video": mp4}, params={"every": 3}).json()
    path = f"/v1/videos/{info['id']}"
    http.post(f"{path}/prompts", json=POINT)
    found = track(http, path, start=6)
    assert [data["frame"] for name, data in found if name == "frame"] == [6, 9, 12, 15, 18, 21]
    assert found[-1] == ("done", {"frames": 6, "cancelled": False})
    assert found[-2][1]["total"] == 6
    http.delete(path)


def test_cancel_stops_after_one_more_frame(http, client, video):
    http.post(f"{video}/prompts", json=POINT)
    client.seconds = 0.1
    with http.stream("POST", f"{video}/propagate", json={}) as answer:
        found = events_of(answer.iter_lines())
        assert next(found)[0] == "frame"
        computed = len(client.videos[-1].computed)
        conflict = http.post(f"{video}/prompts", json=POINT)
        assert problem(conflict, 409)["code"] == "tracking"
        problem(http.post(f"{video}/propagate", json={}), 409)
        assert http.post(f"{video}/cancel").json() == {"cancelled": True}
        assert http.get(video).json()["is_tracking"] is False
        rest = list(found)
    assert rest[-1][0] == "done"
    assert rest[-1][1]["cancelled"] is True
    assert len(client.videos[-1].computed) <= computed + 2  # one may have begun before the cancellation arrived
    assert http.post(f"{video}/cancel").json() == {"cancelled": False}
    assert http.post(f"{video}/prompts", json=POINT).status_code == 200  # correct, and go on
    client.seconds = 0.0
    assert track(http, video, start=20)[-1] == ("done", {"frames": 4, "cancelled": False})


def test_a_client_that_hangs_up_stops_the_tracking(http, running, client, video):
    http.post(f"{video}/prompts", json=POINT)
    client.seconds = 0.05
    with httpx.Client(base_url=http.base_url) as other, other.stream("POST", f"{video}/propagate", json={}) as answer:
        assert next(events_of(answer.iter_lines()))[0] == "frame"
    fake = client.videos[-1]
    computed = len(fake.computed)
    wait_until(lambda: not http.get(video).json()["is_tracking"])
    assert len(fake.computed) <= computed + 2
    assert used(running[0], "tracks") == 0
    at_rest = len(fake.computed)
    time.sleep(0.2)
    assert len(fake.computed) == at_rest


def test_deleting_a_video_stops_it_and_closes_its_session(http, client, mp4):
    path = f"/v1/videos/{upload(http, mp4)['id']}"
    http.post(f"{path}/prompts", json=POINT)
    client.seconds = 0.05
    with http.stream("POST", f"{path}/propagate", json={}) as answer:
        next(events_of(answer.iter_lines()))
        assert http.delete(path).status_code == 204
    assert client.videos[-1].is_closed
    assert len(client.videos[-1].computed) < 24


def test_a_failure_in_the_middle_is_an_event(http, client, video):
    http.post(f"{video}/prompts", json=POINT)
    client.failure = ServerUnreachableError("nothing answers at grpc://localhost:9")
    name, data = track(http, video)[-1]
    assert name == "error"
    assert (data["status"], data["detail"]) == (503, "nothing answers at grpc://localhost:9")
    client.failure = ZeroDivisionError("secret")
    name, data = track(http, video)[-1]
    assert (name, data["status"]) == ("error", 500)
    assert "secret" not in data["detail"]
    client.failure = None
    assert track(http, video)[-1][1]["frames"] == 24


def test_only_some_videos_are_tracked_at_a_time(mp4):
    with service_with_videos(max_tracks=1) as (service, client):
        http, client.seconds = service.http, 0.05
        first, second = (f"/v1/videos/{upload(http, mp4)['id']}" for _ in range(2))
        for path in (first, second):
            http.post(f"{path}/prompts", json=POINT)
        with http.stream("POST", f"{first}/propagate", json={}) as answer:
            next(events_of(answer.iter_lines()))
            assert problem(http.post(f"{second}/propagate", json={}), 503)["code"] == "busy"
            http.post(f"{first}/cancel")
        client.seconds = 0.0
        assert track(http, second)[-1][0] == "done"


def test_masks_have_a_budget(mp4):
    with service_with_videos(video_mask_bytes=8000) as (service, _):
        path = f"/v1/videos/{upload(service.http, mp4)['id']}"
        service.http.post(f"{path}/prompts", json=POINT)
        name, data = track(service.http, path)[-1]
        assert (name, data["status"]) == ("error", 503)
        assert 1 < len(service.app.state.videos.get(path.rsplit("/", 1)[1]).tracking.records) < 24
        service.http.delete(path)
        assert used(service, "video_masks") == 0


def test_the_service_stops_while_it_tracks(mp4):
    with service_with_videos() as (service, client):
        client.seconds = 0.05
        path = f"/v1/videos/{upload(service.http, mp4)['id']}"
        service.http.post(f"{path}/prompts", json=POINT)
        found = []

        def read():
            with httpx.Client(base_url=service.url) as other:
                found.extend(track(other, path))

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: client.videos[-1].computed)
        folder = service.app.state.videos._folder
        service.app.state.videos.refuse()
        reader.join(20)
        assert found[-1][1]["cancelled"] is True
        problem(service.http.post("/v1/videos", files={"video": mp4}), 503)
    assert not folder.exists()
    assert client.videos[-1].is_closed


# --- downloads -------------------------------------------------------------------------------------------------------


def test_downloads(http, video):
    assert problem(http.get(f"{video}/masks"), 409)["code"] == "no_masks"
    http.post(f"{video}/prompts", json=POINT)
    http.post(f"{video}/prompts", json={**POINT, "object_id": 3, "points": [[80, 130]]})
    track(http, video, count=6)
    answer = http.get(f"{video}/masks", params={"format": "png"})
    assert answer.headers["content-disposition"] == 'attachment; filename="clip-masks.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == [f"{frame:05d}.png" for frame in range(6)]
        labels = Image.open(io.BytesIO(archive.read("00002.png")))
        assert labels.mode == "P"
        expected = np.where(clip.disc(2, (80, 130)), 3, clip.disc(2) * 1)
        np.testing.assert_array_equal(np.asarray(labels), expected)
    lines = http.get(f"{video}/masks", params={"format": "rle"}).text.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["frame"], row["object_id"]) for row in rows] == [(f, o) for f in range(6) for o in (1, 3)]
    np.testing.assert_array_equal(rle_to_mask(rows[4]["rle"]), clip.disc(2))
    coco = http.get(f"{video}/masks", params={"format": "coco"}).json()
    assert [len(annotation["segmentations"]) for annotation in coco["annotations"]] == [6, 6]
    overlay = http.get(f"{video}/masks", params={"format": "overlay"})
    assert overlay.headers["content-type"] == "video/mp4"
    assert overlay.content[4:8] == b"ftyp"
    problem(http.get(f"{video}/masks", params={"format": "gif"}), 422)


def test_ids_that_a_label_map_cannot_hold(mp4):
    with service_with_videos() as (service, client):
        client.most_objects = 1000
        path = f"/v1/videos/{upload(service.http, mp4)['id']}"
        service.http.post(f"{path}/prompts", json={**POINT, "object_id": 256})
        assert "1..255" in problem(service.http.get(f"{path}/masks", params={"format": "png"}), 422)["detail"]
        assert service.http.get(f"{path}/masks", params={"format": "rle"}).json()["object_id"] == 256


def test_files_of_downloads_do_not_stay(http, running, video):
    http.post(f"{video}/prompts", json=POINT)
    http.get(f"{video}/masks", params={"format": "rle"})
    folder = running[0].app.state.videos.get(video.rsplit("/", 1)[1]).folder
    wait_until(lambda: [path.name for path in folder.iterdir()] == ["video"])


def test_the_lines_of_the_documentation_work(running, client, mp4, tmp_path):
    text = (checkout() / "docs" / "how-to" / "service.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "v1/videos" in block]
    script = block.replace("localhost:5000", running[0].url).replace("curl -s", "curl -sSf")
    (tmp_path / "clip.mp4").write_bytes(mp4)
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{script}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("event: frame") == 24
    assert (tmp_path / "overlay.mp4").read_bytes()[4:8] == b"ftyp"


def test_the_document_describes_the_upload(http):
    paths = http.get("/openapi.json").json()["paths"]
    body = paths["/v1/videos"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert set(body) == {"video", "frames"}
    assert "text/event-stream" in paths["/v1/videos/{video_id}/propagate"]["post"]["responses"]["200"]["content"]
    assert {"404", "409"} <= set(paths["/v1/videos/{video_id}/masks"]["get"]["responses"])
