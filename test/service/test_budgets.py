"""Attempts to stall or to bloat the service, at a small size."""

import asyncio
import errno
import json
import socket
import tempfile
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi import Request, Response
from PIL import Image
from support.conditions import PATIENCE, wait_until
from support.contents import encoded
from support.running_service import problem, running_service, service_without_triton, used

from triton_sam.service import engine as engine_module
from triton_sam.service.bodies import Answer, UnreadError
from triton_sam.service.budgets import Budgets
from triton_sam.service.cancellation import CancellableRequests
from triton_sam.service.logs import LOGGER
from triton_sam.service.metrics import Metrics
from triton_sam.service.settings import ServiceSettings

SEGMENT = f"/v1/images/{'0' * 32}/segment"
PART = b'\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'


@pytest.fixture
def http():
    with service_without_triton() as client:
        yield client


def connection(service, head):
    """Open a connection, and send the head of a request."""
    port = int(service.url.rsplit(":", 1)[1])
    opened = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    opened.sendall(head)
    return opened


def unfinished(length=1000):
    return (
        b"POST /v1/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: %d\r\n\r\n--b" % length
    )


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_a_large_request_without_a_file_is_refused_before_it_is_read(service):
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {11 << 20}\r\nConnection: close"
    with connection(service, f"POST {SEGMENT} HTTP/1.1\r\n{fields}\r\n\r\n{{".encode()) as opened:
        answer = opened.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"2 MiB" in answer


def test_a_request_with_many_values_is_refused_before_it_is_read(http):
    for path, content, kind in (
        (SEGMENT, json.dumps({f"{number}": 0 for number in range(50_000)}), "application/json"),
        (SEGMENT, json.dumps({"objects": [{"points": [["x", "y"]] * 1024}] * 64}), "application/json"),
        ("/cancel_pending", "a=1&" * 50_000, "application/x-www-form-urlencoded"),
    ):
        assert "values" in problem(http.post(path, content=content, headers={"content-type": kind}), 413)["detail"]


def test_only_the_first_faults_of_a_request_are_described(http):
    for body in (
        {f"{'a' * 200}{number}": 0 for number in range(10_000)},
        {"objects": [{"points": [["x"] * 2] * 100}] * 60},
    ):
        members = problem(http.post(SEGMENT, json=body), 422)
        assert 1 <= len(members["errors"]) <= 10
        assert len(json.dumps(members)) < 4000


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_uploads_that_do_not_arrive_hold_no_places_and_end(service_triton):
    with running_service(service_triton.grpc_url, max_requests=2, body_seconds=2) as narrow:
        slow = [connection(narrow, unfinished()) for _ in range(6)]
        time.sleep(0.5)
        for path in ("/health", "/v1/models"):
            assert narrow.http.get(path).status_code == 200
        for opened in slow:
            answer = opened.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 408")
            assert b'"code": "slow"' in answer
            opened.close()


def test_requests_that_still_arrive_are_counted_and_health_is_exempt(service_triton):
    with running_service(service_triton.grpc_url, max_requests=1, body_seconds=PATIENCE) as narrow:
        slow = [connection(narrow, unfinished()) for _ in range(4)]
        wait_until(lambda: used(narrow, "receiving") == 4)
        answer = narrow.http.post("/cancel_pending", data={"session_id": "a"})
        assert problem(answer, 503)["code"] == "busy"
        assert answer.headers["retry-after"] == "1"
        assert narrow.http.get("/health").status_code == 200
        for opened in slow:
            opened.close()
        wait_until(lambda: narrow.http.post("/cancel_pending", data={"session_id": "a"}).status_code == 200)


def test_bodies_share_memory(service_triton, images, monkeypatch):
    monkeypatch.setattr("triton_sam.service.connections.LINGER_PAUSE", PATIENCE)  # of a client that still sends
    content = (images / "shapes.jpg").read_bytes() + bytes(200_000)
    size = 1 << 20
    with running_service(service_triton.grpc_url, max_body=size, max_json=size, body_bytes=size) as narrow:
        holder = connection(narrow, unfinished(1_000_000) + PART + bytes(990_000))
        wait_until(lambda: narrow.metric("triton_sam_service_budget_used") > 900_000)
        refused = narrow.http.post("/v1/images", files={"image": content})
        assert problem(refused, 503)["code"] == "busy"
        # Small bodies always fit.
        assert narrow.http.post("/cancel_pending", data={"session_id": "a"}).status_code == 200
        holder.close()
        wait_until(lambda: narrow.metric("triton_sam_service_budget_used") < 900_000)
        narrow.upload(content)


