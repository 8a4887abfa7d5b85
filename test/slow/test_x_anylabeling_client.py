"""X-AnyLabeling's own client of a remote server, unmodified, without a window. The test makes an environment for it."""

import pytest
from support import clip
from support.fake_video_client import service_with_videos
from support.running_service import running_service
from support.tools import AWAY, BOX, CLICK, filled_each, near, without_holes, without_specks
from support.uv_environment import make_environment, run_script

from triton_sam import SAM2TritonClient

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

TOKEN = "sesame-open"
COUNT = 6
START = """
import json, os, sys
from types import SimpleNamespace
import yaml
from PyQt6.QtGui import QImage
from PyQt6.QtWidgets import QApplication

application = QApplication([])
import anylabeling.config

url, token, *values = json.loads(sys.argv[1])
path = os.path.join(os.environ["HOME"], "settings.yaml")
with open(path, "w") as file:
    yaml.safe_dump({"remote_server_settings": {"server_url": url + "/x-anylabeling", "api_key": token}}, file)
anylabeling.config.current_config_file = path  # as the program's option --config does it
from anylabeling.services.auto_labeling.remote_server import RemoteServer

faults = []
server = RemoteServer({"type": "remote_server", "display_name": "x"}, faults.append)


def points_of(result):
    return [[[point.x(), point.y()] for point in shape.points] for shape in result.shapes]
"""
CLICKS = (
    START
    + """
image, *marks = values
models = server.get_available_models()
server.set_model_id("sam2")
found = []
for each in marks:
    server.set_auto_labeling_marks([each])
    found.append(points_of(server.predict_shapes(QImage(image), image)))
server.headers["Token"] = "wrong"
server.predict_shapes(QImage(image), image)
print(json.dumps({"models": sorted(models), "found": found, "faults": faults}))
"""
)
VIDEO = (
    START
    + """
click, *frames = values
server.get_available_models()
server.set_model_id("sam2-video")
server._widget = SimpleNamespace(image_list=frames, output_dir=None, _config={"store_data": False})
server.set_auto_labeling_marks([{"type": "point", "data": click, "label": 1}])
first = points_of(server.predict_shapes(QImage(frames[0]), frames[0]))
server.set_auto_labeling_marks([])
server.predict_shapes(QImage(frames[0]), frames[0], run_tracker=True)
labels = []
for frame in frames:  # the files that the tool itself has written
    with open(os.path.splitext(frame)[0] + ".json") as file:
        labels.append([shape["points"] for shape in json.load(file)["shapes"]])
print(json.dumps({"first": first, "labels": labels, "faults": faults}))
"""
)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("x-anylabeling") / "venv", ["x-anylabeling-cvhub"])


@pytest.fixture
def run(python, tmp_path):
    def run(script, *values):
        return run_script(python, script, *values, HOME=str(tmp_path), QT_QPA_PLATFORM="offscreen")

    return run


def test_clicks_and_rectangles(run, service_triton, images):
    marks = [
        {"type": "point", "data": CLICK, "label": 1},
        {"type": "rectangle", "data": BOX, "label": 1},
        {"type": "point", "data": AWAY, "label": 1},
    ]
    path = images / "shapes.jpg"
    with running_service(service_triton.grpc_url, token=TOKEN, adapters=("x-anylabeling",)) as service:
        answer = run(CLICKS, service.url, TOKEN, str(path), *marks)
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(path)
        expected = [client.segment([CLICK])[0], client.segment(box=BOX)[0], client.segment([AWAY])[0]]
    assert "sam2" in answer["models"]
    for rings, segment in zip(answer["found"], expected, strict=True):
        assert near(filled_each(rings, segment.mask.shape), without_holes(without_specks(segment.mask, 0.2)), 2)
    assert ["401" in fault for fault in answer["faults"]] == [True]


def test_an_object_through_the_images_of_a_folder(run, tmp_path):
    frames = clip.write_frames(tmp_path, COUNT)
    with service_with_videos(adapters=("x-anylabeling",)) as (service, client):
        client.most_objects = 1 << 20  # the fake counts by the number of the object, and X-AnyLabeling says 10000
        answer = run(VIDEO, service.url, "", list(clip.START), *map(str, frames))
    shape = (clip.HEIGHT, clip.WIDTH)
    assert near(filled_each(answer["first"], shape), clip.disc(0), 2)
    for number, rings in enumerate(answer["labels"]):
        assert near(filled_each(rings, shape), clip.disc(number), 2), number
