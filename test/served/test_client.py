"""The sync client against a real Triton: its threads, and its masks against the truth."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image
from tritonclient import grpc

from triton_sam import SAM2TritonClient
from triton_sam.masks import intersection_over_union

POINT = [[200, 180]]


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
