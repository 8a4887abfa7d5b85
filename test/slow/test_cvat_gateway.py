"""CVAT's own gateway to its functions asks the service. CVAT is in no package registry, so the test uses a checkout.

Set CVAT_SOURCE to a folder of https://github.com/cvat-ai/cvat, version 2.22 or newer. The default tests repeat the
requests of test/data/cvat_requests.json, which CVAT's code sent; this test checks that the file has all of them.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from support import clip, cvat_requests
from support.drawn_server import drawn_service
from support.running_service import running_service
from support.tools import AWAY, BOX, CLICK, near
from support.uv_environment import make_environment, run_script

from triton_sam import SAM2TritonClient
from triton_sam.masks import mask_to_box
from triton_sam.service.adapters import bridge
from triton_sam.service.adapters.cvat_tracker import box_runs, mask_of_points
from triton_sam.service.everything import EverythingRequest

SOURCE = os.environ.get("CVAT_SOURCE", "")
SCRIPT = Path(__file__).parents[1] / "support" / "cvat_gateway.py"
TOKEN = "sesame-open"
SIZE = 800, 600

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SOURCE, reason="there is no code of CVAT: set CVAT_SOURCE"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("cvat") / "venv", ["django", "requests", "numpy"])


def run_gateway(python: Path, url: str, frames: list[Path], calls: list[Any], labels: list[str], host: str) -> Any:
    """Return the functions that CVAT knows, what it makes of the answers to the calls, and its requests."""
    server = {"HOST": host, "PORT": urlsplit(url).port}
    return run_script(python, SCRIPT.read_text(), SOURCE, server, labels, [str(each) for each in frames], calls)


def test_interactor_and_everything(python, service_triton, images, monkeypatch):
    """The masks of clicks and boxes are those of the client, and the detector's runs make masks of the image."""
    monkeypatch.setattr(bridge, "EverythingRequest", partial(EverythingRequest, points_per_side=6))
    sent = {"frame": 0, "pos_points": [CLICK], "neg_points": []}
    box = {"frame": 0, "pos_points": [], "neg_points": [], "obj_bbox": [BOX[:2], BOX[2:]]}
    both = {**box, "pos_points": [CLICK], "neg_points": [AWAY]}
    calls = [
        *(["triton-sam-sam2", each] for each in (sent, box, both)),
        ["triton-sam-sam2-everything", {"frame": 0, "threshold": 0.5, "mapping": {"object": {"name": "thing"}}}],
        ["triton-sam-sam2", {**sent, "pos_points": []}],
    ]
    with running_service(service_triton.grpc_url, token=TOKEN, adapters=("cvat",)) as service:
        host = f"triton:{TOKEN}@127.0.0.1"
        known = run_gateway(python, service.url, [images / "shapes.jpg"], calls, ["thing"], host)
    *masks, found, empty = known["answers"]
    prompts = [
        {"point_coords": [CLICK]},
        {"box": BOX},
        {"point_coords": [CLICK, AWAY], "point_labels": [1, 0], "box": BOX},
    ]
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(images / "shapes.jpg")
        expected = [client.segment(**prompt)[0].mask for prompt in prompts]
    kinds = {each["id"]: each["kind"] for each in known["functions"]}
    assert (kinds["triton-sam-sam2"], kinds["triton-sam-sam2-everything"]) == ("interactor", "detector")
    assert np.array_equal([np.array(each["mask"], bool) for each in masks], expected)
    detected = found["shapes"] if isinstance(found, dict) else found
    assert len(detected) > 1
    for shape in detected:
        assert shape["type"] == "mask"
        assert mask_of_points(shape.get("mask") or shape["points"], SIZE).any()
    assert empty["status"] == 422
    assert "set at least one point, or a box" in empty["text"]
    cvat_requests.check_recorded(known["requests"][:-1])


def test_tracker(python, tmp_path):
    """CVAT signs the states and sends them back; each object is found in the frames after the first."""
    frames = clip.write_frames(tmp_path, 3)
    x, y = clip.START
    box = [x - clip.RADIUS, y - clip.RADIUS, x + clip.RADIUS, y + clip.RADIUS]
    name = "triton-sam-sam2-tracker"
    square = np.zeros((clip.HEIGHT, clip.WIDTH), bool)
    square[100:140, 40:80] = True
    drawn: list[Any] = [{"type": "rectangle", "points": box}, {"type": "mask", "points": box_runs(square)}]
    views = Path(SOURCE, "cvat/apps/lambda_manager/views.py").read_text()
    if "supported_shape_types" not in views:  # older versions have rectangles alone
        drawn = [box]
    calls = [[name, {"frame": 0, "shapes": drawn}], *([name, {"frame": n, "states": "last"}] for n in (1, 2))]
    with drawn_service(adapters=("cvat",)) as drawn:
        known = run_gateway(python, drawn.service.url, frames, calls, [], "127.0.0.1")
    for frame, answer in enumerate(known["answers"]):
        rectangle, *others = answer["shapes"]
        found = rectangle["points"] if isinstance(rectangle, dict) else rectangle
        np.testing.assert_allclose(found, mask_to_box(clip.disc(frame)), atol=1)
        for other in others:
            moved = np.roll(square, clip.STEP * frame, axis=1)
            assert near(mask_of_points(other["points"], (clip.WIDTH, clip.HEIGHT)), moved)
    cvat_requests.check_recorded(known["requests"])
