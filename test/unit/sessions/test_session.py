"""The session model without Triton: what it asks of its networks, the memory that answers take, prompts as JSON."""

import base64
import io
import json
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from support.fuzzing import EmptyModels, image_file, session, text
from support.in_process import ImageServer

from triton_sam import Cleanup, SAM2TritonClient
from triton_sam.errors import PromptError
from triton_sam.families import get_family
from triton_sam.inputs.prompts import check_prompts
from triton_sam.sessions.image.messages import SessionRequest, write_json, write_masks
from triton_sam.sessions.images import HeldImage
from triton_sam.sessions.messages import MAX_JSON
from triton_sam.wire.pair import ModelPair, Prediction


@pytest.mark.parametrize("form", ["png", "rle", "json"])
def test_full_size_masks_are_made_and_encoded_one_by_one(form):
    """Those of 64 objects on an image of 100 megapixels would be 19 GB."""
    calls, count, side = ModelPair(get_family("sam2")), 32, 500
    prompts = check_prompts(None, None, [[0, 0, 9, 9]] * count, None, image_size=(side, side), mask_size=256)
    prediction = Prediction(np.zeros((count, 3, 8, 8), np.float32), np.zeros((count, 3), np.float32), prompts)
    tracemalloc.start()
    if form == "json":
        write_json(HeldImage("id", (side, side), {}, 0), calls.segments(prediction), SessionRequest(), {})
    else:
        write_masks(calls, prediction, SessionRequest(output_format=form))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < count * 3 * side * side / 4


class Sam3Models(EmptyModels):
    """Networks of SAM3 that note the labels of every call, on what might be a GPU."""

    objects_at_a_time = 64

    def __init__(self):
        self.labels = []

    def encode(self, inputs):
        return {name: np.zeros(1, np.float32) for name in get_family("sam3").encoder.output_names}

    def decode(self, embeddings, inputs, outputs):
        self.labels.append(inputs["input_labels"][0].tolist())
        objects = len(self.labels[-1])
        return {
            "pred_masks": np.full((1, objects, 3, 288, 288), len(self.labels), np.float32),
            "iou_scores": np.zeros((1, objects, 3), np.float32),
        }


def test_sam3_needs_no_filling_up():
    """The published decoder does not leave out what fills up: lists of different length are calls of their own."""
    models = Sam3Models()
    sam3 = session(models, "sam3")
    points, labels = np.float32([[[1, 1], [0, 0]], [[2, 2], [3, 3]]]), np.float32([[1, -2], [1, 0]])
    image = text(image_file())
    reply = sam3.answer({"image": image, "point_coords": points, "point_labels": labels})
    assert models.labels == [[[1]], [[1, 0]]]
    assert reply.tensors["masks"][:, 0, 0, 0].tolist() == [1, 2]
    sam3.answer({"image": image, "point_coords": points})
    assert models.labels[2:] == [[[1, 1], [1, 1]]]


def test_a_shape_that_promises_many_objects_takes_no_memory():
    request = SessionRequest(point_coords=np.zeros((10**8, 0, 2), np.float32))
    tracemalloc.start()
    with pytest.raises(PromptError, match="100000000 objects: a request may have at most 64"):
        request.prompts((16, 12), 256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("prompt", [{"points": [[]] * 10**5}, {"boxes": [[[[]]]] * 10**5}])
def test_many_empty_lists_are_too_many_points(prompt):
    request = SessionRequest(point_coords=prompt.get("points"), box=prompt.get("boxes"))
    with pytest.raises(PromptError, match="50000 points: a request may have at most 1024"):
        request.prompts((16, 12), 256)


def test_json_of_many_megabytes_is_not_read():
    reply = session().answer({"prompt_json": text(b" " * (MAX_JSON + 1))})
    assert json.loads(reply.tensors["result_json"][0])["error"]["message"] == (
        "prompt_json has 8388609 bytes, and may have 8388608"
    )


class GpuModels(EmptyModels):
    """Networks that note the points of each call."""

    objects_at_a_time = 64

    def __init__(self):
        self.points = []

    def decode(self, embeddings, inputs, outputs):
        self.points.append(inputs["point_coords"].shape[0] * inputs["point_coords"].shape[1])
        return super().decode(embeddings, inputs, outputs)


def test_lists_of_different_length_are_decoded_in_parts_that_the_decoder_takes():
    """Padding counts: 64 objects of which one has 40 points are 2,560 points for a decoder."""
    models = GpuModels()
    points = [[[1, 1]] * 40, *[[[2, 2]]] * 63]
    reply = session(models).answer(
        {
            "image_b64": text(base64.b64encode(image_file())),
            "prompt_json": text(
                json.dumps({"points": points, "labels": [[1] * len(each) for each in points]}).encode()
            ),
        }
    )
    assert len(json.loads(reply.tensors["result_json"][0])["masks"]) == 64
    assert max(models.points) <= 2048


# Prompts and clean-up as JSON, as programs in other languages send them

POINT = [[3, 4]]


def test_the_mask_of_a_prompt_in_json_is_that_of_the_client():
    box, cleanup = [3, 4, 9, 9], Cleanup(clip_to_box=True)
    prompt = {"points": POINT, "boxes": [box], "cleanup": cleanup.to_json()}
    with ImageServer() as server, SAM2TritonClient(server.url) as client:
        client.set_image(image_file())
        (expected,) = client.segment(POINT, box=box, cleanup=cleanup)
        (whole,) = client.segment(POINT)
        inputs = {"image_b64": text(base64.b64encode(image_file())), "prompt_json": text(json.dumps(prompt).encode())}
        reply = server.program._model.answer(inputs)
    content = base64.b64decode(json.loads(reply.tensors["result_json"][0])["mask"]["data"])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))) > 0, expected.mask)
    assert 0 < expected.mask.sum() < whole.mask.sum()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"points": {}}, "prompt_json: points must be a list of [x, y], not an object"),
        ({"multimask": 1.5}, "prompt_json: multimask must be true or false, not a number"),
        ({"image_id": True}, "prompt_json: image_id must be text, not true"),
        ([], 'prompt_json must be an object such as {"points": [[x, y]]}, not a list'),
    ],
)
def test_wrong_kinds_of_values_are_told_in_words_of_json(prompt, message):
    reply = session().answer({"prompt_json": text(json.dumps(prompt).encode())})
    assert json.loads(reply.tensors["result_json"][0])["error"]["message"] == message
