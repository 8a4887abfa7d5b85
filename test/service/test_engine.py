"""The service behind its routes: what is known of Triton, whose embeddings are whose, what is kept and counted."""

import asyncio
import base64
import io
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from support.conditions import wait_until
from support.faulty_proxy import FaultyProxy
from support.in_process import InProcess, made_up_triton
from support.running_service import running_service
from support.tools import base64_of, osam_mask

from triton_sam import Cleanup, SamTritonClient
from triton_sam.client.session_image import SessionImage
from triton_sam.errors import ServerUnreachableError
from triton_sam.families import get_family
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.app import create_app
from triton_sam.service.engine import MODEL_HEADER, Engine
from triton_sam.service.metrics import Metrics
from triton_sam.service.problems import answer_headers
from triton_sam.service.settings import ServiceSettings
from triton_sam.service.store import PER_IMAGE, ImageStore, LegacyEmbeddingIndex, StoredImage


@pytest.mark.anyio
async def test_embeddings_are_made_anew_when_another_model_would_decode_them(service_triton, images):
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


def test_a_triton_that_hangs_is_asked_once_for_all_and_health_waits_for_nothing(monkeypatch):
    """Triton takes the connections and does not answer, until the test hangs up: no timeout ends the wait before."""
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
        assert one.http.get("/health").json()["status"] == "ok"
        assert one.metric("triton_sam_service_triton_up") == 1
        proxy.mode = "refuse"
        wait_until(lambda: proxy.drop() or one.http.get("/health").status_code == 503)
        assert one.metric("triton_sam_service_triton_up") == 0
        proxy.mode = "pass"
        wait_until(lambda: one.http.get("/health").status_code == 200)


def test_an_answer_names_the_variant_that_stands_for_a_model(images):
    picture = (images / "shapes.jpg").read_bytes()
    with (
        made_up_triton({"sam2.1_tiny": "sam2", "sam1": "sam1"}, []) as triton,
        running_service(triton.url, adapters=("osam",)) as service,
    ):
        answer = service.http.post("/v1/images", files={"image": picture})
        assert (answer.headers["x-model"], answer.json()["models"]) == ("sam2.1_tiny", ["sam2.1_tiny"])
        body = {"model": "sam:600m", "image": base64_of(picture)}
        assert service.http.post("/api/generate", json=body).headers["x-model"] == "sam1"


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


# --- which model pair answers a caller: the one that it names, or else one that stands for it ------------------------


def server(pairs):
    return InProcess(lambda model, inputs, wanted: {}, pairs)


def asked(serves, name, default="sam2"):
    """Ask an engine for a pair; return the name of the pair, and the name that the answer tells."""

    async def ask():
        headers = {}
        answer_headers.set(headers)
        engine = Engine(ServiceSettings(url=triton.url, model=default), Metrics())
        try:
            return (await engine.pair(name)).name, headers.get(MODEL_HEADER)
        finally:
            await engine.stop()

    with server(serves) as triton:
        return asyncio.run(ask())


VARIANTS = {"sam1": "sam1", "sam2.1_large": "sam2", "sam2.1_tiny": "sam2"}
BOTH = {"sam2": "sam2", "sam2.1_tiny": "sam2", "sam1": "sam1"}
ANSWERS = {
    "named": (BOTH, "sam1", "sam2", ("sam1", None)),
    "a named variant": (BOTH, "sam2.1_tiny", "sam2", ("sam2.1_tiny", None)),
    "the default": (BOTH, None, "sam2.1_tiny", ("sam2.1_tiny", None)),
    "an empty name": (BOTH, "", "sam2", ("sam2", None)),
    "a variant of the named family": (VARIANTS, "sam2", "sam1", ("sam2.1_large", "sam2.1_large")),
    "a variant with another name": ({"mine": "sam2"}, "sam2", "sam1", ("mine", "mine")),
    "a variant of the default family": (VARIANTS, None, "sam2", ("sam2.1_large", "sam2.1_large")),
    "the first pair for a default that is not served": (VARIANTS, None, "sam3", ("sam1", "sam1")),
    "the same for an empty name": (VARIANTS, "", "sam3", ("sam1", "sam1")),
}
"""What Triton serves, the name and the default, and the pair with the name that the answer tells."""


