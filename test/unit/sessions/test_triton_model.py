"""How the session model behaves towards Triton, in ways that no client sees. test_session_model tests its answers."""

import json
import re

import numpy as np
import pytest
from support.conditions import wait_until
from support.fuzzing import GOOD_B64, PAIR, compute, image_file
from support.pb_utils import Request, Triton, arguments

from triton_sam.client.session_image import text
from triton_sam.errors import InferenceError
from triton_sam.families import get_family
from triton_sam.sessions.tasks import Reports, Task, Waiting, waiting
from triton_sam.wire import contract

ENTRY = "image.triton_model"
POINT = {"point_coords": np.float32([[[3, 3]]]), "point_labels": np.float32([[1]])}
SEARCH = {
    "image": text(image_file()),
    "everything": text(b'{"points_per_side": 2, "pred_iou_thresh": 0, "stability_score_thresh": 0}'),
}


@pytest.fixture
def triton():
    return Triton(compute)


@pytest.fixture
def model(triton):
    with triton.serving(ENTRY, arguments("sam2", max_pending="2", threads="2", **PAIR)) as model:
        yield model


def asked(model, *wanted, **tensors):
    request = Request(wanted, tensors)
    model.execute([request])
    return request


@pytest.mark.parametrize(
    ("output", "inputs"), [("masks", {"image": text(image_file()), **POINT}), ("result_json", SEARCH)]
)
def test_a_cancelled_request_is_not_computed(model, triton, output, inputs):
    request = Request([output], inputs)
    request.cancelled = True
    model.execute([request])
    assert request.answer().code == "CANCELLED"
    assert not triton.calls


def test_a_search_that_is_cancelled_ends_after_the_decode_that_runs():
    request = Request(["result_json"], SEARCH)

    def cancel(model, inputs, wanted):
        request.cancelled = model == "sam2_decoder"
        return compute(model, inputs, wanted)

    triton = Triton(cancel)
    with triton.serving(ENTRY, arguments("sam2", **PAIR)) as model:
        model.execute([request])
        assert request.answer().code == "CANCELLED"
        # The work was done, and the cache has the image.
        wait_until(lambda: [triton.series.counts[name, None] for name in ("encodes_total", "decodes_total")] == [1, 1])
        wait_until(lambda: triton.series.gauges["cache_images", None][-1] == 1)
    assert [call.model for call in triton.calls] == ["sam2_encoder", "sam2_decoder"]


def uploaded(model):
    return asked(model, "image_id", image=text(image_file())).answer().tensors["image_id"]


def test_more_than_may_wait_is_refused_at_once(model, triton):
    image_id = uploaded(model)
    triton.gate.clear()
    waiting = [asked(model, "masks", image_id=image_id, **POINT) for _ in range(2)]
    as_json = asked(model, "result_json", prompt_json=text(b"{}"))
    assert asked(model, "masks", image_id=text(b"x")).answer().code == "UNAVAILABLE"
    assert asked(model, "masks", prompt_json=text(b"{}")).answer().code == "UNAVAILABLE"
    assert json.loads(as_json.answer().tensors["result_json"][0])["error"]["code"] == "BUSY"
    assert not any(request.is_answered for request in waiting)
    triton.gate.set()
    assert [request.answer().code for request in waiting] == ["", ""]


def test_each_kind_of_requests_has_places_of_its_own(model, triton):
    image_id = uploaded(model)
    triton.gate.clear()
    images = [asked(model, "image_id", image=text(image_file(form))) for form in ("BMP", "TIFF", "WEBP")]
    jobs = [asked(model, "result_json", **SEARCH) for _ in range(3)]
    clicks = [asked(model, "masks", image_id=image_id, **POINT) for _ in range(3)]
    for kind in (images, jobs, clicks):
        assert kind[2].answer().code == "UNAVAILABLE"
    triton.gate.set()
    assert {request.answer().code for kind in (images, jobs, clicks) for request in kind[:2]} == {""}
    assert json.loads(jobs[0].answer().tensors["result_json"][0])["decodes"] == 4


