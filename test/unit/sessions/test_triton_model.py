"""The session model's side towards Triton, with a stand-in for the module that exists inside Triton alone.

What it answers is tested on a real server (test_session_model); here is what a server does not show.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.conditions import wait_until
from support.custom_metrics import Series
from support.fuzzing import GOOD_B64, EmptyModels, image_file, text

from triton_sam._common.bundle import bundled
from triton_sam.families import get_family
from triton_sam.wire import contract

POINT = {"point_coords": np.float32([[[3, 3]]]), "point_labels": np.float32([[1]])}


class Tensor:
    """pb_utils.Tensor."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array

    def shape(self) -> tuple[int, ...]:
        return self._array.shape


class Error(Exception):
    """pb_utils.TritonError."""

    INVALID_ARG, NOT_FOUND, UNAVAILABLE, CANCELLED, INTERNAL = (
        "INVALID_ARG",
        "NOT_FOUND",
        "BUSY",
        "CANCELLED",
        "INTERNAL",
    )

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        super().__init__(message)
        self.code = code


class Request:
    """A request from Triton, which is its own response sender."""

    def __init__(self, wanted: list[str], cancelled: bool = False, **tensors: np.ndarray) -> None:
        self._wanted, self._cancelled = wanted, cancelled
        self.refuses_to_send = 0
        self._tensors = [Tensor(name, array) for name, array in tensors.items()]
        self.answered = threading.Event()
        self.sent: list = []

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def get_response_sender(self) -> Request:
        return self

    def is_cancelled(self) -> bool:
        return self._cancelled

    def send(self, response: SimpleNamespace, flags: int) -> None:
        assert flags == 1
        if self.refuses_to_send:
            self.refuses_to_send -= 1
            raise RuntimeError("Failed to increase the shared memory pool size")
        self.sent.append(response)
        self.answered.set()

    def answer(self) -> SimpleNamespace:
        assert self.answered.wait(60)
        (response,) = self.sent
        return response


class Bls:
    """pb_utils.InferenceRequest."""

    gate = threading.Event()

    def __init__(self, model_name: str, inputs: list[Tensor], requested_output_names: list[str], **_: object) -> None:
        self.encodes = model_name == "sam2_encoder"
        self.inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        self.wanted = tuple(requested_output_names)

    def exec(self) -> SimpleNamespace:
        assert self.gate.wait(60)
        models = EmptyModels()
        arrays = models.encode(self.inputs) if self.encodes else models.decode({}, self.inputs, self.wanted)
        tensors = [Tensor(name, array) for name, array in arrays.items()]
        return SimpleNamespace(has_error=lambda: False, output_tensors=lambda: tensors)


@pytest.fixture
def series() -> Series:
    return Series()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, series: Series) -> ModuleType:
    """triton_model, imported inside of what it takes for Triton."""
    utils = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.TritonError, utils.InferenceRequest, utils.MetricFamily = Tensor, Error, Bls, series.family()
    utils.TritonModelException = type("TritonModelException", (Exception,), {})
    utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, utils.TRITONSERVER_MEMORY_CPU = 1, 0
    utils.PreferredMemory = lambda kind, device: (kind, device)
    utils.Logger = SimpleNamespace(log_warn=lambda text: None)
    utils.InferenceResponse = lambda tensors, error=None: SimpleNamespace(
        tensors={tensor.name(): tensor.as_numpy() for tensor in tensors}, error=error
    )
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    Bls.gate.set()
    names = ("triton_sam.sessions.bls", "triton_sam.sessions.image.triton_model")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield [importlib.import_module(name) for name in names][-1]
    for name in names:
        sys.modules.pop(name, None)


def arguments(**changed: str) -> dict:
    parameters = {"family": "SAM2", "encoder": "sam2_encoder", "decoder": "sam2_decoder", **changed}
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    return {
        "model_config": json.dumps(config),
        "model_name": "sam2",
        "model_repository": str(bundled("model_repository") / "sam2"),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }


@pytest.fixture
def model(module):
    made = module.TritonPythonModel()
    made.initialize(arguments(max_pending="2", threads="2"))
    yield made
    Bls.gate.set()
    made.finalize()


@pytest.mark.parametrize(
    "wanted", [["masks"], ["image_id"], ["masks", "iou_predictions"], ["image_id", "image_size", "masks"]]
)
def test_nothing_is_sent_that_was_not_asked_for(model, wanted) -> None:
    """Triton 24.10 would drop the rest without holding Python's lock: heap damage."""
    request = Request(wanted, image=text(image_file()), **POINT)
    model.execute([request])
    assert list(request.answer().tensors) == sorted(
        wanted, key=["image_id", "image_size", "masks", "iou_predictions"].index
    )


