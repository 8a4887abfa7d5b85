"""The sync client against a real Triton that serves the default model, over both protocols."""

import contextlib
import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until

from triton_sam import (
    ConfigurationError,
    ImageEmbeddings,
    ImageError,
    InputError,
    ModelNotReadyError,
    NoImageError,
    PromptError,
    SAM2TritonClient,
    ServerUnreachableError,
)
from triton_sam._common.bundle import bundled
from triton_sam.masks import intersection_over_union

POINT = [[200, 180]]
BOX = [90, 70, 310, 290]


@pytest.fixture(scope="module")
def image_path(images):
    return images / "shapes.jpg"


@pytest.fixture(scope="module")
def client(url, image_path):
    with SAM2TritonClient(url) as client:
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


@pytest.mark.parametrize(("multimask", "candidates"), [(False, 1), (True, 3)])
def test_shapes_and_types(client, multimask, candidates):
    for prompt, objects in (
        ({"point_coords": POINT}, 1),
        ({"point_coords": [[200, 180], [520, 145], [1, 1]], "point_labels": [1, 0, 0]}, 1),
        ({"point_coords": [[[200, 180]], [[520, 145]]], "point_labels": [[1], [1]]}, 2),
        ({"box": BOX}, 1),
        ({"box": [BOX] * 4}, 4),
        ({"point_coords": POINT, "point_labels": [0], "box": BOX}, 1),
        ({"mask_input": np.zeros((256, 256))}, 1),
    ):
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
        with SAM2TritonClient(address) as client:
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


def test_segment_is_the_full_size_image(client, image_path):
    with Image.open(image_path) as image:
        size = image.size
    (segment,) = client.segment(POINT)
    assert segment.mask.shape == size[::-1]
    assert segment.mask.dtype == bool
    assert segment.logits.shape == (256, 256)
    three = client.segment([[[200, 180]], [[520, 145]]], multimask_output=True)
    assert [(s.object_index, s.candidate) for s in three] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert {s.mask.shape for s in three} == {size[::-1]}


def test_embeddings_are_reachable_saved_and_loaded(client, url, tmp_path):
    embeddings = client.image_embeddings
    assert {name: array.shape for name, array in embeddings.items()} == {
        "image_embeddings": (1, 256, 64, 64),
        "high_res_feats_0": (1, 32, 256, 256),
        "high_res_feats_1": (1, 64, 128, 128),
    }
    path = tmp_path / "image.npz"
    embeddings.save(path)
    with SAM2TritonClient(url) as other:
        other.image_embeddings = ImageEmbeddings.load(path)
        np.testing.assert_array_equal(other.predict(POINT)[0], client.predict(POINT)[0])
    assert [file.name for file in tmp_path.iterdir()] == ["image.npz"]


def test_embeddings_that_do_not_fit_are_refused(client, tmp_path):
    (tmp_path / "no.npz").write_bytes(b"nothing")
    for path, message in (("no.npz", "holds no image embeddings"), ("absent.npz", "there is no file")):
        with pytest.raises(InputError, match=message):
            ImageEmbeddings.load(tmp_path / path)
    good = client.image_embeddings
    with pytest.raises(InputError, match="high_res_feats_0 is missing"):
        client.image_embeddings = ImageEmbeddings(
            "sam2", good.model, (8, 8), {"image_embeddings": good["image_embeddings"]}
        )
    with pytest.raises(ConfigurationError, match=r"sam2\.1_large_encoder"):
        client.image_embeddings = ImageEmbeddings("sam2", "sam2.1_large_encoder", (8, 8), dict(good))


def test_threads_share_one_client(url, images):
    names = ["shapes.jpg", "coffee.jpg"]
    with SAM2TritonClient(url) as client:
        encoded = {name: client.encode(images / name) for name in names}
        expected = {name: client.predict(POINT, image=encoded[name])[0] for name in names}
        with ThreadPoolExecutor(4) as pool:
            jobs = [(name, pool.submit(client.predict, POINT, image=encoded[name])) for name in names * 4]
            for name, job in jobs:
                np.testing.assert_array_equal(job.result()[0], expected[name])


