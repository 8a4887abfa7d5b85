"""The tools' own clients, unmodified, against the service. Each runs in an environment that the test makes."""

import numpy as np
import pytest
from support import clip
from support.drawn_server import drawn_service
from support.running_service import running_service
from support.tools import AWAY, BOX, CLICK, RING, drawn_prompts, filled_each, near, without_holes, without_specks
from support.uv_environment import make_environment, run_script

from triton_sam.masks.rle import mask_to_rle, rle_to_mask
from triton_sam.service.adapters.registry import ADAPTERS

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

TOKEN = "sesame-open"

ROBOFLOW = """
import json, sys
import supervision
from inference_sdk import InferenceConfiguration, InferenceHTTPClient
from inference_sdk.http.errors import HTTPCallErrorError

url, image, token, click, box = json.loads(sys.argv[1])
client = InferenceHTTPClient(api_url=url, api_key=token)
client.configure(InferenceConfiguration(api_key_transport="header"))
x1, y1, x2, y2 = box
prompts = [
    {"points": [{"x": click[0], "y": click[1], "positive": True}]},
    {"box": {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1}},
]
answer = client.sam2_segment_image(image, prompts=prompts, multimask_output=False, mask_input_format="rle")
outlines = client.sam2_segment_image(image, prompts=prompts, multimask_output=False)
drawn = supervision.Detections.from_sam3(outlines, (800, 600))
try:
    client.sam2_segment_image(image, prompts=[])
except HTTPCallErrorError as error:
    fault = error.api_message
masks = [each["masks"] for each in answer["predictions"]]
print(json.dumps({"masks": masks, "fault": fault, "areas": drawn.mask.sum((1, 2)).tolist()}))
"""


OSAM = """
import base64, json, sys
import numpy as np
import requests
from osam import _json, types

url, image, token, click, box = json.loads(sys.argv[1])
content = base64.b64encode(open(image, "rb").read()).decode()
masks = []
known = {"image": content}
for points, labels in (([click], [1]), ([box[:2], box[2:]], [2, 3])):
    prompt = types.Prompt(points=np.array(points, float), point_labels=np.array(labels))
    body = {"model": "sam2", **known, "prompt": prompt.model_dump()}
    answer = requests.post(url + "/api/generate", json=body, headers={"Authorization": "Bearer " + token})
    answer.raise_for_status()
    read = answer.json()
    for each in read["annotations"]:
        each["mask"] = _json.image_b64data_to_ndarray(each["mask"]).astype(bool)
    response = types.GenerateResponse.model_validate(read)
    [found] = response.annotations
    known = {"image_embedding": response.image_embedding.model_dump()}
    place = found.bounding_box
    mask = np.zeros((600, 800), bool)
    mask[place.ymin : place.ymax + 1, place.xmin : place.xmax + 1] = found.mask
    masks.append(mask.T.ravel().nonzero()[0].tolist())
print(json.dumps(masks))
"""

