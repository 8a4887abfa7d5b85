"""The sync client against a real Triton, with embeddings in its requests."""

import contextlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from tritonclient import grpc

from triton_sam import ConfigurationError, ImageEmbeddings, InputError, ModelNotReadyError, SAM2TritonClient
from triton_sam.masks import intersection_over_union

POINT = [[200, 180]]


@pytest.fixture(scope="module")
def image_path(images):
    return images / "shapes.jpg"


@pytest.fixture(scope="module")
def client(server, image_path):
    with SAM2TritonClient(server.grpc_url, embeddings="client") as client:
        client.set_image(image_path)
        yield client


def test_readme_snippet(server, image_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(image_path, "image.jpg")
    client = SAM2TritonClient(server.http_url.removeprefix("http://"), model_type="sam2")
    client.set_image("image.jpg")
    masks, iou = client.predict(point_coords=[[512, 512]], point_labels=[1])
    binary_mask = (masks[0, 0] > 0).astype(np.uint8)
    assert binary_mask.shape == (256, 256)
    assert iou.shape == (1, 1)
    client.close()


def test_shapes_and_types(client):
    box = [90, 70, 310, 290]
    for prompt, objects in (
        ({"point_coords": POINT}, 1),
        ({"point_coords": [[200, 180], [520, 145], [1, 1]], "point_labels": [1, 0, 0]}, 1),
        ({"point_coords": [[[200, 180]], [[520, 145]]], "point_labels": [[1], [1]]}, 2),
        ({"box": box}, 1),
        ({"box": [box] * 4}, 4),
        ({"point_coords": POINT, "point_labels": [0], "box": box}, 1),
        ({"mask_input": np.zeros((256, 256))}, 1),
    ):
        for multimask, candidates in ((False, 1), (True, 3)):
            masks, iou = client.predict(**prompt, multimask_output=multimask)
            assert masks.shape == (objects, candidates, 256, 256)
            assert iou.shape == (objects, candidates)
            assert masks.dtype == iou.dtype == np.float32
            assert np.isfinite(masks).all()
            assert np.abs(masks).max() <= 32


def test_both_protocols_and_all_sources_agree_bit_for_bit(server, image_path):
    answers = []
    calls = [
        (server.http_url, image_path),
        (server.grpc_url, image_path.read_bytes()),
        (server.http_url, np.asarray(Image.open(image_path))),
    ]
    for address, source in calls:
        with SAM2TritonClient(address, embeddings="client") as client:
            client.set_image(source)
            answers.append(client.predict(POINT, [1])[0])
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


def test_many_objects_in_one_call_equal_one_by_one(client):
    points = [[[200, 180], [10, 10]], [[520, 145]], [[620, 420], [700, 400], [5, 590]]]
    labels = [[1, 0], [1], [1, 1, 0]]
    together, scores = client.predict(points, labels)
    for index in range(3):
        alone, score = client.predict(points[index], labels[index])
        np.testing.assert_allclose(together[index], alone[0], atol=1e-3)
        np.testing.assert_allclose(scores[index], score[0], atol=1e-4)


def test_a_mask_input_changes_the_answer(client):
    first, _ = client.predict(POINT)
    refined, _ = client.predict(POINT, mask_input=first[0])
    assert np.abs(refined - first).max() > 1e-3


def test_embeddings_that_do_not_fit_are_refused(client):
    good = client.image_embeddings
    with pytest.raises(InputError, match="high_res_feats_0 is missing"):
        client.image_embeddings = ImageEmbeddings(
            "sam2", good.model, (8, 8), {"image_embeddings": good["image_embeddings"]}
        )
    with pytest.raises(ConfigurationError, match=r"sam2\.1_large_encoder"):
        client.image_embeddings = ImageEmbeddings("sam2", "sam2.1_large_encoder", (8, 8), dict(good))


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


def test_a_model_that_is_not_loaded(url, image_path):
    with SAM2TritonClient(url, model_name="sam2.1_huge") as client:
        assert not client.is_ready()
        with pytest.raises(ModelNotReadyError, match=r"sam2\.1_huge_encoder"):
            client.set_image(image_path)


def test_a_place_of_embeddings_that_is_none():
    with pytest.raises(ConfigurationError, match="embeddings must be one of"):
        SAM2TritonClient(embeddings="cloud")


def test_models_and_readiness(client):
    assert client.is_ready()
    assert {"sam2_encoder", "sam2_decoder"} <= set(client.models())


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
