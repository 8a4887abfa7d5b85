"""`/v1/videos`: tracking as server-sent events, and downloads."""

import asyncio
import io
import json
import re
import subprocess
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial

import httpx
import numpy as np
import pytest
from PIL import Image
from support import clip
from support.conditions import PATIENCE, wait_until
from support.drawn_server import drawn_service, let_go_on, propagation_of
from support.running_service import POINT, events_of, problem, track, upload, used
from support.tools import near

from triton_sam._common.bundle import checkout
from triton_sam.errors import ServerUnreachableError, VideoError
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service import background
from triton_sam.service.budgets import Budgets
from triton_sam.service.metrics import Metrics
from triton_sam.service.settings import ServiceSettings
from triton_sam.service.videos.downloads import DownloadFile
from triton_sam.service.videos.tracking import Tracking

# --- tracking --------------------------------------------------------------------------------------------------------


def test_tracking_sends_each_frame_progress_and_the_end(http, running, video):
    problem(http.post(f"{video}/propagate", json={}), 422)
    http.post(f"{video}/prompts", json=POINT)
    problem(http.post(f"{video}/propagate", json={"start": 24}), 422)
    before = running.service.metric("triton_sam_service_tracked_frames_total")
    found = track(http, video)
    frames = [data for name, data in found if name == "frame"]
    assert [data["frame"] for data in frames] == list(range(24))
    for data in frames[::5]:
        assert near(rle_to_mask(data["objects"][0]["rle"]), clip.disc(data["frame"]))
    assert found[-1] == ("done", {"frames": 24, "cancelled": False})
    last = [data for name, data in found if name == "progress"][-1]
    assert (last["done"], last["total"], last["seconds_left"]) == (24, 24, 0)
    assert http.get(video).json()["tracked"] == [[0, 23]]
    assert running.service.metric("triton_sam_service_tracked_frames_total") == before + 24
    back = track(http, video, start=10, count=3, reverse=True, format="polygons")
    assert [data["frame"] for name, data in back if name == "frame"] == [10, 9, 8]
    assert "polygons" in back[0][1]["objects"][0]


def test_every_third_frame(http, drawing, mp4):
    info = http.post("/v1/videos", files={"video": mp4}, params={"every": 3}).json()
    path = f"/v1/videos/{info['id']}"
    http.post(f"{path}/prompts", json=POINT)
    found = track(http, path, start=6)
    assert [data["frame"] for name, data in found if name == "frame"] == [6, 9, 12, 15, 18, 21]
    assert found[-1] == ("done", {"frames": 6, "cancelled": False})
    assert found[-2][1]["total"] == 6
    av = pytest.importorskip("av")
    overlay = http.get(f"{path}/masks", params={"format": "overlay"}).content
    with av.open(io.BytesIO(overlay)) as container:
        stream = container.streams.video[0]
        assert (stream.frames, stream.average_rate) == (7, Fraction(clip.RATE, 3))  # with the prompted one
    http.delete(path)


def test_cancel_stops_after_one_more_frame(http, running, drawing, video):
    http.post(f"{video}/prompts", json=POINT)
    drawing.frames.limit = 1
    with http.stream("POST", f"{video}/propagate", json={}) as answer:
        found = events_of(answer.iter_lines())
        assert next(found)[0] == "frame"
        conflict = http.post(f"{video}/prompts", json=POINT)
        assert problem(conflict, 409)["code"] == "tracking"
        problem(http.post(f"{video}/propagate", json={}), 409)
        with let_go_on(drawing, propagation_of(running.service, video)):
            assert http.post(f"{video}/cancel").json() == {"cancelled": True}
        assert http.get(video).json()["is_tracking"] is False
        rest = list(found)
    assert rest[-1][0] == "done"
    assert rest[-1][1]["cancelled"] is True
    assert drawing.tracked() == [0, 1]
    assert http.post(f"{video}/cancel").json() == {"cancelled": False}
    assert http.post(f"{video}/prompts", json=POINT).status_code == 200  # correct, and go on
    assert track(http, video, start=20)[-1] == ("done", {"frames": 4, "cancelled": False})


def test_a_client_that_hangs_up_stops_the_tracking(http, running, drawing, video):
    http.post(f"{video}/prompts", json=POINT)
    drawing.frames.limit = 1
    with (
        httpx.Client(base_url=http.base_url, timeout=120) as other,
        other.stream("POST", f"{video}/propagate", json={}) as answer,
    ):
        assert next(events_of(answer.iter_lines()))[0] == "frame"
    with let_go_on(drawing, propagation_of(running.service, video)):
        wait_until(lambda: not http.get(video).json()["is_tracking"])
    assert drawing.tracked() == [0, 1]
    wait_until(lambda: used(running.service, "tracks") == 0)


