"""The tools' own clients, unmodified, against the service. Each runs in an environment that the test makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
from support.fake_everything import shapes
from support.fake_words import service_with_words
from support.running_service import running_service
from support.tools import BOX, CLICK, RING, drawn_prompts
from support.uv_environment import make_environment, run_script

import triton_sam
from triton_sam import SAM2TritonClient
from triton_sam.masks.rle import mask_to_rle, rle_to_mask
from triton_sam.service.adapters.registry import ADAPTERS

pytestmark = pytest.mark.slow

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

CONCEPTS = """
import json, sys
from inference_sdk import InferenceHTTPClient

url, image = json.loads(sys.argv[1])
prompts = [{"type": "text", "text": "dog"}, {"type": "text", "text": "cat", "output_prob_thresh": 0.9}]
client = InferenceHTTPClient(api_url=url)
print(json.dumps(client.sam3_concept_segment(image, prompts=prompts, output_prob_thresh=0.7, format="rle")))
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

CVAT = """
import importlib.util, json, sys
from types import SimpleNamespace

url, image, site, click, box, checkout = json.loads(sys.argv[1])
sys.path += [checkout, site]  # behind the tool's own packages
import numpy as np
from PIL import Image

from cvat_sdk.auto_annotation import BadFunctionError
from cvat_sdk.masks import decode_mask
from triton_sam.errors import ConfigurationError
from triton_sam.integrations import cvat
from triton_sam.masks.segment import Segment

frame = Image.open(image)
interactor = cvat.create(kind="interactor", url=url)
encoded = interactor.preprocess_image(None, frame)
none = SimpleNamespace(pos_points=[], neg_points=[], bounding_box=None)
clicked = SimpleNamespace(pos_points=[tuple(click)], neg_points=[], bounding_box=None)
boxed = SimpleNamespace(pos_points=[], neg_points=[], bounding_box=(tuple(box[:2]), tuple(box[2:])))
assert interactor.detect(None, encoded, none) == []
shapes = [interactor.detect(None, encoded, prompts)[0] for prompts in (clicked, boxed)]
masks = [decode_mask(shape.points, image_width=800, image_height=600) for shape in shapes]
finder = cvat.create(url=url, points_per_side=4, stability_score_thresh=0.5)
context = SimpleNamespace(conf_threshold=0.3, conv_mask_to_poly=False, frame_name="shapes.jpg")
found = finder.detect(context, frame)
context.conv_mask_to_poly = True
polygons = finder.detect(context, frame)
faults = []
for options in ({"kind": "no"}, {"kind": "interactor", "points_per_side": 4}, {"kind": "words", "words": " , "}):
    try:
        cvat.create(url=url, **options)
    except ConfigurationError as error:
        faults.append(str(error))


class Words:
    # It finds a square for the second word.

    def find(self, words, image, **options):
        self.asked = [words, options]
        mask = np.zeros((600, 800), bool)
        mask[100:300, 200:500] = True
        return [Segment(mask, 0.9, None, 1), Segment(np.zeros((600, 800), bool), 0.8, None, 0)]


tracker = cvat.create("tracker", url=url)
assert {str(each) for each in tracker.spec.supported_shape_types} == {"mask", "polygon", "rectangle"}

words = cvat.Words(Words(), " dog, cat,dog", limit=3)
context = SimpleNamespace(conf_threshold=0.6, conv_mask_to_poly=False, frame_name="shapes.jpg")
[shape] = words.detect(context, frame)
square = decode_mask(shape.points, image_width=800, image_height=600)
assert square[100:300, 200:500].all() and square.sum() == 200 * 300
assert (shape.label_id, [label.name for label in words.spec.labels]) == (1, ["dog", "cat"])
assert words._client.asked == [["dog", "cat"], {"limit": 3, "threshold": 0.6}]
context.conv_mask_to_poly = True
assert [str(each.type) for each in words.detect(context, frame)] == ["polygon"]
print(json.dumps({
    "labels": [label.name for label in finder.spec.labels],
    "columns": [mask.T.ravel().nonzero()[0].tolist() for mask in masks],
    "found": [len(found), sorted({str(each.type) for each in found})],
    "polygons": [len(polygons), sorted({str(each.type) for each in polygons})],
    "faults": faults,
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(
        tmp_path_factory.mktemp("tools") / "venv", ["inference-sdk", "label-studio-sdk", "cvat-sdk", "osam"]
    )


@pytest.fixture(scope="module")
def guarded(service_triton):
    with running_service(service_triton.grpc_url, token=TOKEN, adapters=tuple(ADAPTERS)) as guarded:
        yield guarded


@pytest.fixture(scope="module")
def client(service_triton, images):
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(images / "shapes.jpg")
        yield client


def _of_columns(places):
    """Return the mask whose pixels have these numbers, column by column, in an image of 800 x 600 pixels."""
    mask = np.zeros(800 * 600, bool)
    mask[places] = True
    return mask.reshape(800, 600).T


@pytest.mark.timeout(900)
def test_inference_sdk(python, guarded, client, images):
    answer = run_script(python, ROBOFLOW, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, BOX)
    expected = [client.segment([CLICK], [1])[0], client.segment(box=BOX)[0]]
    for rle, segment in zip(answer["masks"], expected, strict=True):
        assert np.array_equal(rle_to_mask(rle), segment.mask)
    assert np.allclose(answer["areas"], [segment.area for segment in expected], rtol=0.02)
    assert "each prompt needs points" in answer["fault"]


@pytest.mark.timeout(900)
def test_inference_sdk_finds_words(python, images):
    with service_with_words(adapters=("roboflow",)) as (service, _):
        answer = run_script(python, CONCEPTS, service.url, str(images / "shapes.jpg"))
    dogs, cats = [result["predictions"] for result in answer["prompt_results"]]
    assert [[each["confidence"] for each in found] for found in (dogs, cats)] == [[0.95, 0.8], [0.95]]
    assert np.array_equal(rle_to_mask(dogs[0]["masks"]), shapes()[0])


@pytest.mark.timeout(900)
def test_types_of_osam(python, guarded, client, images):
    """osam's own types make the prompts, accept the answers, and give the embedding of one to the next request."""
    masks = run_script(python, OSAM, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, BOX)
    for columns, prompt in zip(masks, ({"point_coords": [CLICK]}, {"box": BOX}), strict=True):
        best = max(client.segment(**prompt, multimask_output=True), key=lambda each: each.score)
        assert np.array_equal(_of_columns(columns), best.mask)


