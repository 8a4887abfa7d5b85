"""Video models of EdgeTAM and SAM3 on a real Triton: masks of transformers' models, and `triton-sam track`."""

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of the models takes most of a minute
pytest.importorskip("torch")

from support.video_graphs import (  # noqa: E402
    edgetam_micro_graphs,
    sam3_reduced_graphs,
    write_video_models,
)

from triton_sam.cli import main  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402
from triton_sam.scenes.clip import generate_clip  # noqa: E402

FRAMES = 8


@pytest.fixture(scope="module", params=[edgetam_micro_graphs, sam3_reduced_graphs], ids=["edgetam", "sam3"])
def graphs(request):
    return request.param()


@pytest.fixture(scope="module")
def server(graphs, tmp_path_factory):
    repository = tmp_path_factory.mktemp("videos")
    write_video_models(repository, graphs)
    with LocalServer(repository) as running:
        yield running


@pytest.fixture(scope="module")
def clip():
    return list(generate_clip(10_000_001, FRAMES).images)


def test_track_writes_masks(graphs, server, clip, tmp_path):
    (tmp_path / "clip").mkdir()
    for number, frame in enumerate(clip):
        Image.fromarray(frame).save(tmp_path / "clip" / f"{number:05}.png")
    arguments = ["track", str(tmp_path / "clip"), "--model", graphs.family.name, "--url", server.http_url]
    arguments += ["--format", "png"]
    assert main([*arguments, "--point", "0:100,80", "--out", str(tmp_path / "masks"), "-q"]) == 0
    masks = sorted((tmp_path / "masks").rglob("*.png"))
    assert len(masks) == FRAMES
    assert np.asarray(Image.open(masks[-1])).any()
