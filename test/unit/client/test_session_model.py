"""Clicks with an image that a session model keeps: which requests they become, and what a server without one costs."""

import time

import numpy as np
import pytest
from support.in_process import ImageServer, refusal

from triton_sam import PromptError, SAM2TritonClient
from triton_sam.client import session_image
from triton_sam.client.clicks import EmbeddingsClick
from triton_sam.client.flows import ASK_AGAIN_SECONDS, Notice
from triton_sam.client.session_image import MANY_MISSES, SessionImage
from triton_sam.errors import InferenceError
from triton_sam.families import get_family
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.inputs.prompts import check_prompts
from triton_sam.wire.contract import MAX_OBJECTS, MAX_POINTS
from triton_sam.wire.pair import ModelPair

IMAGE = np.zeros((48, 64, 3), np.uint8)
BOXES = [[x / 10, 1, 40, 40] for x in range(MAX_OBJECTS + 2)]


def objects_of(request):
    """Return the number of objects in a click."""
    return len(request.inputs.get("boxes", request.inputs.get("point_coords", ())))


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ({"box": BOXES[:MAX_OBJECTS]}, [64]),
        ({"box": BOXES[: MAX_OBJECTS + 1]}, [64, 1]),
        ({"point_coords": [[[x / 10, 1]] * 17 for x in range(MAX_OBJECTS)]}, [60, 4]),
        ({"point_coords": [[[x / 10, 1]] * 15 for x in range(62)], "box": [[1, 1, 9, 9]] * 62}, [60, 2]),
        ({"point_coords": [[[3, 3]] * MAX_POINTS, [[4, 4]]]}, [1, 1]),
    ],
    ids=["64 boxes", "65 boxes", "17 points", "points and boxes", "lists of other lengths"],
)
def test_a_click_goes_in_as_many_requests_as_the_limits_of_the_contract_demand(image_server, prompt, parts):
    with SAM2TritonClient(image_server.url) as client:
        client.set_image(IMAGE)
        segments = client.segment(**prompt, logits=False)
        assert [objects_of(request) for request in image_server.requests[1:]] == parts
        assert [each.object_index for each in segments] == list(range(sum(parts)))
        masks, scores = client.predict(**prompt)
        last = {name: values[-1:] for name, values in prompt.items()}
        np.testing.assert_array_equal(masks[-1:], client.predict(**last)[0])
        np.testing.assert_array_equal([each.score for each in segments], scores[:, 0])


def test_more_points_of_one_object_need_the_embeddings_here(image_server):
    prompt = {"point_coords": [[3, 3]] * (MAX_POINTS + 1)}
    with SAM2TritonClient(image_server.url) as client:
        client.set_image(IMAGE)
        with pytest.raises(PromptError, match=r"1025 points, and the session model accepts 1024.*encode_here"):
            client.predict(**prompt)
        assert len(image_server.requests) == 1
        client.predict(**prompt, image=client.encode_here(IMAGE))
        assert image_server.asked == ["sam2", "sam2_encoder", "sam2_decoder"]


@pytest.mark.parametrize(("prompt", "parts"), [
    ({"box": BOXES}, [64, 2]),
    ({"point_coords": [[[index, 3]] * 300 for index in range(8)]}, [6, 2]),
    ({"point_coords": [[[index, 3]] * 31 for index in range(64)], "box": BOXES[:64]}, [62, 2]),  # a box is two points
])  # fmt: skip
def test_a_click_that_is_too_large_for_a_decoder_is_sent_in_parts(image_server, prompt, parts):
    with SAM2TritonClient(image_server.url, embeddings="client") as client:
        client.set_image(IMAGE)
        masks, scores = client.predict(**prompt, multimask_output=True)
        assert image_server.asked[1:] == ["sam2_decoder"] * len(parts)
        assert [objects_of(request) for request in image_server.requests[1:]] == parts
        assert masks.shape[:2] == scores.shape == (sum(parts), 3)
        last = {name: values[-1:] for name, values in prompt.items()}
        np.testing.assert_array_equal(masks[-1:], client.predict(**last, multimask_output=True)[0])