LABEL_STUDIO = """
import base64, json, sys
import numpy as np
import requests
from label_studio_sdk.converter import brush
from label_studio_sdk.label_interface import LabelInterface

url, image, token, click, ring = json.loads(sys.argv[1])
config = ('<View><Image name="image" value="$image"/><BrushLabels name="tag" toName="image"><Label value="cat"/>'
          '</BrushLabels></View>')
content = base64.b64encode(open(image, "rb").read()).decode()
stroke = np.zeros((600, 800), np.uint8)
stroke[170:190, 150:250] = 255
values = [
    ("keypointlabels", {"x": click[0] / 8, "y": click[1] / 6, "width": 0.3}),
    ("brushlabels", {"format": "rle", "rle": brush.mask2rle(stroke)}),
    ("polygonlabels", {"points": [[x / 8, y / 6] for x, y in ring], "closed": True}),
]
masks, valid = [], []
for kind, value in values:
    region = {"type": kind, "is_positive": 1, "original_width": 800, "original_height": 600, "image_rotation": 0,
              "value": {**value, kind: ["cat"]}}
    task = {"id": 1, "data": {"image": "data:image/jpeg;base64," + content}}
    body = {"tasks": [task], "project": "1.2", "label_config": config, "params": {"context": {"result": [region]}}}
    answer = requests.post(url + "/label-studio/predict", json=body, auth=("anyone", token))
    answer.raise_for_status()
    result = answer.json()["results"][0]["result"][0]
    pixels = brush.decode_rle(result["value"]["rle"]).reshape(result["original_height"], result["original_width"], 4)
    masks.append((pixels[:, :, 3] > 0).T.ravel().nonzero()[0].tolist())
    valid.append(bool(LabelInterface(config).validate_prediction({"result": [result], "score": 0.5})))
print(json.dumps({"columns": masks, "valid": valid}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("tools") / "venv", ["inference-sdk", "label-studio-sdk", "osam"])


@pytest.fixture(scope="module")
def guarded(service_triton):
    with running_service(service_triton.grpc_url, token=TOKEN, adapters=tuple(ADAPTERS)) as guarded:
        yield guarded


def _of_columns(places):
    """Return the mask whose pixels have these numbers, column by column, in an image of 800 x 600 pixels."""
    mask = np.zeros(800 * 600, bool)
    mask[places] = True
    return mask.reshape(800, 600).T


def test_inference_sdk(python, guarded, triton_client, images):
    answer = run_script(python, ROBOFLOW, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, BOX)
    expected = [triton_client.segment([CLICK], [1])[0], triton_client.segment(box=BOX)[0]]
    for rle, segment in zip(answer["masks"], expected, strict=True):
        assert np.array_equal(rle_to_mask(rle), segment.mask)
    assert np.allclose(answer["areas"], [segment.area for segment in expected], rtol=0.02)
    assert "each prompt needs points" in answer["fault"]


def test_types_of_osam(python, guarded, triton_client, images):
    """osam's own types make the prompts, accept the answers, and give the embedding of one to the next request."""
    masks = run_script(python, OSAM, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, BOX)
    for columns, prompt in zip(masks, ({"point_coords": [CLICK]}, {"box": BOX}), strict=True):
        best = max(triton_client.segment(**prompt, multimask_output=True), key=lambda each: each.score)
        assert np.array_equal(_of_columns(columns), best.mask)


def test_label_studio_sdk(python, guarded, triton_client, images):
    """A click, a brush in the SDK's own code, and a polygon: its decoder gives the masks of the client."""
    answer = run_script(python, LABEL_STUDIO, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, RING)
    prompts = ({"point_coords": [CLICK]}, *drawn_prompts(triton_client))
    for columns, prompt in zip(answer["columns"], prompts, strict=True):
        assert mask_to_rle(_of_columns(columns)) == mask_to_rle(triton_client.segment(**prompt)[0].mask)
    assert answer["valid"] == [True] * 3


# --- X-AnyLabeling's client of a remote server, without a window


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
def x_anylabeling(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("x-anylabeling") / "venv", ["x-anylabeling-cvhub"])


@pytest.fixture
def run(x_anylabeling, tmp_path):
    def run(script, *values):
        return run_script(x_anylabeling, script, *values, HOME=str(tmp_path), QT_QPA_PLATFORM="offscreen")

    return run


def test_clicks_and_rectangles(run, guarded, triton_client, images):
    marks = [
        {"type": "point", "data": CLICK, "label": 1},
        {"type": "rectangle", "data": BOX, "label": 1},
        {"type": "point", "data": AWAY, "label": 1},
    ]
    answer = run(CLICKS, guarded.url, TOKEN, str(images / "shapes.jpg"), *marks)
    expected = [triton_client.segment([CLICK])[0], triton_client.segment(box=BOX)[0], triton_client.segment([AWAY])[0]]
    assert "sam2" in answer["models"]
    for rings, segment in zip(answer["found"], expected, strict=True):
        assert near(filled_each(rings, segment.mask.shape), without_holes(without_specks(segment.mask, 0.2)), 2)
    assert ["401" in fault for fault in answer["faults"]] == [True]


def test_an_object_through_the_images_of_a_folder(run, tmp_path):
    frames = clip.write_frames(tmp_path, COUNT)
    with drawn_service(adapters=("x-anylabeling",)) as drawn:
        service = drawn.service
        answer = run(VIDEO, service.url, "", list(clip.START), *map(str, frames))
    shape = (clip.HEIGHT, clip.WIDTH)
    assert near(filled_each(answer["first"], shape), clip.disc(0), 2)
    for number, rings in enumerate(answer["labels"]):
        assert near(filled_each(rings, shape), clip.disc(number), 2), number