def test_execute_waits_for_a_traced_request_and_its_calls_are_steps_of_the_trace(model, triton):
    """Triton frees the trace when `execute` returns. A job runs without it, or every click would wait for its end."""
    traced = Request(["masks"], {"image": text(image_file()), **POINT}, trace="00-abc")
    model.execute([traced])
    assert traced.is_answered
    assert [call.trace is traced.trace() for call in triton.calls] == [True, True]
    job = Request(["result_json"], SEARCH, trace="00-abc")
    model.execute([job])
    assert job.answer().code == ""
    assert {call.trace for call in triton.calls[2:]} == {None}


def test_the_metrics_have_the_times_of_all_requests_but_refused_ones(triton):
    """One thread serves clicks here. Requests that are cancelled or fail wait no longer than others."""
    series = triton.series
    with triton.serving(ENTRY, arguments("sam2", max_pending="4", threads="1", **PAIR)) as model:
        image_id = uploaded(model)
        triton.gate.clear()
        ids = (image_id, image_id, text(b"unknown"), image_id, image_id)
        requests = [asked(model, "masks", image_id=each, **POINT) for each in ids]
        wait_until(lambda: series.gauges["waiting_requests", "click"][-1:] == [3])
        requests[1].cancelled = True
        triton.gate.set()
        codes = [request.answer().code for request in requests]
        assert codes == ["", "CANCELLED", "NOT_FOUND", "", "UNAVAILABLE"]
        wait_until(lambda: len(series.seconds["waiting_seconds", "click"]) == 4)
        wait_until(lambda: series.gauges["waiting_requests", "click"][-1] == 0)
        wait_until(lambda: series.counts["failures_total", None] == series.counts["refusals_total", None] == 1)
    took, waited = (series.seconds[name, "click"] for name in ("request_seconds", "waiting_seconds"))
    assert len(took) == 3
    assert all(mine <= whole for mine, whole in zip([waited[0], *waited[2:]], took, strict=True))
    assert len(series.seconds["request_seconds", "image"]) == 1
    assert series.counts["faults_total", None] == 0
    assert series.threads <= {"MainThread", "report_0"}  # the main thread before the first request


def test_images_that_wait_for_the_encoder_wait(triton):
    """Two images are encoded at a time, on however many threads."""
    gauge = triton.series.gauges["waiting_requests", "image"]
    with triton.serving(ENTRY, arguments("sam2", **PAIR)) as model:
        triton.gate.clear()
        images = [asked(model, "image_id", image=text(image_file(form))) for form in ("BMP", "TIFF", "WEBP", "PNG")]
        wait_until(lambda: gauge[-1:] == [2])
        triton.gate.set()
        wait_until(lambda: gauge[-1] == 0)
        assert [request.answer().code for request in images] == [""] * 4


@pytest.mark.parametrize(
    ("wanted", "tensors", "message"),
    [
        ("masks", {"image": text(image_file())}, "BAD_REQUEST: .* request some of image_id, image_size$"),
        ("masks", {"image_b64": text(GOOD_B64)}, "BAD_REQUEST: .* request some of image_id, image_size, result_json$"),
        ("image_id", {"image_b64": text(b"AA==")}, "BAD_IMAGE: the image"),
    ],
)
def test_an_answer_without_what_was_asked_for_is_an_error(model, triton, wanted, tensors, message):
    """Triton would call an answer without any output a success."""
    answer = asked(model, wanted, **tensors).answer()
    assert answer.code == "INVALID_ARG"
    assert re.match(message, answer.message)
    wait_until(lambda: triton.series.counts["failures_total", None] == 1)
    assert triton.series.counts["faults_total", None] == 0


@pytest.mark.parametrize("tensors", [{"image": text(image_file()), **POINT}, {"image_id": text(b"unknown")}])
def test_an_answer_that_cannot_be_sent_is_a_failure_that_is(model, triton, tensors):
    """Shared memory may be full of others' tensors; the client would wait for its whole timeout."""
    request = Request(["masks"], tensors)
    request.unsent = 1
    model.execute([request])
    answer, counts = request.answer(), triton.series.counts
    assert answer.code == "INTERNAL"
    assert answer.message == ("INTERNAL: the answer could not be sent: Failed to increase the shared memory pool size")
    wait_until(lambda: counts["failures_total", None] == counts["faults_total", None] == 1)