def test_the_parts_of_sam3_are_joined_along_the_second_axis():
    def answer(count):
        return {"pred_masks": np.zeros((1, count, 3, 288, 288), np.float32), "iou_scores": np.zeros((1, count, 3))}

    sam3, size = get_family("sam3"), (64, 48)
    prompts = check_prompts(None, None, BOXES, None, image_size=size, mask_size=288)
    image = ImageEmbeddings("sam3", "sam3_encoder", size, {name: np.zeros(1) for name in sam3.encoder.output_names})
    flow = EmbeddingsClick(ModelPair(sam3), image, prompts).ask()
    assert next(flow).inputs["input_boxes"].shape[:2] == (1, 64)
    assert flow.send(answer(64)).inputs["input_boxes"].shape[:2] == (1, 2)
    with pytest.raises(StopIteration) as end:
        flow.send(answer(2))
    assert [array.shape[:3] for array in end.value.value.values()] == [(1, 66, 3), (1, 66, 3)]


def test_an_image_that_is_lost_between_two_parts_is_sent_again_with_the_second_alone(image_server):
    with SAM2TritonClient(image_server.url) as client:
        client.set_image(IMAGE)
        image_server.failures = [None, refusal("UNKNOWN_IMAGE_ID", "NOT_FOUND")]
        assert len(client.predict(box=BOXES)[0]) == 66
        client.predict([[3, 4]])
    assert image_server.sent() == [True, False, False, True, False]


@pytest.mark.parametrize(("place", "boxes"), [("server", BOXES[:2]), ("client", BOXES[:2]), ("server", BOXES)])
def test_an_answer_of_the_wrong_size_is_an_error(image_server, place, boxes):
    """To one request, or to the second part of a click."""
    answer, last = image_server.answer, 2 if len(boxes) > MAX_OBJECTS else 1

    def shortened(model, request, number):
        tensors = answer(model, request, number)
        return {**tensors, "masks": tensors["masks"][:-1]} if number == last else tensors

    image_server.answer = shortened
    with SAM2TritonClient(image_server.url, embeddings=place) as client:
        client.set_image(IMAGE)
        with pytest.raises(InferenceError, match="masks"):
            client.predict(box=boxes)


# Servers without the session model


def test_without_a_session_model_the_client_keeps_the_embeddings_says_so_once_and_asks_again(caplog, monkeypatch):
    with ImageServer(keeps_images=False) as server, SAM2TritonClient(server.url, retries=0) as client:
        for _ in range(3):
            assert not isinstance(client.set_image(IMAGE), SessionImage)
        assert server.asked == ["sam2", "sam2_encoder", "sam2_encoder", "sam2_encoder"]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + ASK_AGAIN_SECONDS + 1)
        assert not isinstance(client.set_image(IMAGE), SessionImage)
        monkeypatch.setattr(time, "monotonic", lambda: now + 3 * ASK_AGAIN_SECONDS)
        server.start_session_model()
        assert isinstance(client.set_image(IMAGE), SessionImage)
    assert server.asked[4:] == ["sam2", "sam2_encoder", "sam2"]
    (message,) = caplog.messages
    assert message.startswith(
        "the server has no session model 'sam2' ready: this client keeps the embeddings and sends"
    )
    assert "(16.8 MB)" in message
    assert "embeddings='client'" in message


def test_a_cache_that_is_too_small_does_not_double_every_upload(image_server, caplog, monkeypatch):
    monkeypatch.setattr(session_image, "_LOSES_IMAGES", Notice())
    image_server.after = lambda number: image_server.lose_images()
    with SAM2TritonClient(image_server.url) as client:
        client.set_image(IMAGE)
        uploads = []
        for _ in range(9):
            image_server.requests.clear()
            client.predict([[3, 4]])
            uploads.append(sum(image_server.sent()))
            assert len(caplog.messages) == (len(uploads) >= MANY_MISSES)
    assert uploads == [1, 2, 1, 2, 1, 1, 1, 2, 1]
    (message,) = caplog.messages
    assert message.startswith("sam2 lost an image 4 times in a row")


def test_a_mask_is_refused_by_the_family_that_takes_none():
    client = SAM2TritonClient(model_type="sam3")
    image = ImageEmbeddings("sam3", "sam3_encoder", (60, 40), {})
    with pytest.raises(PromptError, match="sam3 does not accept mask_input"):
        client.predict([[3, 4]], mask_input=np.zeros((288, 288), np.float32), image=image)