@pytest.mark.timeout(900)
def test_label_studio_sdk(python, guarded, client, images):
    """A click, a brush in the SDK's own code, and a polygon: its decoder gives the masks of the client."""
    answer = run_script(python, LABEL_STUDIO, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, RING)
    for columns, prompt in zip(answer["columns"], ({"point_coords": [CLICK]}, *drawn_prompts(client)), strict=True):
        assert mask_to_rle(_of_columns(columns)) == mask_to_rle(client.segment(**prompt)[0].mask)
    assert answer["valid"] == [True] * 3


@pytest.mark.timeout(900)
def test_functions_of_cvat_sdk(python, service_triton, client, images):
    site = str(Path(np.__file__).parents[1])
    checkout = str(Path(triton_sam.__file__).parents[1])
    url = service_triton.grpc_url
    answer = run_script(python, CVAT, url, str(images / "shapes.jpg"), site, CLICK, BOX, checkout)
    for columns, segment in zip(
        answer["columns"], (client.segment([CLICK], [1])[0], client.segment(box=BOX)[0]), strict=True
    ):
        assert np.array_equal(_of_columns(columns), segment.mask)
    options = {"points_per_side": 4, "stability_score_thresh": 0.5, "pred_iou_thresh": 0.3}
    found = client.everything(images / "shapes.jpg", **options)
    assert answer["labels"] == ["object"]
    assert answer["found"] == [len(found), ["mask"]]
    assert answer["polygons"] == [sum(len(each.to_polygons()) for each in found), ["polygon"]]
    assert len(answer["faults"]) == 3
