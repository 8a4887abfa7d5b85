"""The sync client against a real Triton, with embeddings in its requests."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from tritonclient import grpc

from triton_sam import SAM2TritonClient
from triton_sam.masks import intersection_over_union

POINT = [[200, 180]]


@pytest.fixture(scope="module")
def demo_client(server, images):
    with SAM2TritonClient(server.grpc_url, embeddings="client") as demo_client:
        demo_client.set_image(images / "shapes.jpg")
        yield demo_client


def test_shapes_and_types(demo_client):
    box = [90, 70, 310, 290]
    for prompt, objects in (
        ({"point_coords": POINT}, 1),
        ({"point_coords": [[200, 180], [520, 145], [1, 1]], "point_labels": [1, 0, 0]}, 1),
        ({"point_coords": [[[200, 180]], [[520, 145]]], "point_labels": [[1], [1]]}, 2),
        ({"box": box}, 1),
        ({"box": [box] * 4}, 4),
        ({"point_coords": POINT, "point_labels": [0], "box": box}, 1),
        ({"mask_input": np.zeros((256, 256))}, 1),
        ({"point_coords": POINT, "mask_input": demo_client.predict(POINT)[0][0]}, 1),
    ):
        for multimask, candidates in ((False, 1), (True, 3)):
            masks, iou = demo_client.predict(**prompt, multimask_output=multimask)
            assert masks.shape == (objects, candidates, 256, 256)
            assert iou.shape == (objects, candidates)
            assert masks.dtype == iou.dtype == np.float32
            assert np.isfinite(masks).all()
            assert np.abs(masks).max() <= 32
    assert (
        np.abs(demo_client.predict(**prompt)[0] - demo_client.predict(POINT)[0]).max() > 1e-3
    )  # the mask changes the answer


def test_both_protocols_and_all_sources_agree_bit_for_bit(server, images):
    answers = []
    calls = [
        (server.http_url, images / "shapes.jpg"),
        (server.grpc_url, (images / "shapes.jpg").read_bytes()),
        (server.http_url, np.asarray(Image.open(images / "shapes.jpg"))),
    ]
    for address, source in calls:
        with SAM2TritonClient(address, embeddings="client") as client:
            client.set_image(source)
            answers.append(client.predict(POINT, [1])[0])
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


def test_no_thread_gets_the_answer_of_another(server, images, monkeypatch):
    """tritonclient keeps the running call in an attribute of its client, where another thread may replace it."""
    both = threading.Barrier(2)

    class Watched(grpc.InferenceServerClient):
        """Lets each thread wait until the other one has a running call, too, if the other one can."""

        @property
        def _call_future(self):
            return self.running

        @_call_future.setter
        def _call_future(self, running):
            self.running = running
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)

    names = ["shapes.jpg", "coffee.jpg"]
    with SAM2TritonClient(server.grpc_url) as client:
        encoded = {name: client.encode(images / name) for name in names}
        expected = {name: client.predict(POINT, image=encoded[name])[0] for name in names}
    monkeypatch.setattr(grpc, "InferenceServerClient", Watched)
    with SAM2TritonClient(server.grpc_url) as client, ThreadPoolExecutor(2) as pool:
        jobs = {name: pool.submit(client.predict, POINT, image=encoded[name]) for name in names}
        for name, job in jobs.items():
            np.testing.assert_array_equal(job.result()[0], expected[name])


def test_the_demo_model_finds_the_objects_of_the_demo(service_triton, images):
    """Real masks against the truth. The thresholds are a tenth below what the model card states."""
    (entry, *_) = json.loads((images / "demo.json").read_text())
    truth = np.asarray(Image.open(images / entry["truth"]))
    with SAM2TritonClient(service_triton.http_url) as client:
        client.set_image(images / entry["image"])
        points = [[item["point"]] for item in entry["objects"]]
        single, three = (client.segment(points, multimask_output=multimask) for multimask in (False, True))

    def iou(segment):
        wanted = truth == entry["objects"][segment.object_index]["label"]
        return intersection_over_union(segment.mask, wanted)

    best = [max(iou(segment) for segment in three if segment.object_index == n) for n in range(len(points))]
    assert np.mean([iou(segment) for segment in single]) > 0.80
    assert np.mean(best) > 0.80
