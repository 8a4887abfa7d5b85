"""What calls ask of a server, played with lists of answers: no server, no transport, no event loop."""

import io

import numpy as np
import pytest
from PIL import Image
from support.fake_transport import clicked, decoded, encoded, refused, text, uploaded

from triton_sam.client.clicks import EmbeddingsClick, SessionClick
from triton_sam.client.drivers import carry
from triton_sam.client.flows import EncodeFlows, ask, predict
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.errors import (
    ImageError,
    InferenceError,
    ModelNotReadyError,
    PromptError,
    ServerTimeoutError,
    ServerUnreachableError,
    UnknownImageError,
)
from triton_sam.families import get_family
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.wire.pair import ModelPair

PAIR = ModelPair(get_family("sam2"))
PIXELS = np.zeros((48, 64, 3), np.uint8)
MISSING = ModelNotReadyError("no model 'sam2' ready")


def play(flow, *answers):
    """Play a flow; return its result and the requests that it made. Errors among the answers are thrown in."""
    requests, waiting = [], list(answers)
    try:
        requests.append(next(flow))
        while True:
            answer = waiting.pop(0)
            requests.append(flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer))
    except StopIteration as end:
        assert not waiting
        return end.value, requests


def fails(flow, kind, *answers):
    with pytest.raises(kind) as caught:
        play(flow, *answers)
    return caught.value


def make_click(image=None, **options):
    if image is None:
        image = SessionImage("sam2", "sam2_encoder", (64, 48), {}, RemoteImage(b"image", "id"))
    kind = SessionClick if isinstance(image, SessionImage) else EmbeddingsClick
    return kind(PAIR, image, PAIR.prompts(image, [[3, 4]], None, None, None), **options)


def local_image():
    return ImageEmbeddings("sam2", "sam2_encoder", (64, 48), encoded())


def encode(place, source=PIXELS):
    return EncodeFlows(PAIR, uses_session_model=place != "client", may_fall_back=place == "auto").encode(source)


# Encoding


@pytest.mark.parametrize("place", ["auto", "server"])
def test_an_image_goes_to_the_session_model_once(place):
    image, requests = play(encode(place), uploaded(b"name"))
    assert [request.model for request in requests] == ["sam2"]
    assert isinstance(image, SessionImage)
    assert (image.remote.image_id, image.image_size) == ("name", (64, 48))
    assert requests[0].inputs["image"][0] == image.remote.content


def test_embeddings_of_this_side_come_from_the_encoder():
    image, requests = play(encode("client"), encoded())
    assert [request.model for request in requests] == ["sam2_encoder"]
    assert requests[0].inputs["image"].shape == (1, 3, 1024, 1024)
    assert set(image) == set(encoded())


def test_an_open_file_survives_the_change_to_the_encoder():
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, format="PNG")
    buffer.seek(0)
    flows = EncodeFlows(PAIR, uses_session_model=True, may_fall_back=True)
    image, _ = play(flows.encode(buffer), MISSING, encoded())
    assert image.image_size == (PIXELS.shape[1], PIXELS.shape[0])


def test_who_insists_on_the_session_model_gets_its_error():
    assert fails(encode("server"), ModelNotReadyError, MISSING) is MISSING


def test_an_image_that_the_server_refuses_is_an_error_of_the_image():
    error = fails(encode("auto"), ImageError, refused("BAD_IMAGE"))
    assert str(error) == "words of the server"
    assert isinstance(error.__cause__, InferenceError)


@pytest.mark.parametrize(
    "error", [InferenceError("out of memory"), ServerUnreachableError("gone"), ServerTimeoutError("late")]
)
def test_other_errors_of_an_upload_stay_as_they_are(error):
    assert fails(encode("auto"), type(error), error) is error


def test_a_source_that_is_no_image_asks_nothing():
    for place in ("auto", "server", "client"):
        fails(encode(place, b""), ImageError)


# Clicks


def test_a_click_on_the_server_is_an_id_and_a_prompt():
    (masks, scores), (request,) = play(predict(make_click()), clicked(value=99))
    assert set(request.inputs) == {"image_id", "multimask_output", "point_coords", "point_labels"}
    assert request.outputs == ("masks", "iou_predictions", "image_id")
    assert masks.max() == 32  # clamped as SAM2's official predictor does
    assert scores.shape == (1, 1)


def test_a_click_on_embeddings_carries_them():
    (masks, _), (request,) = play(predict(make_click(local_image())), decoded(value=99))
    assert request.model == "sam2_decoder"
    assert set(encoded()) < set(request.inputs)
    assert masks.max() == 32