def test_a_cancelled_request_is_not_computed(model) -> None:
    request = Request(["masks"], cancelled=True, image=text(image_file()), **POINT)
    model.execute([request])
    assert request.answer().error.code == "CANCELLED"


@pytest.mark.parametrize(
    ("tensors", "code"),
    [
        ({"image": text(b"no image")}, "INVALID_ARG"),
        ({"image_id": text(b"unknown")}, "NOT_FOUND"),
        ({"image": text(image_file()), "boxes": np.float32([[5, 5, 1, 1]])}, "INVALID_ARG"),
    ],
)
def test_what_is_refused_has_a_status(model, tensors, code) -> None:
    request = Request(["masks"], **tensors)
    model.execute([request])
    assert request.answer().error.code == code


def test_more_than_may_wait_is_refused_at_once(model) -> None:
    model.execute([first := Request(["image_id"], image=text(image_file()))])
    image_id = first.answer().tensors["image_id"]
    Bls.gate.clear()
    waiting = [Request(["masks"], image_id=image_id, **POINT) for _ in range(2)]
    model.execute(waiting)
    late, as_json = Request(["masks"], image_id=text(b"x")), Request(["result_json"], prompt_json=text(b"{}"))
    unread = Request(["masks"], prompt_json=text(b"{}"))
    model.execute([late, as_json, unread])
    assert late.answer().error.code == "BUSY"
    assert unread.answer().error.code == "BUSY"
    assert json.loads(as_json.answer().tensors["result_json"][0])["error"]["code"] == "BUSY"
    assert not any(request.sent for request in waiting)
    Bls.gate.set()
    for request in waiting:
        assert request.answer().error is None


def test_images_that_wait_do_not_refuse_clicks(model) -> None:
    model.execute([first := Request(["image_id"], image=text(image_file()))])
    image_id = first.answer().tensors["image_id"]
    Bls.gate.clear()
    images = [Request(["image_id"], image=text(image_file(form))) for form in ("BMP", "TIFF", "WEBP")]
    clicks = [Request(["masks"], image_id=image_id, **POINT) for _ in range(3)]
    model.execute([*images, *clicks])
    refused = [request.answer().error.code for request in (images[2], clicks[2])]
    assert refused == ["BUSY", "BUSY"]
    Bls.gate.set()
    for request in (*images[:2], *clicks[:2]):
        assert request.answer().error is None


def test_the_metrics_have_the_times_of_all_requests_but_refused_ones(module, series: Series) -> None:
    """One thread serves clicks here. Requests that are cancelled or fail wait no longer than others."""
    model = module.TritonPythonModel()
    model.initialize(arguments(max_pending="4", threads="1"))
    try:
        model.execute([first := Request(["image_id"], image=text(image_file()))])
        image_id = first.answer().tensors["image_id"]
        Bls.gate.clear()
        good, cancelled, late = (Request(["masks"], image_id=image_id, **POINT) for _ in range(3))
        failing, refused = Request(["masks"], image_id=text(b"unknown")), Request(["masks"], image_id=image_id)
        model.execute([good, cancelled, failing, late, refused])
        wait_until(lambda: series.gauges["waiting_requests", "click"][-1:] == [3])
        cancelled._cancelled = True
        Bls.gate.set()
        for request in (good, cancelled, failing, late, refused):
            request.answer()
        wait_until(lambda: len(series.seconds["waiting_seconds", "click"]) == 4)
        wait_until(lambda: series.gauges["waiting_requests", "click"][-1] == 0)
        wait_until(lambda: series.counts["failures_total", None] == series.counts["refusals_total", None] == 1)
    finally:
        Bls.gate.set()
        model.finalize()
    took, waited = (series.seconds[name, "click"] for name in ("request_seconds", "waiting_seconds"))
    assert len(took) == 3
    assert all(mine <= whole for mine, whole in zip([waited[0], *waited[2:]], took, strict=True))
    assert len(series.seconds["request_seconds", "image"]) == 1
    assert series.counts["faults_total", None] == 0
    assert series.threads <= {"MainThread", "report_0"}  # the main thread before the first request


def test_images_that_wait_for_the_encoder_wait(module, series: Series) -> None:
    """Two images are encoded at a time, on however many threads."""
    model = module.TritonPythonModel()
    model.initialize(arguments())
    Bls.gate.clear()
    images = [Request(["image_id"], image=text(image_file(form))) for form in ("BMP", "TIFF", "WEBP", "PNG")]
    try:
        model.execute(images)
        wait_until(lambda: series.gauges["waiting_requests", "image"][-1:] == [2])
        Bls.gate.set()
        wait_until(lambda: series.gauges["waiting_requests", "image"][-1] == 0)
        assert [request.answer().error for request in images] == [None] * 4
    finally:
        Bls.gate.set()
        model.finalize()


