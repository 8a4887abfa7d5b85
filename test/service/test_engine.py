"""The service behind its routes: what is known of Triton, whose embeddings are whose, what is kept and counted."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest

from triton_sam.client.session_image import SessionImage
from triton_sam.errors import InferenceError
from triton_sam.families import get_family
from triton_sam.inputs.embeddings import ImageEmbeddings

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from support.conditions import wait_until
from support.faulty_proxy import FaultyProxy
from support.running_service import running_service
from support.tools import base64_of

from triton_sam.service.app import create_app
from triton_sam.service.engine import Engine, Pair
from triton_sam.service.metrics import Metrics
from triton_sam.service.settings import ServiceSettings
from triton_sam.service.store import PER_IMAGE, ImageStore, LegacyEmbeddingIndex, StoredImage


def test_embeddings_are_made_anew_when_another_model_would_decode_them(service_triton, images):
    async def ask():
        engine = Engine(ServiceSettings(url=service_triton.grpc_url), Metrics())
        await engine.start()
        try:
            pair = await engine.pair("sam2")
            image = await engine.store((images / "shapes.jpg").read_bytes())
            kept = await engine.embed(image, pair)
            assert isinstance(kept, SessionImage)
            assert await engine.embed(image, pair) is kept
            without_session = replace(pair, keeps_images=False)
            here = await engine.embed(image, without_session)
            assert not isinstance(here, SessionImage)
            newer = replace(without_session, version="2")
            anew = await engine.embed(image, newer)
            assert anew is not here
            assert list(image.embeddings.values()) == [anew]
            assert image.models == ["sam2"]
            assert len(await engine.segment(anew, newer, {"coords": [[200, 180]], "labels": [1]}, list)) == 1
        finally:
            await engine.stop()

    asyncio.run(ask())


def test_a_triton_that_hangs_is_asked_once_for_all_and_health_waits_for_nothing(monkeypatch):
    """Triton takes the connections and does not answer, until the test hangs up: no timeout ends the wait before."""
    monkeypatch.setattr("triton_sam.service.engine.PROBE_TIMEOUT", 300.0)
    monkeypatch.setattr("triton_sam.service.engine.WATCH_SECONDS", 3600)
    with socket.create_server(("127.0.0.1", 0)) as triton, ThreadPoolExecutor(11) as pool:
        triton.settimeout(60)
        at_start = pool.submit(hang_up, triton)  # the service looks for models before it serves
        with running_service(f"http://127.0.0.1:{triton.getsockname()[1]}") as service:
            at_start.result(60)
            asked = [pool.submit(service.http.get, "/v1/models") for _ in range(10)]
            # The request for the metrics is one of those that are worked on.
            wait_until(lambda: service.metric("triton_sam_service_requests_in_flight") == 11)
            answer = service.http.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
            assert not any(one.done() for one in asked)
            hang_up(triton)
            assert {one.result(60).status_code for one in asked} == {503}
        triton.settimeout(0)
        with pytest.raises(BlockingIOError):  # no other connection was made
            triton.accept()


def test_health_tells_that_triton_is_gone_and_that_it_is_back(service_triton):
    triton = urlsplit(service_triton.http_url)
    with FaultyProxy((triton.hostname, triton.port)) as proxy, running_service(f"http://127.0.0.1:{proxy.port}") as one:
        wait_until(lambda: one.http.get("/health").status_code == 200)
        proxy.mode = "refuse"
        proxy.drop()
        wait_until(lambda: one.http.get("/health").status_code == 503)
        proxy.mode = "pass"
        wait_until(lambda: one.http.get("/health").status_code == 200)


def test_an_answer_names_the_variant_that_stands_for_a_model(images):
    """test/unit/service/test_engine_pair.py says which one it is."""
    names = {"sam2.1_tiny": "sam2", "sam1": "sam1"}
    pairs = {name: Pair(name, get_family(family), "1", keeps_images=False) for name, family in names.items()}
    app = create_app(ServiceSettings(url="grpc://localhost:9", model="sam2", adapters=("osam",)))
    app.state.engine._pairs = lambda: pairs

    async def embed(image, pair):
        raise InferenceError(f"by {pair.name}")

    app.state.engine.embed = embed
    picture = (images / "shapes.jpg").read_bytes()
    with TestClient(app, base_url="http://localhost") as http:
        answer = http.post("/v1/images", files={"image": picture})
        assert answer.headers["x-model"] == "sam2.1_tiny"
        assert answer.json()["detail"].endswith("sam2.1_tiny")
        body = {"model": "sam:600m", "image": base64_of(picture)}
        assert http.post("/api/generate", json=body).headers["x-model"] == "sam1"


def hang_up(server):
    """Take a connection of a server's queue, and close it without an answer."""
    connection, _ = server.accept()
    connection.close()