def test_a_lost_image_is_sent_again_with_the_same_prompt():
    click = make_click()
    (masks, _), (first, again) = play(predict(click), refused("UNKNOWN_IMAGE_ID"), clicked(b"new id", value=3))
    assert masks.max() == 3
    assert again.inputs["image"][0] == b"image"
    assert "image_id" not in again.inputs
    assert again.outputs == first.outputs
    np.testing.assert_array_equal(again.inputs["point_coords"], first.inputs["point_coords"])
    assert click.image.remote.image_id == "new id"


def test_healing_twice_counts_the_last_answer():
    image = make_click().image
    play(predict(make_click(image)), refused("UNKNOWN_IMAGE_ID"), clicked())
    (masks, _), requests = play(
        predict(make_click(image)), refused("UNKNOWN_IMAGE_ID"), clicked(value=1), clicked(value=2)
    )
    assert ["image" in request.inputs for request in requests] == [False, True, True]
    assert masks.max() == 2


def test_an_image_that_is_there_again_ends_the_series_of_misses():
    image = make_click().image
    for _ in range(3):
        play(ask(make_click(image)), refused("UNKNOWN_IMAGE_ID"), clicked())
        play(ask(make_click(image)), clicked())
    assert image.remote.misses == 0


@pytest.mark.parametrize(
    "error", [InferenceError("failed"), ServerUnreachableError("gone"), ServerTimeoutError("late")]
)
@pytest.mark.parametrize("image", [None, local_image()])
def test_errors_that_nothing_heals_stay_as_they_are(image, error):
    assert fails(predict(make_click(image)), type(error), error) is error


def test_a_prompt_that_the_server_refuses_is_an_error_of_the_prompt():
    error = fails(predict(make_click()), PromptError, refused("BAD_PROMPT"))
    assert isinstance(error.__cause__, InferenceError)


def test_an_error_while_healing_is_the_one_that_counts():
    gone = ServerUnreachableError("gone")
    assert fails(predict(make_click()), ServerUnreachableError, refused("UNKNOWN_IMAGE_ID"), gone) is gone


@pytest.mark.parametrize("answer", [clicked(objects=2), {**clicked(), "masks": np.zeros((1, 256, 256))}])
def test_an_answer_of_the_wrong_shape_is_an_error(answer):
    fails(predict(make_click()), InferenceError, answer)
    answer = {name: array for name, array in answer.items() if name != "image_id"}
    fails(predict(make_click(local_image())), InferenceError, answer)


def test_two_servers_that_take_turns_both_get_the_image():
    """Ids went to one and images to the other; after two misses in a row the image is sent twice, which ends it."""
    servers = [set(), set()]
    image = make_click().image
    turns = 0

    def send(request):
        """The server whose turn it is answers; it keeps an image that comes along."""
        nonlocal turns
        turns += 1
        held = servers[turns % 2]
        if "image" in request.inputs:
            held.add(request.inputs["image"][0])
        if not held:
            raise UnknownImageError("gone")
        return clicked()

    rounds = []
    for _ in range(6):
        before = turns
        carry(ask(make_click(image)), send)
        rounds.append(turns - before)
    assert rounds == [2, 3, 1, 1, 1, 1]
    assert all(servers)


def test_a_cache_that_is_too_small_does_not_double_every_upload():
    click = make_click()
    request = click.request(click.prompts)
    assert [len(click.again(request, UnknownImageError("gone"))) for _ in range(9)] == [1, 2, 1, 2, 1, 1, 1, 2, 1]


# Full-size masks


def test_without_logits_the_server_makes_the_masks():
    click = make_click(logits=False)
    run_lengths = b'{"size": [48, 64], "counts": [0, 3072]}'
    answer = {**clicked(b"other"), "encoded_masks": np.array([[run_lengths]], np.object_)}
    outputs, (request,) = play(ask(click), answer)
    assert request.outputs[0] == "encoded_masks"
    assert request.inputs["output_format"][0] == b"rle"
    (segment,) = click.segments(outputs)
    assert segment.mask.all()
    assert segment.mask.shape == (48, 64)
    assert segment.logits is None
    assert click.image.remote.image_id == "other"
    for damaged in (np.array([[b"no"]], np.object_), text(run_lengths)):
        with pytest.raises(InferenceError):
            click.segments({**answer, "encoded_masks": damaged})


@pytest.mark.parametrize("logits", [True, False])
def test_masks_of_this_side_carry_logits_where_they_are_wanted(logits):
    click = make_click(local_image(), logits=logits)
    outputs, _ = play(ask(click), decoded())
    (segment,) = click.segments(outputs)
    assert segment.mask.all()
    assert (segment.logits is not None) is logits
