"""`triton-sam track` with the video models of EdgeTAM and SAM3 on a real Triton."""

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of the models takes most of a minute
pytest.importorskip("torch")

from support.video_graphs import clip, edgetam_micro_graphs, sam3_reduced_graphs, write_video_models  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402

FRAMES = 8


@pytest.mark.parametrize("make_graphs", [edgetam_micro_graphs, sam3_reduced_graphs], ids=["edgetam", "sam3"])
def test_track_writes_masks(make_graphs, tmp_path):
    graphs = make_graphs()
    write_video_models(tmp_path / "models", graphs)
    (tmp_path / "clip").mkdir()
    for number, frame in enumerate(clip(FRAMES)):
        Image.fromarray(frame).save(tmp_path / "clip" / f"{number:05}.png")
    with LocalServer(tmp_path / "models") as server:
        arguments = ["track", str(tmp_path / "clip"), "--model", graphs.family.name, "--url", server.http_url]
        arguments += ["--format", "png", "--point", "0:100,80", "--out", str(tmp_path / "masks"), "-q"]
        assert main(arguments) == 0
    masks = sorted((tmp_path / "masks").rglob("*.png"))
    assert len(masks) == FRAMES
    assert np.asarray(Image.open(masks[-1])).any()