@pytest.mark.parametrize(("serves", "name", "default", "answers"), ANSWERS.values(), ids=ANSWERS)
def test_the_pair_of_a_caller(serves, name, default, answers):
    assert asked(serves, name, default) == answers


def test_a_triton_without_models_says_why():
    with pytest.raises(ServerUnreachableError, match="has no models ready: wait while it loads"):
        asked({}, None)


def test_a_model_that_was_loaded_since_the_last_look_is_found_and_known_ones_cost_no_look():
    looks = []

    async def story(triton):
        engine = Engine(ServiceSettings(url=triton.url), Metrics())
        look = engine.look
        engine.look = lambda: (looks.append(1), look())[1]
        try:
            assert (await engine.pair("sam1")).name == "sam1"
            assert not (await engine.pair("sam1")).keeps_images
            assert len(looks) == 1
            triton.add_pair("sam2", "sam2")
            triton.add_session_model("sam2")
            assert (await engine.pair("sam2")).keeps_images
            assert len(looks) == 2
        finally:
            await engine.stop()

    with server({"sam1": "sam1"}) as triton:
        asyncio.run(story(triton))


# --- all families, whose networks are made up: the same masks as the Python client's ---------------------------------


FAMILIES = ("sam1", "sam2", "sam3", "mobilesam", "edgetam", "samhq")
ALIAS = "my_sam"
PAIRS = {**{name: name for name in FAMILIES}, ALIAS: "sam2"}
BOX = [180, 60, 420, 330]


@pytest.fixture(scope="module")
def family_triton():
    with made_up_triton(PAIRS, FAMILIES) as server:
        yield server


@pytest.fixture(scope="module")
def family_service(family_triton):
    with running_service(family_triton.url, adapters=("osam",)) as running:
        yield running


@pytest.fixture(scope="module")
def photo(images):
    return (images / "coffee.jpg").read_bytes()


def client_of(triton, name, photo):
    client = SamTritonClient(triton.url, PAIRS[name], model_name=name)
    client.set_image(photo)
    return client


def test_models_are_listed(family_service):
    listed = family_service.http.get("/v1/models").json()["models"]
    assert {each["name"]: (each["family"], each["keeps_images"]) for each in listed} == {
        name: (family, name != ALIAS)  # a pair without a session model, as aliases of earlier versions
        for name, family in PAIRS.items()
    }
    assert [each["name"] for each in listed if each["default"]] == ["sam2"]
    assert {each["family"]: each["takes_mask"] for each in listed} == {name: name != "sam3" for name in FAMILIES}
    legacy = {name: [name, ALIAS] if name == "sam2" else [name] for name in FAMILIES}
    assert family_service.http.get("/models").json() == {"default": "sam2", "models": legacy}


TWO = [[[300, 200]], [[150, 250], [9, 9]]]
OBJECTS = [{"points": TWO[0]}, {"points": TWO[1], "labels": [1, 0]}]
CLEANUP = {"max_hole_area": 30, "max_sprinkle_area": 30, "smooth": 3, "keep_clicked": True, "clip_to_box": True}
CLEANED = {"points": [[300, 200]], "box": BOX, "cleanup": CLEANUP}


