"""``/v1/images/{id}/everything``: one document, events, formats, limits, cancel, hang-up, problems."""

import asyncio
import base64
import dataclasses
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from support.conditions import PATIENCE, wait_until
from support.drawn_server import REACH, drawn_service, inside, objects
from support.running_service import events_of, problem

from triton_sam.errors import ServerBusyError
from triton_sam.everything.parameters import Parameters
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.everything import EverythingRequest, Search

EVENTS = {"Accept": "text/event-stream"}


SERVICE = {"max_searches": 2}


@pytest.fixture(scope="module")
def path(drawn, images):
    return f"/v1/images/{drawn.service.upload((images / 'shapes.jpg').read_bytes())['id']}/everything"


def searches(running):
    return running.service.app.state.engine.budgets.searches.used


def listen(http, path, **body):
    with http.stream("POST", path, json=body, headers=EVENTS) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events_of(answer.iter_lines()))


def test_all_objects_in_one_document(http, path):
    answer = http.post(path, json={}).json()
    assert (answer["width"], answer["height"], answer["model"], answer["points"]) == (800, 600, "sam2", 32 * 32)
    for number, (each, mask) in enumerate(zip(answer["objects"], objects(), strict=True)):
        np.testing.assert_array_equal(rle_to_mask(each["rle"]), mask)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
        assert (each["id"], each["area"], each["bbox"]) == (number, mask.sum(), box)
        assert each["crop_box"] == [0, 0, 800, 600]
        np.testing.assert_allclose(each["point"], inside(number), atol=REACH)


def test_parameters_reach_the_search(http, path, drawing):
    options = {"points_per_side": 8, "crop_n_layers": 1, "pred_iou_thresh": 0.5, "mask_threshold": -2.5}
    cleanup = {"max_hole_area": 8, "keep_clicked": True}
    answer = http.post(path, json={**options, "cleanup": cleanup, "model": "sam2"})
    assert answer.json()["points"] == 5 * 8 * 8
    given = drawing.parts()[0]["parameters"]
    assert given.pop("cleanup").items() >= cleanup.items()
    sent = {name: value for name, value in options.items() if name not in ("points_per_side", "crop_n_layers")}
    assert given.items() >= sent.items()


def test_every_parameter_of_the_generators_is_there():
    elsewhere = {"point_grids", "left_open"}  # in Python only
    asked = set(EverythingRequest.model_fields)
    assert {each.name for each in dataclasses.fields(Parameters)} - elsewhere <= asked
    values = {"mask_threshold": 3.0, "use_m2m": True, "stability_score_offset": 2.0, "min_mask_region_area": 4}
    parameters = EverythingRequest(**values).parameters("sam2")
    assert {name: getattr(parameters, name) for name in values} == values


def test_objects_come_as_they_are_found_and_better_ones_replace_them(http, path, drawing):
    drawing.improves = True
    heard = listen(http, path)
    assert [data["done"] for name, data in heard if name == "progress"] == [*range(8, 32 * 32 + 1, 8), 32 * 32]
    count, there = len(objects()), {}
    for _, data in (each for each in heard if each[0] == "objects"):
        there |= {each["id"]: each["rle"] for each in data["objects"]}
        for number in data["removed"]:
            del there[number]
    assert list(there) != list(range(count))
    assert (heard[-1][0], heard[-1][1]["objects"]) == ("done", count)
    for rle, mask in zip(there.values(), objects(), strict=True):
        np.testing.assert_array_equal(rle_to_mask(rle), mask)
    found = http.post(path, json={"format": "png"}).json()["objects"]
    assert [each["id"] for each in found] == list(there)
    with Image.open(io.BytesIO(base64.b64decode(found[0]["png"]))) as png:
        np.testing.assert_array_equal(np.asarray(png) > 0, objects()[0])


def test_an_empty_answer_says_why(http, path, drawing):
    drawing.finds = False
    answer = http.post(path, json={}).json()
    assert answer["objects"] == []
    assert "pred_iou_thresh" in answer["detail"]
    assert "pred_iou_thresh" in listen(http, path)[-1][1]["detail"]


def test_a_failure_at_once_and_one_on_the_way(running, http, path, drawing):
    drawing.everything.failure = ServerBusyError("too many searches wait")
    assert "too many searches wait" in problem(http.post(path, json={}), 503)["detail"]
    *others, (name, data) = listen(http, path)
    assert "objects" in [name for name, _ in others]
    assert (name, data["status"]) == ("error", 503)
    wait_until(lambda: searches(running) == 0)