def test_no_thread_gets_the_answer_of_another(service_triton, images, monkeypatch):
    """tritonclient keeps the running call in an attribute of its client, where another thread may replace it."""
    grpc = pytest.importorskip("tritonclient.grpc")
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
    with SAM2TritonClient(service_triton.grpc_url) as client:
        encoded = {name: client.encode(images / name) for name in names}
        expected = {name: client.predict(POINT, image=encoded[name])[0] for name in names}
    monkeypatch.setattr(grpc, "InferenceServerClient", Watched)
    with SAM2TritonClient(service_triton.grpc_url) as client, ThreadPoolExecutor(2) as pool:
        jobs = {name: pool.submit(client.predict, POINT, image=encoded[name]) for name in names}
        for name, job in jobs.items():
            np.testing.assert_array_equal(job.result()[0], expected[name])


def test_wrong_use_is_one_clear_error_and_the_image_stays(client):
    with SAM2TritonClient(client.url) as fresh, pytest.raises(NoImageError, match="set_image"):
        fresh.predict(POINT)
    before = client.image_embeddings
    with pytest.raises(ImageError):
        client.set_image(b"not an image")
    assert client.image_embeddings is before
    with pytest.raises(PromptError, match="outside the image of 800x600"):
        client.predict([[801, 1]])
    for options in ({"model_type": "sam9"}, {"timeout": 0}, {"retries": -1}):
        with pytest.raises(ConfigurationError):
            SAM2TritonClient(**options)


def test_a_model_that_is_not_loaded(url, image_path):
    with SAM2TritonClient(url, model_name="sam2.1_huge") as client:
        assert not client.is_ready()
        with pytest.raises(ModelNotReadyError, match=r"sam2\.1_huge_encoder"):
            client.set_image(image_path)


def test_models_and_readiness(client):
    assert client.is_ready()
    assert {"sam2_encoder", "sam2_decoder"} <= set(client.models())


def test_a_server_that_dies_in_mid_request_and_comes_back(image_path):
    """Each protocol has a client; both lose the same server, and find the next one at its ports."""
    local_server = pytest.importorskip("triton_sam.local_server")

    def start(http_port=0, grpc_port=0):
        return local_server.LocalServer(
            bundled("model_repository"),
            models=["sam2_encoder", "sam2_decoder"],
            http_port=http_port,
            grpc_port=grpc_port,
            heal=False,
        )

    def click_until_it_fails(client, clicks):
        try:
            while True:
                clicks.append(client.predict(POINT))
        except Exception as error:
            return error

    with contextlib.ExitStack() as stack:
        with start() as first, ThreadPoolExecutor(2) as pool:
            urls = (first.http_url, first.grpc_url)
            clients = [stack.enter_context(SAM2TritonClient(url, retries=0, timeout=30)) for url in urls]
            for client in clients:
                client.set_image(image_path)
            clicks = [[], []]
            jobs = [pool.submit(click_until_it_fails, *each) for each in zip(clients, clicks, strict=True)]
            wait_until(lambda: all(clicks) or any(job.done() for job in jobs))
            os.kill(first.pid, signal.SIGKILL)
            errors = [job.result(60) for job in jobs]
        assert all(clicks)
        assert [type(error) for error in errors] == [ServerUnreachableError] * 2
        with start(*(int(url.rpartition(":")[2]) for url in urls)):
            for client in clients:
                masks, _ = client.predict(POINT)
                assert masks.shape == (1, 1, 256, 256)


def test_the_default_model_finds_the_objects_of_the_demo(server, images):
    """Real masks against the truth. The thresholds are a tenth below what the model card states."""
    (entry, *_) = json.loads((images / "demo.json").read_text())
    truth = np.asarray(Image.open(images / entry["truth"]))
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / entry["image"])
        points = [[item["point"]] for item in entry["objects"]]
        single, three = (client.segment(points, multimask_output=multimask) for multimask in (False, True))

    def iou(segment):
        wanted = truth == entry["objects"][segment.object_index]["label"]
        return intersection_over_union(segment.mask, wanted)

    best = [max(iou(segment) for segment in three if segment.object_index == n) for n in range(len(points))]
    assert np.mean([iou(segment) for segment in single]) > 0.80
    assert np.mean(best) > 0.80
