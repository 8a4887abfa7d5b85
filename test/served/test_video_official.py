"""Video models of two families on a real Triton: masks equal to those of the official models, and the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of the models takes most of a minute
for package in ("torch", "timm", "transformers", "sam2", "onnxruntime"):
    pytest.importorskip(package)

from support.video_export import write_video_models  # noqa: E402
from support.video_graphs import edgetam_micro_graphs  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.client.video.sync import SAM2VideoClient  # noqa: E402
from triton_sam.export.edgetam.video_reference import EdgeTamVideoReference  # noqa: E402
from triton_sam.export.sam2.video_reference import Sam2VideoReference  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402
from triton_sam.scenes.clip import generate_clip  # noqa: E402
from triton_sam.verify import video as verify  # noqa: E402

FRAMES = 8


@pytest.fixture(scope="module")
def clip() -> list[Any]:
    return list(generate_clip(10_000_001, FRAMES).images)


@pytest.fixture(scope="module", params=["sam2", "edgetam"])
def served(
    request: pytest.FixtureRequest, video_models: Any, clip: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """A server with the video model of a family, and the official model with the same weights."""
    if request.param == "sam2":
        server = request.getfixturevalue("video_server")
        yield SimpleNamespace(family="sam2", server=server, official=Sam2VideoReference(video_models.model, clip))
        return
    graphs = edgetam_micro_graphs()
    with LocalServer(write_video_models(tmp_path_factory.mktemp("edgetam_video"), graphs).repository) as server:
        yield SimpleNamespace(family="edgetam", server=server, official=EdgeTamVideoReference(graphs.model, clip))


def test_masks_equal_those_of_the_official_model(served: SimpleNamespace, clip: list[Any]) -> None:
    size = clip[0].shape[1::-1]
    with (
        SAM2VideoClient(served.server.grpc_url, model_type=served.family, timeout=300) as client,
        client.open(clip) as video,
    ):
        runners = {"served": verify.ClientRunner(video)}
        rows = list(verify.verify_video(verify.ReferenceRunner(served.official), runners, size, FRAMES))
    assert [row.case for row in rows] == list(verify.cases(size, FRAMES))
    assert [row for row in rows if not row.passes(verify.threshold(FRAMES))] == []
    assert min(row.visible for row in rows) > 0.5


def test_track_writes_masks(served: SimpleNamespace, clip: list[Any], tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    for number, frame in enumerate(clip):
        Image.fromarray(frame).save(tmp_path / "clip" / f"{number:05}.png")
    options = ["--model", served.family, "--url", served.server.http_url, "--format", "png"]
    command = ["track", str(tmp_path / "clip"), *options, "--point", "0:100,80", "--out", str(tmp_path / "masks"), "-q"]
    assert main(command) == 0
    masks = sorted((tmp_path / "masks").rglob("*.png"))
    assert len(masks) == FRAMES
    assert np.asarray(Image.open(masks[-1])).any()