def test_parameters_that_cannot_work(triton):
    module = triton.load(ENTRY)
    names = ("cache_bytes", "threads", "max_pending", "max_jobs")
    for name, value in [*((name, "0") for name in names), ("threads", "-1"), ("threads", "many"), ("threads", "")]:
        with pytest.raises(triton.module.TritonModelException, match=f"parameter {name} must be a whole number"):
            module.TritonPythonModel().initialize(arguments("sam2", **{**PAIR, name: value}))
    size = contract.embedding_bytes(get_family("sam2"))
    assert size == 16_777_216
    with pytest.raises(triton.module.TritonModelException, match="the embeddings of one image take 16777216"):
        module.TritonPythonModel().initialize(arguments("sam2", cache_bytes=str(size - 1), **PAIR))


def test_other_weights_have_other_ids(triton, tmp_path):
    identity, folder = triton.load("bls").weights_identity, tmp_path / "sam2_encoder"
    assert identity(folder) == identity(folder)
    (folder / "1").mkdir(parents=True)
    seen = {identity(folder)}
    for version, content in (
        ("1", b"a"),
        ("1", b"b"),
        ("2", b"b"),
        ("10", b"c" * 200_000),
        ("10", b"d" + b"c" * 199_999),
    ):
        (folder / version).mkdir(exist_ok=True)
        (folder / version / "model.onnx").write_bytes(content)
        seen.add(identity(folder))
    assert len(seen) == 5  # the same file as version 2 is the same encoder


# Calls of Python models to other models, whose answers may lack an output, and the stand-in for Triton's module


def call(*lacks):
    """Call a decoder whose answers lack some outputs; return the Triton, and the outputs that came."""
    triton = Triton(lambda model, inputs, wanted: {name: np.zeros(1, np.float32) for name in wanted})
    triton.lacks = list(lacks)
    return triton, set(triton.load("bls").call("sam2_decoder", [], ("masks", "iou"), ("cpu", 0)))


def test_an_answer_that_lacks_an_output_is_asked_for_again():
    triton, outputs = call(("masks",))
    assert outputs == {"masks", "iou"}
    assert triton.warnings == ["sam2_decoder answered without masks"]


def test_a_second_answer_that_lacks_an_output_is_an_error():
    with pytest.raises(InferenceError, match="sam2_decoder failed: its answer lacks iou, which the request asked for"):
        call(("masks", "iou"), ("iou",))


# Which times of a request count as waiting, and when they are reported

KIND = "click"


@pytest.fixture
def numbers():
    """The numbers of waiting requests that were reported."""
    return [0]


@pytest.fixture
def arrived(numbers):
    """Makes a request that arrives."""
    reports = Reports()
    counts = Waiting([KIND, "image"], reports, lambda kind, number: numbers.append(number))
    yield lambda: Task(KIND, counts)
    reports.close()


@pytest.fixture
def now(monkeypatch):
    """A clock that the tests set."""
    instant = [100.0]
    monkeypatch.setattr("triton_sam.sessions.tasks.time.perf_counter", lambda: instant[0])
    return instant


def test_waiting_counts_before_the_work_and_in_its_pauses(arrived, now):
    task = arrived()
    now[0] += 5
    with task:
        now[0] += 1
        with waiting():
            now[0] += 2
        with waiting() as end:
            now[0] += 2
            end()
            now[0] += 3
        assert task.took is None
        task.answered()
        now[0] += 7
    assert (task.waited, task.took) == (9.0, 13.0)


def test_work_that_fails_leaves_nobody_waiting(arrived, numbers):
    with pytest.raises(OSError, match="x"), arrived(), waiting():
        raise OSError("x")
    refused = arrived()
    wait_until(lambda: numbers[-1] == 1)
    refused.release()
    wait_until(lambda: numbers[-1] == 0)
