"""The search for all objects inside the session model, without Triton."""

import json
import threading

import numpy as np
import pytest
from PIL import Image
from support import fuzzing
from support.contents import encoded
from support.fuzzing import EmptyModels, text

from triton_sam.inputs.images import open_image
from triton_sam.sessions.image.everything import Turns
from triton_sam.sessions.tasks import TaskCancelledError

ALL = {"pred_iou_thresh": 0, "stability_score_thresh": 0}


class Discs(EmptyModels):
    """A decoder that draws a disc around each point, and counts its calls."""

    def __init__(self):
        self.calls = []

    def decode(self, embeddings, inputs, outputs):
        self.calls.append(inputs["point_coords"].copy())
        objects, candidates = len(inputs["point_coords"]), 3 if outputs[0].startswith("multimask") else 1
        rows, columns = np.mgrid[:256, :256]
        x, y = inputs["point_coords"][0, 0] / 4
        logits = np.float32(12 - np.hypot(columns - x, rows - y))
        shapes = np.broadcast_to(logits, (objects, candidates, 256, 256)).copy()
        return dict(zip(outputs, (shapes, np.full((objects, candidates), 0.9, np.float32)), strict=True))


@pytest.fixture
def models():
    return Discs()


@pytest.fixture
def session(models):
    return fuzzing.session(models)


def image_file(size=(64, 64)):
    return encoded(Image.new("RGB", size))


def request(**parameters):
    return {"image": text(image_file()), "everything": text(json.dumps(parameters).encode())}


def test_each_object_has_the_official_keys(session, models):
    reply = session.find_everything(request(points_per_side=3, **ALL), lambda: False)
    assert reply.error is None
    answer = json.loads(reply.tensors["result_json"][0])
    assert answer["decodes"] == len(models.calls) == reply.counts["decodes"] == 9
    assert len(answer["objects"]) == 9
    assert set(answer["objects"][0]) == {
        "segmentation",
        "area",
        "bbox",
        "predicted_iou",
        "point_coords",
        "stability_score",
        "crop_box",
    }


def test_a_gpu_decodes_many_points_at_a_time(models):
    """As the official generators do. Cancelled, the job ends after the call that runs."""
    models.objects_at_a_time = 64
    session = fuzzing.session(models)
    reply = session.find_everything(request(points_per_side=10, **ALL), lambda: False)
    assert [len(points) for points in models.calls] == [64, 36]
    assert json.loads(reply.tensors["result_json"][0])["decodes"] == 100
    models.calls.clear()
    with pytest.raises(TaskCancelledError):
        session.find_everything(request(points_per_side=10, **ALL), lambda: len(models.calls) == 1)
    assert [len(points) for points in models.calls] == [64]


DEEP = pytest.param({"crop_n_layers": 3}, marks=pytest.mark.slow)
MORE = [{}, {"crop_n_layers": 1}, DEEP, {"min_mask_region_area": 9}]


@pytest.mark.parametrize("more", MORE, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (20_000, 20), (20, 20_000), (2, 1)])
def test_images_of_odd_sizes_have_an_answer(session, size, more):
    whole = {**request(points_per_side=1, **ALL, **more), "image": text(image_file(size))}
    reply = session.find_everything(whole, lambda: False)
    assert reply.error is None
    objects = json.loads(reply.tensors["result_json"][0])["objects"]
    assert objects
    assert all(each["segmentation"]["size"] == [*size[::-1]] for each in objects)


@pytest.mark.parametrize("more", [{}, {"adaptive": False}, {"adaptive": True}], ids=["", "earlier", "adaptive"])
def test_an_image_without_objects_has_an_empty_answer(session, models, more):
    """The decoder finds nothing under any point. Earlier clients send `adaptive`, which makes no difference."""
    decode = models.decode
    models.decode = lambda *arguments: {name: 0 * array - 9 for name, array in decode(*arguments).items()}
    reply = session.find_everything(request(points_per_side=4, **more), lambda: False)
    answer = json.loads(reply.tensors["result_json"][0])
    assert answer["objects"] == []
    assert (answer["decodes"], answer["candidates"]) == (16, 48)
    assert answer["reason"] == "Of 48 masks, pred_iou_thresh dropped 48: try lower thresholds."


