"""`demo --video` and `evaluate` on videos, with a client that needs no server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("scipy")

from support.commands import call

from triton_sam.commands import _demo_video, _server, _video
from triton_sam.masks.segment import VideoSegment
from triton_sam.scenes import clip as clips


class OracleVideo:
    """Masks that are the truth, moved by some columns. No model without weights could follow the clip."""

    def __init__(self, clip: clips.Clip, shift: int, breaks_at: int | None) -> None:
        self.clip, self.shift, self.breaks_at = clip, shift, breaks_at
        self.ids: list[int] = []
        self.prompts: list[dict[str, Any]] = []

    def add(self, frame: int, object_id: int, **prompt: Any) -> None:
        self.ids.append(object_id)
        self.prompts.append(prompt)

    def propagate(self, start: int = 0, count: int | None = None) -> Iterator[tuple[int, dict[int, VideoSegment]]]:
        for frame in range(len(self.clip.images))[start:][:count]:
            if frame == self.breaks_at:
                raise KeyboardInterrupt
            masks = {number: np.roll(self.clip.labels[frame] == number, self.shift, axis=1) for number in self.ids}
            yield frame, {number: VideoSegment(mask, 0.9, None, object_score=3.0) for number, mask in masks.items()}


class Client:
    def __init__(self) -> None:
        self.shift, self.breaks_at, self.ready, self.http_url = 0, None, True, ""
        self.opened: list[OracleVideo] = []

    def is_ready(self) -> bool:
        return self.ready

    @contextlib.contextmanager
    def open(self, images: Any) -> Iterator[OracleVideo]:
        seed = len(self.opened)
        self.opened.append(OracleVideo(clips.generate_clip(seed), self.shift, self.breaks_at if seed else None))
        yield self.opened[-1]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def client(monkeypatch):
    fake = Client()
    monkeypatch.setattr(_video, "make_client", lambda *_: fake)
    whole = clips.generate_clip
    monkeypatch.setattr(clips, "generate_clip", lambda seed: whole(seed, frames=6, size=96))
    return fake


@pytest.mark.parametrize(("shift", "lowest", "highest"), [(0, 1.0, 1.0), (6, 0.2, 0.9)])
def test_demo_compares_with_the_truth(client, tmp_path, capsys, shift, lowest, highest):
    client.shift = shift
    assert call(f"demo --video --out {tmp_path} --json -q") == 0
    result = json.loads(capsys.readouterr().out)
    values = [j for each in result["objects"] for j in each["j"]]
    assert lowest <= np.mean(values) <= highest
    assert len(result["objects"]) == 3
    assert Path(result["overlay"]).stat().st_size > 1000


def test_demo_without_pyav_writes_a_gif(client, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_demo_video, "has_av", lambda: False)
    assert call(f"demo --video --out {tmp_path} -q") == 0
    assert f"wrote {tmp_path / 'clip_overlay.gif'}" in capsys.readouterr().out
    assert (tmp_path / "clip_overlay.gif").read_bytes().startswith(b"GIF89a")


@pytest.mark.parametrize(("metadata", "says"), [("random seed 3", True), ("sam2.1_hiera_tiny", False)])
@pytest.mark.parametrize("runs", [False, True])
def test_demo_says_that_the_memory_of_its_own_server_is_untrained(
    client, tmp_path, capsys, monkeypatch, metadata, says, runs
):
    client.ready = runs
    monkeypatch.setattr(_server, "local_server", lambda *_: contextlib.nullcontext(client))
    onnx = pytest.importorskip("onnx")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], []))
    onnx.helper.set_model_props(model, {"triton_sam.checkpoint": metadata})
    path = tmp_path / "models/sam2_memory_attention/1/model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", str(tmp_path / "models"))
    assert call(f"demo --video --out {tmp_path}/out") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "untrained" in line]
    assert len(lines) == (says and not runs)
    assert all("triton-sam setup sam2 --video" in line for line in lines)


def test_demo_without_video_models_says_what_to_do(client, tmp_path, capsys):
    client.ready = False
    assert call(f"demo --video --out {tmp_path} --model-repository {tmp_path}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "triton-sam setup sam2 --video" in line


def test_evaluate_on_clips(client, tmp_path, capsys):
    out = tmp_path / "out"
    assert call(f"evaluate videos --count 2 --prompt box --out {out} -q") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["clips", "clip", "clip", "mean"]
    assert rows[-1][-5:] == ["1.000"] * 5
    document = json.loads((out / "videos.json").read_text())
    assert document["settings"]["prompt"] == "box"
    assert list(document["datasets"][0]["videos"]) == ["clip 0", "clip 1"]
    assert all(list(prompt) == ["box"] for video in client.opened for prompt in video.prompts)