def test_a_change_whose_caller_leaves_before_its_turn_is_dropped():
    begun, has_begun, release = [], asyncio.Event(), asyncio.Event()

    async def work(number, *_):
        begun.append(number)
        has_begun.set()
        await release.wait()

    class Client:
        async def open(self, *_, **__):
            pass

    async def run():
        metrics = Metrics()
        tracking = Tracking(None, Client(), Budgets(ServiceSettings(), metrics), metrics)
        changes = [asyncio.create_task(tracking.change(partial(work, number))) for number in range(4)]
        await has_begun.wait()
        for left in changes[:2]:
            left.cancel()
        await asyncio.gather(*changes[:2], return_exceptions=True)
        release.set()
        await asyncio.gather(*changes[2:])
        await background.wait()

    asyncio.run(run())
    assert begun == [0, 2, 3]


def test_deleting_a_video_stops_it_and_closes_its_session(http, running, drawing, mp4):
    path = f"/v1/videos/{upload(http, mp4)['id']}"
    http.post(f"{path}/prompts", json=POINT)
    drawing.frames.limit = 1
    with http.stream("POST", f"{path}/propagate", json={}) as answer:
        found = events_of(answer.iter_lines())
        next(found)
        with let_go_on(drawing, propagation_of(running.service, path)):
            assert http.delete(path).status_code == 204
        name, data = list(found)[-1]  # the reader is still there, and hears why there is no more
        assert (name, data["status"], data["code"]) == ("error", 404, "unknown_video")
    assert not drawing.sessions
    assert drawing.tracked() == [0, 1]


def test_a_session_that_cannot_be_closed_leaves_no_decoder(http, running, drawing, mp4, monkeypatch):
    name = upload(http, mp4)["id"]
    stored = running.service.app.state.videos.get(name)
    http.post(f"/v1/videos/{name}/prompts", json=POINT)
    assert http.get(f"/v1/videos/{name}/frames/0").status_code == 200

    async def fail():
        raise RuntimeError("a bug")

    monkeypatch.setattr(stored.tracking._video, "aclose", fail)
    problem(http.delete(f"/v1/videos/{name}"), 500)
    with pytest.raises(VideoError, match="No such file"):  # it is opened again
        stored.decoders.frame(stored.file, 0, "preview")


def test_a_failure_in_the_middle_is_an_event(http, drawing, video):
    http.post(f"{video}/prompts", json=POINT)
    drawing.frames.failure = ServerUnreachableError("nothing answers at grpc://localhost:9")
    name, data = track(http, video)[-1]
    assert name == "error"
    assert (data["status"], data["detail"]) == (503, "nothing answers at grpc://localhost:9")
    drawing.frames.failure = ZeroDivisionError("secret")
    name, data = track(http, video)[-1]
    assert (name, data["status"]) == ("error", 500)
    assert "secret" not in data["detail"]
    drawing.frames.failure = None
    assert track(http, video)[-1][1]["frames"] == 24


def test_only_some_videos_are_tracked_at_a_time(mp4):
    with drawn_service(max_tracks=1) as drawn:
        http, drawn.server.frames.limit = drawn.service.http, 1
        first, second = (f"/v1/videos/{upload(http, mp4)['id']}" for _ in range(2))
        for path in (first, second):
            http.post(f"{path}/prompts", json=POINT)
        with http.stream("POST", f"{first}/propagate", json={}) as answer:
            next(events_of(answer.iter_lines()))
            assert problem(http.post(f"{second}/propagate", json={}), 503)["code"] == "busy"
            with let_go_on(drawn.server, propagation_of(drawn.service, first)):
                http.post(f"{first}/cancel")
        assert track(http, second)[-1][0] == "done"


def test_masks_have_a_budget(mp4):
    with drawn_service(video_mask_bytes=8000) as drawn:
        path = f"/v1/videos/{upload(drawn.service.http, mp4)['id']}"
        drawn.service.http.post(f"{path}/prompts", json=POINT)
        name, data = track(drawn.service.http, path)[-1]
        assert (name, data["status"]) == ("error", 503)
        assert 1 < len(drawn.service.app.state.videos.get(path.rsplit("/", 1)[1]).tracking.records.all()) < 24
        drawn.service.http.delete(path)
        assert used(drawn.service, "video_masks") == 0


def test_the_service_stops_while_it_tracks(mp4):
    with drawn_service() as drawn:
        drawn.server.frames.limit = 1
        path = f"/v1/videos/{upload(drawn.service.http, mp4)['id']}"
        drawn.service.http.post(f"{path}/prompts", json=POINT)
        found = []

        def read():
            with httpx.Client(base_url=drawn.service.url, timeout=120) as other:
                found.extend(track(other, path))

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(drawn.server.tracked)
        folder = drawn.service.app.state.videos._folder.path
        drawn.service.app.state.videos.refuse()
        drawn.server.frames.limit = None
        reader.join()
        assert found[-1][1]["cancelled"] is True
        problem(drawn.service.http.post("/v1/videos", files={"video": mp4}), 503)
    assert not folder.exists()
    assert not drawn.server.sessions


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
        assert np.mean(np.asarray(labels) == expected) > 0.98
    lines = http.get(f"{video}/masks", params={"format": "rle"}).text.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["frame"], row["object_id"]) for row in rows] == [(f, o) for f in range(6) for o in (1, 3)]
    assert near(rle_to_mask(rows[4]["rle"]), clip.disc(2))
    coco = http.get(f"{video}/masks", params={"format": "coco"}).json()
    assert [len(annotation["segmentations"]) for annotation in coco["annotations"]] == [6, 6]
    overlay = http.get(f"{video}/masks", params={"format": "overlay"})
    assert overlay.headers["content-type"] == "video/mp4"
    assert overlay.content[4:8] == b"ftyp"
    problem(http.get(f"{video}/masks", params={"format": "gif"}), 422)