def test_layers_without_points_are_skipped(session, models):
    """Half a point along a side is no point."""
    parameters = {"points_per_side": 1, "crop_n_layers": 1, "crop_n_points_downscale_factor": 2}
    reply = session.find_everything(request(**parameters, **ALL), lambda: False)
    assert reply.error is None
    assert (reply.counts["encodes"], len(models.calls)) == (1, 1)


def test_an_image_in_the_cache_is_opened_for_crops_only(session, monkeypatch):
    opened = []
    for module in ("image.everything", "images"):
        name = f"triton_sam.sessions.{module}.open_image"
        monkeypatch.setattr(name, lambda *arguments: opened.append(1) or open_image(*arguments))
    counts = []
    for layers in (0, 0, 1):
        reply = session.find_everything(request(points_per_side=2, crop_n_layers=layers, **ALL), lambda: False)
        counts.append((len(opened), reply.counts["encodes"], reply.counts["encode_seconds"] > 0))
    assert counts == [(1, 1, True), (1, 0, False), (2, 4, True)]


@pytest.mark.parametrize(
    ("find", "name", "query"),
    [
        ("find_everything", "everything", {"points_per_side": 2}),
        ("find_part", "everything_part", {"points": [[8, 8]]}),
        ("find_concepts", "find", {"text": "cat"}),
    ],
)
def test_a_search_that_is_stopped_before_it_begins_encodes_nothing(session, find, name, query):
    with pytest.raises(TaskCancelledError):
        getattr(session, find)({"image": text(image_file()), name: text(json.dumps(query).encode())}, lambda: True)
    assert not session.images.cache.get(session.images.image_id(image_file()))


@pytest.mark.parametrize("more", [{}, {"use_m2m": True}], ids=["grid", "refined"])
def test_a_cancelled_part_of_many_points_decodes_no_more(session, models, more):
    given = {"points": [[x, 8] for x in range(64)], "parameters": {**ALL, **more}}
    part = {"image": text(image_file()), "everything_part": text(json.dumps(given).encode())}
    for calls in (3, 65) if more else (3,):
        models.calls.clear()
        with pytest.raises(TaskCancelledError):
            session.find_part(part, lambda calls=calls: len(models.calls) == calls)
        assert len(models.calls) == calls


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"everything": text(b"{")}, "everything: invalid JSON"),
        ({"everything": text(b"[]")}, "everything must be an object"),
        ({"everything": text(b'{"points": 3}')}, "there is no parameter 'points'"),
        ({"everything": text(b'{"points_per_side": 200}')}, "40000 points in all crops"),
        ({"everything": text(b'{"point_grids": [[[0, 0]]]}')}, "point_grids cannot be sent"),
        ({"image_id": text(b"x")}, "cannot be combined with image_id"),
        ({"image": text(b"no image")}, "image"),
    ],
)
def test_a_wrong_request_is_one_clear_error(session, models, changed, message):
    reply = session.find_everything({**request(points_per_side=2), **changed}, lambda: False)
    assert isinstance(reply.error, ValueError)
    assert message in str(reply.error)
    assert reply.counts["failures"] == 1
    assert not models.calls


def test_a_job_waits_for_clicks():
    turns, order = Turns(), []

    def job():
        with turns.job():
            order.append("job")

    thread = threading.Thread(target=job)
    with turns.click():
        thread.start()
        thread.join(0.1)
        order.append("click")
    thread.join(60)
    assert order == ["click", "job"]


def test_clicks_without_end_do_not_stop_a_job():
    turns = Turns()
    with turns.click(), turns.job():
        pass