@pytest.mark.parametrize("name", PAIRS)
def test_v1_masks_equal_the_python_clients(family_service, family_triton, photo, name):
    image = family_service.upload(photo, model=name)
    assert name in image["models"]
    with client_of(family_triton, name, photo) as client:
        for prompt, body in (
            ({"point_coords": [[300, 200]], "point_labels": [1]}, {"points": [[300, 200]]}),
            ({"box": BOX, "multimask_output": True}, {"box": BOX, "multimask": True}),
            ({"box": [BOX, [10, 10, 90, 90]]}, {"objects": [{"box": BOX}, {"box": [10, 10, 90, 90]}]}),
            ({"point_coords": TWO, "point_labels": [[1], [1, 0]]}, {"objects": OBJECTS}),
            ({"point_coords": [[300, 200]], "box": BOX, "cleanup": Cleanup(**CLEANUP)}, CLEANED),
        ):
            expected = client.segment(**prompt)
            assert any(0 < each.area < each.mask.size for each in expected)
            answer = family_service.http.post(f"/v1/images/{image['id']}/segment", json={**body, "model": name})
            assert answer.status_code == 200, answer.text
            assert [answer.json()[each] for each in ("model", "width", "height")] == [name, 600, 400]
            for mask, wanted in zip(answer.json()["masks"], expected, strict=True):
                np.testing.assert_array_equal(rle_to_mask(mask["rle"]), wanted.mask)
                assert mask["score"] == pytest.approx(wanted.score, abs=1e-5)
                facts = (mask["object"], mask["candidate"], mask["area"])
                assert facts == (wanted.object_index, wanted.candidate, wanted.area)
                if wanted.box is not None:
                    x1, y1, x2, y2 = wanted.box
                    assert mask["bbox"] == [x1, y1, x2 - x1, y2 - y1]


@pytest.mark.parametrize(
    ("family", "points", "labels", "ours", "is_single"),
    [
        ("sam1", [[300, 200]], [1], {"point_coords": [[300, 200]]}, False),
        ("sam1", [[300, 200], [9, 9]], [1, 0], {"point_coords": [[300, 200], [9, 9]], "point_labels": [1, 0]}, True),
        ("sam1", [BOX[:2], BOX[2:]], [2, 3], {"box": BOX}, True),
        ("mobilesam", [BOX[:2], BOX[2:], [300, 200]], [2, 3, 1], {"point_coords": [[300, 200]], "box": BOX}, True),
        ("sam2", [BOX[:2], BOX[2:], [300, 200]], [2, 3, 1], {"point_coords": [[300, 200]], "box": BOX}, False),
    ],
)
def test_osam_gets_the_single_mask_of_sam1_for_more_than_a_point(
    family_service, family_triton, photo, family, points, labels, ours, is_single
):
    with client_of(family_triton, family, photo) as client:
        expected = max(client.segment(**ours, multimask_output=not is_single), key=lambda each: each.score)
        others = client.segment(**ours, multimask_output=is_single)
    prompt = {"points": points, "point_labels": labels}
    body = {"model": family, "image": base64_of(photo), "prompt": prompt}
    answer = family_service.http.post("/api/generate", json=body)
    [annotation] = answer.json()["annotations"]
    assert annotation["score"] == pytest.approx(expected.score, abs=1e-6)
    assert expected.score not in [each.score for each in others]
    np.testing.assert_array_equal(osam_mask(annotation, expected.mask.shape), expected.mask)


@pytest.mark.parametrize("family", ["sam1", "sam3"])
def test_the_contract_of_2024(family_service, family_triton, photo, family):
    with client_of(family_triton, family, photo) as client:
        (expected,) = client.segment([[300, 200]], [1])
    form, point = {"model_version": family}, {"x": "300", "y": "200"}
    answer = family_service.http.post("/prediction", data={**form, **point}, files={"image": photo})
    np.testing.assert_array_equal(pixels(answer) == 255, expected.mask)
    embeddings = family_service.http.post("/embedded_model", data=form, files={"image": photo})
    assert len(base64.b64decode(embeddings.text)) == 4 * 256 * (64 if family == "sam1" else 72) ** 2
    size = {"img_x": "600", "img_y": "400"}
    answer = family_service.http.post(
        "/from_model", data={**form, **point, **size}, files={"model": embeddings.content}
    )
    np.testing.assert_array_equal(pixels(answer) == 255, expected.mask)


def pixels(answer):
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as picture:
        return np.asarray(picture)