def test_methods_that_callers_make_up_are_counted_as_one():
    with_token = {"authorization": "Bearer secret"}
    http = TestClient(create_app(ServiceSettings(token="secret")), base_url="http://localhost")
    for number in range(3):
        assert http.request(f"MADEUP{number}", "/v1/models").status_code == 401
        assert http.request(f"MADEUP{number}", "/nowhere", headers=with_token).status_code == 404
    assert http.get("/v1/models").status_code == 401
    text = http.get("/metrics", headers=with_token).text
    assert "MADEUP" not in text
    assert 'method="other",route="other",status="401"} 3.0' in text
    assert 'method="GET",route="other",status="401"} 1.0' in text


def test_the_store_forgets_what_was_used_longest_ago():
    store = ImageStore(2 * (PER_IMAGE + 40) + 20)
    for name in "abc":
        store.add(StoredImage(name, bytes(40), (1, 1)))
        store.get("a")
    assert [name for name in "abc" if store.get(name)] == ["a", "c"]
    assert store.nbytes == 2 * (PER_IMAGE + 40)


def test_a_picture_is_counted_with_its_embeddings_for_as_long_as_it_is_kept():
    store = ImageStore(1 << 20)
    image, other = (store.add(StoredImage(name, bytes(40), (1, 1))) for name in "ab")
    for version in "12":
        image.keep(("sam2", version, False), ImageEmbeddings("sam2", "sam2_encoder", (1, 1), {"a": np.zeros(1000)}))
        store.grown(image)
        assert store.nbytes == image.nbytes + other.nbytes == 2 * (PER_IMAGE + 40) + 8000
    assert store.remove("a")
    store.grown(image)  # an encoding that ends when the picture is forgotten
    assert store.nbytes == other.nbytes
    assert not store.remove("a")
    assert store.nbytes == other.nbytes


def test_small_pictures_are_no_way_around_the_limit():
    store, legacy_embeddings = ImageStore(10 * PER_IMAGE), LegacyEmbeddingIndex(10 * PER_IMAGE)
    for number in range(50):
        store.add(StoredImage(str(number), b"x", (1, 1)))
        legacy_embeddings.remember(bytes([number]), "sam2", b"x")
    assert len(store) == 9
    assert sum(legacy_embeddings.peek(bytes([number])) is not None for number in range(50)) == 9


def test_the_sources_handed_out_last_are_remembered():
    legacy_embeddings = LegacyEmbeddingIndex(2 * (PER_IMAGE + 40) + 20)
    for name in (b"1", b"2", b"1", b"3"):
        legacy_embeddings.remember(name, "sam2", bytes(40))
    assert [legacy_embeddings.peek(name) for name in (b"1", b"2", b"3")] == [
        ("sam2", bytes(40)),
        None,
        ("sam2", bytes(40)),
    ]


def test_only_a_server_with_all_models_of_concepts_finds_them(monkeypatch):
    engine = Engine(ServiceSettings(url="grpc://localhost:9"), Metrics())
    specs = {f"{name}_{role}": spec for name in ("sam2", "sam3") for role, spec in get_family(name).models.items()}
    models = ["sam2", "sam3", *specs]
    concepts = [f"sam3_{role}" for role in get_family("sam3").concepts]

    def config(name):
        sides = {"input": specs[name].input_names, "output": specs[name].output_names}
        return {side: [{"name": tensor} for tensor in tensors] for side, tensors in sides.items()}

    def finds(names):
        monkeypatch.setattr(engine._control, "ready_models", lambda: dict.fromkeys(names, "1"))
        return {name: pair.finds_concepts for name, pair in engine._pairs().items()}

    monkeypatch.setattr(engine._control, "model_config", config)
    assert finds([*models, *concepts]) == {"sam2": False, "sam3": True}
    assert finds([*models, *concepts[1:]]) == {"sam2": False, "sam3": False}
    assert finds([*models[:1], *models[2:], *concepts]) == {"sam2": False, "sam3": False}  # no session model