@pytest.mark.parametrize(
    ("sent", "masks", "images"),
    [
        (["00005.png", "up/00010.png", "c\\00015.png"], ["00005.png", "00010.png", "00015.png"], None),
        (["a.png"] * 3, ["00000.png", "00001.png", "00002.png"], [f"a/0000{frame}.jpg" for frame in range(3)]),
        (["a.png", "a.jpg", "b.png"], ["00000.png", "00001.png", "00002.png"], ["a.png", "a.jpg", "b.png"]),
    ],
)
def test_downloads_have_the_names_of_uploaded_frames(http, drawing, sent, masks, images):
    uploaded = [("frames", (name, clip.png(index))) for index, name in enumerate(sent)]
    path = f"/v1/videos/{http.post('/v1/videos', files=uploaded).json()['id']}"
    http.post(f"{path}/prompts", json=POINT)
    track(http, path)
    with zipfile.ZipFile(io.BytesIO(http.get(f"{path}/masks", params={"format": "png"}).content)) as archive:
        assert archive.namelist() == masks
    (found,) = http.get(f"{path}/masks", params={"format": "coco"}).json()["videos"]
    assert found["file_names"] == (images or masks)
    http.delete(path)


def test_ids_that_a_label_map_cannot_hold(http, video):
    http.post(f"{video}/prompts", json={**POINT, "object_id": 256})
    assert "1..255" in problem(http.get(f"{video}/masks", params={"format": "png"}), 422)["detail"]
    assert http.get(f"{video}/masks", params={"format": "rle"}).json()["object_id"] == 256


def test_files_of_downloads_do_not_stay(http, running, video):
    http.post(f"{video}/prompts", json=POINT)
    folder = running.service.app.state.videos.get(video.rsplit("/", 1)[1]).room.folder
    for span, status in ((None, 200), ("bytes=0-3", 206), ("bytes=9999999-", 416), ("nonsense", 400)):
        headers = {} if span is None else {"Range": span}
        assert http.get(f"{video}/masks", params={"format": "rle"}, headers=headers).status_code == status
        wait_until(lambda: [path.name for path in folder.iterdir()] == ["video"])
    wait_until(lambda: used(running.service, "video_bytes") == (folder / "video").stat().st_size)


def test_downloads_count_as_bytes_of_videos(mp4):
    with drawn_service(max_video=len(mp4) + 1000, video_bytes=len(mp4) + 1000) as drawn:
        path = f"/v1/videos/{upload(drawn.service.http, mp4)['id']}"
        drawn.service.http.post(f"{path}/prompts", json=POINT)
        assert drawn.service.http.get(f"{path}/masks", params={"format": "rle"}).status_code == 200
        track(drawn.service.http, path)
        answer = drawn.service.http.get(f"{path}/masks", params={"format": "overlay"})
        assert "bytes of videos" in problem(answer, 503)["detail"]
        folder = drawn.service.app.state.videos.get(path.rsplit("/", 1)[1]).room.folder
        assert [each.name for each in folder.iterdir()] == ["video"]


def test_clicks_do_not_wait_for_files_and_a_video_stays_while_its_file_is_written(http, running, video, monkeypatch):
    """A file with all frames of a long video takes minutes."""
    http.post(f"{video}/prompts", json=POINT)
    stored = running.service.app.state.videos.get(video.rsplit("/", 1)[1])
    free, writing, write = threading.Event(), [], DownloadFile._write

    def held(file, frames):
        writing.append(file)
        free.wait(PATIENCE)
        write(file, frames)

    monkeypatch.setattr(DownloadFile, "_write", held)
    with ThreadPoolExecutor() as pool:
        files = [pool.submit(http.get, f"{video}/masks", params={"format": "rle"}) for _ in range(3)]
        try:
            wait_until(lambda: len(writing) == 2)
            stored.used = long_ago = -1e9
            wait_until(lambda: stored.used != long_ago or stored.tracking._is_closed)
            answer = pool.submit(http.post, f"{video}/prompts", json={**POINT, "object_id": 2})
            assert answer.result(PATIENCE / 2).status_code == 200
        finally:
            free.set()
        assert [file.result().status_code for file in files] == [200] * 3


def test_the_lines_of_the_documentation_work(running, drawing, mp4, tmp_path):
    text = (checkout() / "docs/reference/rest.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "v1/videos" in block]
    script = block.replace("localhost:5000", running.service.url).replace("curl -s", "curl -sSf")
    script = script.replace("[[210, 350]]", str([list(clip.START)]))
    (tmp_path / "clip.mp4").write_bytes(mp4)
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{script}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("event: frame") == 24
    assert (tmp_path / "overlay.mp4").read_bytes()[4:8] == b"ftyp"
