"""The tools' own clients, unmodified, against the service. Each runs in an environment that the test makes."""

import numpy as np
import pytest
from support.running_service import running_service
from support.tools import BOX, CLICK, RING, drawn_prompts
from support.uv_environment import make_environment, run_script

from triton_sam import SAM2TritonClient
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


def test_inference_sdk(python, guarded, client, images):
    answer = run_script(python, ROBOFLOW, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, BOX)
    expected = [client.segment([CLICK], [1])[0], client.segment(box=BOX)[0]]
    for rle, segment in zip(answer["masks"], expected, strict=True):
        assert np.array_equal(rle_to_mask(rle), segment.mask)
    assert np.allclose(answer["areas"], [segment.area for segment in expected], rtol=0.02)
    assert "each prompt needs points" in answer["fault"]


def test_types_of_osam(python, guarded, client, images):
    """osam's own types make the prompts, accept the answers, and give the embedding of one to the next request."""
    masks = run_script(python, OSAM, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, BOX)
    for columns, prompt in zip(masks, ({"point_coords": [CLICK]}, {"box": BOX}), strict=True):
        best = max(client.segment(**prompt, multimask_output=True), key=lambda each: each.score)
        assert np.array_equal(_of_columns(columns), best.mask)


def test_label_studio_sdk(python, guarded, client, images):
    """A click, a brush in the SDK's own code, and a polygon: its decoder gives the masks of the client."""
    answer = run_script(python, LABEL_STUDIO, guarded.url, str(images / "shapes.jpg"), TOKEN, CLICK, RING)
    for columns, prompt in zip(answer["columns"], ({"point_coords": [CLICK]}, *drawn_prompts(client)), strict=True):
        assert mask_to_rle(_of_columns(columns)) == mask_to_rle(client.segment(**prompt)[0].mask)
    assert answer["valid"] == [True] * 3