def job(cancelled: bool = False) -> Request:
    everything = text(b'{"points_per_side": 2, "pred_iou_thresh": 0, "stability_score_thresh": 0}')
    return Request(["result_json"], cancelled, image=text(image_file()), everything=everything)


def test_jobs_have_places_of_their_own_and_are_refused_at_once(model) -> None:
    model.execute([first := Request(["image_id"], image=text(image_file()))])
    image_id = first.answer().tensors["image_id"]
    Bls.gate.clear()
    jobs = [job() for _ in range(3)]
    model.execute(jobs)
    assert jobs[2].answer().error.code == "BUSY"
    clicks = [Request(["masks"], image_id=image_id, **POINT) for _ in range(2)]
    model.execute(clicks)  # two jobs and two clicks run: no click was refused
    Bls.gate.set()
    for request in (*jobs[:2], *clicks):
        assert request.answer().error is None
    assert json.loads(jobs[0].answer().tensors["result_json"][0])["decodes"] == 4


def test_a_cancelled_job_is_answered_so(model) -> None:
    request = job(cancelled=True)
    model.execute([request])
    assert request.answer().error.code == "CANCELLED"


@pytest.mark.parametrize(
    ("wanted", "tensors", "message"),
    [
        ("masks", {"image": text(image_file())}, "BAD_REQUEST: .* request some of image_id, image_size$"),
        ("result_json", {"image": text(image_file())}, "BAD_REQUEST: .* request some of image_id, image_size$"),
        ("encoded_masks", {"image": text(image_file()), **POINT}, "BAD_REQUEST: .*, masks, iou_predictions$"),
        ("masks", {"image_b64": text(GOOD_B64)}, "BAD_REQUEST: .* request some of image_id, image_size, result_json$"),
        ("image_id", {"image_b64": text(b"AA==")}, "BAD_IMAGE: the image"),
    ],
)
def test_an_answer_without_what_was_asked_for_is_an_error(model, series, wanted, tensors, message) -> None:
    """Triton would call an answer without any output a success."""
    request = Request([wanted], **tensors)
    model.execute([request])
    answer = request.answer()
    assert answer.error.code == "INVALID_ARG"
    assert re.match(message, str(answer.error))
    assert not answer.tensors
    wait_until(lambda: series.counts["failures_total", None] == 1)
    assert series.counts["faults_total", None] == 0


@pytest.mark.parametrize("tensors", [{"image": text(image_file()), **POINT}, {"image_id": text(b"unknown")}])
def test_an_answer_that_cannot_be_sent_is_a_failure_that_is(model, tensors, series) -> None:
    """Shared memory may be full of others' tensors; the client would wait for its whole timeout."""
    request = Request(["masks"], **tensors)
    request.refuses_to_send = 1
    model.execute([request])
    error = request.answer().error
    assert (error.code, str(error)) == (
        "INTERNAL",
        "INTERNAL: the answer could not be sent: Failed to increase the shared memory pool size",
    )
    wait_until(lambda: series.counts["failures_total", None] == series.counts["faults_total", None] == 1)


@pytest.mark.parametrize("name", ["cache_bytes", "threads", "max_pending", "max_jobs"])
@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_parameters_that_cannot_work(module, name: str, value: str) -> None:
    with pytest.raises(module.pb_utils.TritonModelException, match=f"parameter {name} must be a whole number"):
        module.TritonPythonModel().initialize(arguments(**{name: value}))


def test_a_cache_for_less_than_one_image_is_refused(module) -> None:
    size = contract.embedding_bytes(get_family("sam2"))
    assert size == 16_777_216
    with pytest.raises(module.pb_utils.TritonModelException, match="the embeddings of one image take 16777216"):
        module.TritonPythonModel().initialize(arguments(cache_bytes=str(size - 1)))


def test_other_weights_have_other_ids(module, tmp_path: Path) -> None:
    folder = tmp_path / "sam2_encoder"
    assert module.bls.weights_identity(folder) == module.bls.weights_identity(folder)
    (folder / "1").mkdir(parents=True)
    seen = {module.bls.weights_identity(folder)}
    for version, content in (
        ("1", b"a"),
        ("1", b"b"),
        ("2", b"b"),
        ("10", b"c" * 200_000),
        ("10", b"d" + b"c" * 199_999),
    ):
        (folder / version).mkdir(exist_ok=True)
        (folder / version / "model.onnx").write_bytes(content)
        seen.add(module.bls.weights_identity(folder))
    assert len(seen) == 5  # the same file as version 2 is the same encoder