REFUSED = (
    ({"points_per_side": -1}, "points_per_side"),
    ({"points_per_side": 10_000}, "points_per_side"),
    ({"pred_iou_thresh": 1.5}, "pred_iou_thresh"),
    ({"crop_n_layers": 9}, "crop_n_layers"),
    ({"min_mask_region_area": 10**400}, "min_mask_region_area"),
    ({"cleanup": {"smooth": 1e9}}, "cleanup.smooth"),
    ({"format": "geojson"}, "format"),
    ({"points": 3}, "points"),
)


def test_what_cannot_be_is_refused(http, path, drawing):
    for body, where in REFUSED:
        assert problem(http.post(path, json=body), 422)["errors"][0]["where"] == f"body.{where}"
    assert not drawing.parts()


def test_fields_that_contradict_each_other_are_refused(http, path, drawing):
    refusal = problem(http.post(path, json={"cleanup": {"mask_threshold": 1}}), 422)
    assert refusal["detail"] == "a search has the parameter mask_threshold: leave it out of cleanup"
    assert not drawing.parts()


def test_only_some_images_are_searched_at_a_time(running, http, path, drawing):
    drawing.everything.limit = 1
    with (
        http.stream("POST", path, json={}, headers=EVENTS) as first,
        http.stream("POST", path, json={}, headers=EVENTS),
    ):
        heard = events_of(first.iter_lines())  # its end would close the connection
        next(heard)
        assert searches(running) == 2
        assert problem(http.post(path, json={}), 503)["code"] == "busy"
    wait_until(lambda: searches(running) == 0)
    drawing.everything.limit = None
    assert http.post(path, json={}).status_code == 200


def test_a_search_keeps_its_place_until_its_masks_are_written(running, http, path, drawing, monkeypatch):
    begun, goes_on, write = threading.Event(), threading.Event(), Search.write

    async def wait(search, found):
        begun.set()
        await asyncio.to_thread(goes_on.wait)
        return await write(search, found)

    monkeypatch.setattr(Search, "write", wait)
    thread = threading.Thread(target=http.post, args=(path,), kwargs={"json": {}})
    thread.start()
    begun.wait()
    used = searches(running)
    goes_on.set()
    thread.join()
    assert used == 1
    wait_until(lambda: searches(running) == 0)


def test_a_search_is_cancelled_by_its_session_id(running, http, path, drawing):
    """That of the document; the events of a search that its reader cancels are in test_page_searches.py."""
    drawing.everything.limit = 1
    cancelled = drawing.cancelled
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(http.post, path, json={"session_id": "mine"})
        assert drawing.everything.reached.wait(PATIENCE)
        wait_until(lambda: http.post("/cancel_pending", data={"session_id": "mine"}).text == "1 cancelled")
        problem(answer.result(), 499)
    wait_until(lambda: drawing.cancelled > cancelled and searches(running) == 0)
    assert http.post("/cancel_pending", data={"session_id": "mine"}).text == "0 cancelled"


def test_a_search_takes_no_longer_than_it_may(images):
    with drawn_service(search_seconds=0.3) as drawn:
        service, drawing = drawn.service, drawn.server
        drawing.everything.limit = 1
        path = f"/v1/images/{service.upload((images / 'shapes.jpg').read_bytes())['id']}/everything"
        assert problem(service.http.post(path, json={}), 504)["code"] == "timeout"
        with service.http.stream("POST", path, json={}, headers=EVENTS) as answer:
            heard = list(events_of(answer.iter_lines()))
            # A busy machine may have no event by then, and the answer itself has the status.
            assert answer.status_code == 504 or heard[-1][1]["status"] == 504
        wait_until(lambda: service.app.state.engine.budgets.searches.used == 0)


def test_the_service_stops_while_it_searches(images):
    with drawn_service() as drawn:
        service, drawing = drawn.service, drawn.server
        drawing.everything.limit = 1
        path = f"/v1/images/{service.upload((images / 'shapes.jpg').read_bytes())['id']}/everything"
        with service.http.stream("POST", path, json={}, headers=EVENTS) as answer:
            heard = events_of(answer.iter_lines())
            next(heard)
            assert drawing.everything.reached.wait(PATIENCE)
            searches = service.app.state.searches
            next(iter(searches._running)).task.get_loop().call_soon_threadsafe(searches.stop)
            assert list(heard)[-1][1]["code"] == "stopping"
            wait_until(lambda: drawing.cancelled >= 1)


def test_a_server_without_it_is_named(http, path, running, monkeypatch):
    engine = running.service.app.state.engine
    pair = engine.state.pairs["sam2"]
    monkeypatch.setitem(engine.state.pairs, "sam2", type(pair)(pair.name, pair.family, pair.version, False))
    assert problem(http.post(path, json={}), 404)["code"] == "no_everything"
    assert http.get("/v1/models").json()["models"][0]["finds_everything"] is False