@pytest.mark.anyio
async def test_a_large_answer_is_written_in_pieces_and_counts_until_it_is_written():
    sent, going_on = [], asyncio.Event()

    async def send(message):
        sent.append(message)
        await going_on.wait()

    settings = ServiceSettings(answer_bytes=100_000)
    budgets = Budgets(settings, Metrics())
    answer = Answer(send, settings, budgets)
    start = {"type": "http.response.start", "status": 200}
    await answer.send(start)
    writing = asyncio.create_task(answer.send({"type": "http.response.body", "body": bytes(150_000)}))
    await asyncio.sleep(0.01)
    assert budgets.answers.used == 150_000 - 65_536
    going_on.set()
    await writing
    assert budgets.answers.used == 0
    start, *pieces = sent
    assert start["status"] == 200
    assert [len(piece["body"]) for piece in pieces] == [65_536, 65_536, 18_928]
    assert [piece["more_body"] for piece in pieces] == [True, True, False]


def test_a_body_that_nobody_needs_neither_hides_its_fault_nor_saves_a_place(http):
    budgets, requests = http.app.state.engine.budgets, CancellableRequests(PATIENCE, Metrics())
    places = []

    async def work():
        places.append(budgets.places.used)
        await asyncio.Event().wait()

    async def route(request: Request):
        return await requests.run(request, work())

    http.app.add_api_route("/slow", route)
    answer = http.request("GET", "/slow", content=b"{" + b"," * 20_000, headers={"content-type": "application/json"})
    assert "values" in problem(answer, 413)["detail"]
    assert places == [1]


def test_an_answer_without_room_becomes_a_503_and_a_lone_one_always_has_room(http):
    async def large():
        return Response(bytes(150_000))

    http.app.add_api_route("/much", large)
    answers = http.app.state.engine.budgets.answers
    answers.limit = 1000
    assert len(http.get("/much").content) == 150_000
    with answers.take(1):
        refused = http.get("/much")
    assert problem(refused, 503)["code"] == "busy"
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-request-id"]
    assert answers.used == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_no_fault_of_the_service(http, monkeypatch, number):
    """The log says where. Starlette writes uploads of more than a megabyte to a temporary file."""

    def full(*_):
        raise OSError(number, "No space left on device")

    logged = Mock()
    monkeypatch.setattr(LOGGER, "error", logged)
    monkeypatch.setattr("starlette.datastructures.UploadFile.write", full)
    answer = http.post("/v1/images", files={"image": bytes(9)})
    assert problem(answer, 503)["code"] == "disk_full"
    assert "retry-after" in answer.headers
    assert logged.call_args.kwargs["extra"]["fields"]["folder"] == tempfile.gettempdir()


@pytest.mark.anyio
async def test_small_answers_that_nobody_reads_hold_nothing_for_ever():
    async def send(_):
        await asyncio.Event().wait()

    settings = ServiceSettings(timeout=0.01)
    answer = Answer(send, settings, Budgets(settings, Metrics()))
    await answer.send({"type": "http.response.start", "status": 200})
    with pytest.raises(UnreadError):
        await asyncio.wait_for(answer.send({"type": "http.response.body", "body": b"small"}), PATIENCE)


# --- masks and previews ----------------------------------------------------------------------------------------------


def test_many_objects_of_a_small_image_are_large_work(service, images, monkeypatch):
    taken = []
    workers = service.app.state.engine.budgets.workers
    run = workers.run
    monkeypatch.setattr(workers, "run", lambda pixels, *rest: taken.append(pixels) or run(pixels, *rest))
    image = service.upload((images / "shapes.jpg").read_bytes())
    path, pixels = f"/v1/images/{image['id']}/segment", image["width"] * image["height"]
    one = {"points": [[200, 180]]}
    for body in (one, {"objects": [one] * 3, "multimask": True}, {**one, "logits": True}):
        assert service.http.post(path, json=body).status_code == 200
    assert taken == [pixels + 256**2, pixels + 9 * 256**2, pixels + 5 * 256**2]


def test_a_preview_is_made_once_and_not_for_callers_who_left(service, monkeypatch):
    made, free = [], threading.Event()
    original = engine_module.to_jpeg

    def slow(content):
        made.append(len(content))
        assert free.wait(PATIENCE)
        return original(content)

    monkeypatch.setattr("triton_sam.service.engine.to_jpeg", slow)
    pixels = np.random.default_rng(7).integers(0, 9, (40, 60), np.uint16)
    buffer = encoded(Image.fromarray(pixels))
    image = service.upload(buffer)["id"]
    path = f"/v1/images/{image}/preview"
    for _ in range(8):
        opened = connection(service, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        wait_until(lambda: made)
        opened.close()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(service.http.get(path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    before = service.app.state.engine.images.nbytes
    assert service.http.get("/health").status_code == 200  # while the threads are busy
    free.set()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(made) <= 2  # there are two threads for small images
    wait_until(lambda: service.app.state.engine.images.nbytes == before + len(answers[0].content))
    service.http.delete(f"/v1/images/{image}")
