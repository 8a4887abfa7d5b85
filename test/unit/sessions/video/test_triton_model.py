"""The video model's side towards Triton, with a stand-in for the module that exists inside Triton alone.

The models that it calls are those of `support.fake_tracking`. What it answers is tested on a real server
(test/served/test_video_model.py); here is what a server does not show.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.conditions import wait_until
from support.custom_metrics import Series
from support.fake_tracking import FAMILY, SIDE, FakeModels, Server, frame_file, rows, text

from triton_sam._common.bundle import bundled
from triton_sam.errors import ServerBusyError
from triton_sam.families.tables import ENCODER
from triton_sam.sessions.video.models import DecoderPrompt, Memories

OUTPUTS = ["result", "frame_indexes", "object_ids", "masks", "object_scores", "iou_predictions"]
NAMES = {role: f"sam2_{role}" for role in (ENCODER, *FAMILY.tracking.models)}


class Tensor:
    """pb_utils.Tensor."""

    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array

    def shape(self):
        return self._array.shape

    @staticmethod
    def from_dlpack(name, tensor):
        return Tensor(name, tensor.as_numpy())


class Error(Exception):
    """pb_utils.TritonError."""

    INVALID_ARG, NOT_FOUND = "INVALID_ARG", "NOT_FOUND"
    UNAVAILABLE, CANCELLED, INTERNAL = "BUSY", "CANCELLED", "INTERNAL"

    def __init__(self, message, code="INTERNAL"):
        super().__init__(message)
        self.code = code


class Request:
    """A request of Triton, and its response sender at once."""

    def __init__(self, operation, session=None, wanted=OUTPUTS, tensors=None, **arguments):
        self.cancelled = False
        self._wanted = wanted
        inputs = {"operation": text(operation.encode()), "arguments": text(json.dumps(arguments).encode())}
        if session is not None:
            inputs["session_id"] = text(session.encode())
        self._tensors = [Tensor(name, array) for name, array in {**inputs, **(tensors or {})}.items()]
        self._answered = threading.Event()
        self.sent = []

    def inputs(self):
        return self._tensors

    def requested_output_names(self):
        return self._wanted

    def get_response_sender(self):
        return self

    def is_cancelled(self):
        return self.cancelled

    def send(self, response, flags):
        assert flags == 1
        self.sent.append(response)
        self._answered.set()

    def answer(self):
        assert self._answered.wait(30)
        (response,) = self.sent
        return response


class Bls:
    """pb_utils.InferenceRequest: calls a model of `support.fake_tracking` by its name."""

    gate = threading.Event()
    failures: list[str] = []  # noqa: RUF012 - emptied by the fixture
    calls: list[str] = []  # noqa: RUF012

    def __init__(self, model_name, inputs, requested_output_names, **_):
        self.model = model_name
        self.inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        self.wanted = requested_output_names

    def exec(self):
        assert self.gate.wait(30)
        self.calls.append(self.model)
        if self.failures:
            message = self.failures.pop()
            return SimpleNamespace(has_error=lambda: True, error=lambda: SimpleNamespace(message=lambda: message))
        arrays = compute(self.model.removeprefix("sam2_"), self.inputs)
        assert set(arrays) >= set(self.wanted), self.model
        return SimpleNamespace(
            has_error=lambda: False, output_tensors=[Tensor(name, arrays[name]) for name in self.wanted].copy
        )


def compute(role, inputs):
    """Run one of the fake models with the inputs and outputs of the real one."""
    models = FakeModels()
    coarse = next(iter(FAMILY.encoder.output_names))
    if role == ENCODER:
        return models.encode(inputs)
    outputs = FAMILY.tracking.models[role].output_names
    if role == "memory_attention":
        names = ("memories", "memory_ages", "object_pointers", "pointer_ages")
        return {outputs[0]: models.attend(inputs, Memories(*(inputs[name] for name in names)))}
    if role == "memory_encoder":
        is_prompted = bool(inputs["is_prompted"][0])
        return {outputs[0]: models.remember(inputs, inputs["masks"], inputs["object_score_logits"], is_prompted)}
    if role == "mask_prompt":
        return dict(zip(("mask_input", "masks"), models.prompt_mask(inputs["mask"]), strict=True))
    held = inputs[coarse]
    prompt = DecoderPrompt(
        inputs["point_coords"],
        inputs["point_labels"],
        bool(inputs["multimask"][0]),
        int(inputs["mask_prompt"][0]),
        inputs.get("mask_input"),
    )
    # In the fake models, all embeddings of a frame are equal; the conditioned one has a value for each object.
    conditioned = None if np.array_equal(held, inputs["high_res_feats_0"]) else held
    frame = {coarse: held, **{name: inputs[name] for name in inputs if name.startswith("high_res")}}
    decoded = models.decode(frame, conditioned, prompt)
    values = decoded.masks, decoded.ious, decoded.scores, decoded.pointers
    return dict(zip(("masks", "iou_predictions", "object_score_logits", "object_pointers"), values, strict=True))


@pytest.fixture
def series():
    return Series()


@pytest.fixture
def module(monkeypatch, series):
    """triton_model, imported with the stand-in of Triton's module."""
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
    Bls.failures.clear()
    Bls.calls.clear()
    names = ("triton_sam.sessions.bls", "triton_sam.sessions.video.triton_model")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield [importlib.import_module(name) for name in names][-1]
    for name in names:
        sys.modules.pop(name, None)


def arguments(**changed):
    parameters = {"family": "SAM2", "image_size": str(SIDE), **NAMES, **changed}
    return {
        "model_config": json.dumps({"parameters": {key: {"string_value": value} for key, value in parameters.items()}}),
        "model_name": "sam2_video",
        "model_repository": str(bundled("model_repository") / "sam2_video"),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }


@pytest.fixture
def model(module):
    made = module.TritonPythonModel()
    made.initialize(arguments(max_pending="2", threads="2", max_sessions="2"))
    yield made
    Bls.gate.set()
    made.finalize()


def ask(model, *args, **kwargs):
    model.execute([request := Request(*args, **kwargs)])
    return request.answer()


def start(model):
    answer = ask(model, "start_session", wanted=["result"], num_frames=9)
    return json.loads(answer.tensors["result"][0])["session_id"]


def add_frames(model, session, *indexes):
    files = np.array([frame_file(index) for index in indexes], np.object_)
    return ask(model, "add_frames", session, ["result"], {"frames": files}, frame_indexes=list(indexes))


def story(model, session):
    """Prompt with a point and with a mask, and track; yield all answers."""
    add_frames(model, session, 0, 1, 2)
    mask = np.zeros((12, 20), bool)
    mask[3:9, 4:11] = True
    click = {"frame_index": 0, "object_id": 1, "points": [[3, 4]]}
    yield ask(model, "add_prompt", session, step=1, **click)
    yield ask(model, "add_prompt", session, OUTPUTS, {"mask": mask}, step=2, frame_index=0, object_id=2)
    for step, frame in enumerate((0, 1, 2), 3):
        yield ask(model, "propagate", session, step=step, frame_index=frame, first=step == 3)


def test_a_story_equals_that_without_triton(model):
    """All tensors reach the models under their names: masks are those of the tracker that calls them directly."""
    answers = list(story(model, start(model)))
    direct = Server().start(num_frames=9)
    direct.add_frames(0, 1, 2)
    mask = np.zeros((12, 20), bool)
    mask[3:9, 4:11] = True
    expected = [
        direct.do("add_prompt", frame_index=0, object_id=1, points=[[3, 4]]),
        direct.do("add_prompt", frame_index=0, object_id=2, tensors={"mask": mask}),
        *(direct.do("propagate", frame_index=frame, first=frame == 0) for frame in (0, 1, 2)),
    ]
    for answer, other in zip(answers, expected, strict=True):
        assert answer.error is None
        found, wanted = rows(answer.tensors), rows(other)
        assert list(found) == list(wanted)
        for key, each in found.items():
            np.testing.assert_array_equal(each, wanted[key])
    assert Bls.calls.count("sam2_encoder") == 3


def test_only_requested_outputs_are_sent(model):
    session = start(model)
    add_frames(model, session, 0)
    click = {"step": 1, "frame_index": 0, "object_id": 1, "points": [[3, 4]]}
    assert list(ask(model, "add_prompt", session, ["object_scores", "result"], **click).tensors) == [
        "result",
        "object_scores",
    ]


@pytest.mark.parametrize(
    ("message", "code"),
    [("Exceeds maximum queue size", "BUSY"), ("node X failed", "INTERNAL"), ("failed to allocate memory", "INTERNAL")],
)
def test_failures_of_models_have_a_status_and_the_session_lives_on(model, message, code):
    session = start(model)
    Bls.failures.extend([message] * 9)
    assert add_frames(model, session, 0).error.code == code
    Bls.failures.clear()
    assert add_frames(model, session, 0).error is None


def test_an_unknown_session_is_not_found(model):
    assert ask(model, "reset_session", "nobody", step=1).error.code == "NOT_FOUND"


def test_more_sessions_and_requests_than_allowed_are_refused_at_once(model):
    session = start(model)
    start(model)
    assert ask(model, "start_session", wanted=["result"]).error.code == "BUSY"
    Bls.gate.clear()
    files = [{"frames": text(frame_file(index))} for index in range(3)]
    waiting = [
        Request("add_frames", session, ["result"], each, frame_indexes=[index]) for index, each in enumerate(files)
    ]
    model.execute(waiting)
    assert waiting[2].answer().error.code == "BUSY"
    assert not waiting[0].sent
    Bls.gate.set()
    assert waiting[0].answer().error is None
    assert waiting[1].answer().error is None


def test_a_request_that_is_cancelled_while_it_waits_is_not_computed(model):
    session = start(model)
    add_frames(model, session, 0)
    Bls.gate.clear()
    click = {"frame_index": 0, "object_id": 1, "points": [[3, 4]]}
    first, second = (Request("add_prompt", session, step=step, **click) for step in (1, 2))
    model.execute([first, second])
    second.cancelled = True
    Bls.gate.set()
    assert first.answer().error is None
    assert second.answer().error.code == "CANCELLED"
    assert ask(model, "add_prompt", session, step=2, **click).error is None


def test_the_metrics_have_the_times_of_all_requests_but_refused_ones(model, series):
    """Operations of one session wait for each other. Eight may wait, and the model has two places."""
    session = start(model)
    add_frames(model, session, 0)
    Bls.gate.clear()
    click = {"frame_index": 0, "object_id": 1, "points": [[3, 4]]}
    first, second, refused = (Request("add_prompt", session, step=step, **click) for step in (1, 2, 3))
    model.execute([first, second, refused])
    wait_until(lambda: series.gauges["waiting_requests", "operation"][-1:] == [1])
    assert refused.answer().error.code == "BUSY"
    second.cancelled = True
    Bls.gate.set()
    second.answer()
    assert ask(model, "propagate", session, step=5).error.code == "INVALID_ARG"
    Bls.failures.append("node X failed")
    assert ask(model, "add_prompt", session, step=2, **click).error.code == "INTERNAL"
    assert ask(model, "reset_session", "nobody", step=1).error.code == "NOT_FOUND"
    wait_until(lambda: len(series.seconds["waiting_seconds", "operation"]) == 4)
    wait_until(lambda: series.gauges["waiting_requests", "operation"][-1] == 0)
    wait_until(lambda: series.counts["failures_total", None] == 3)
    assert [len(series.seconds["request_seconds", kind]) for kind in ("session", "frame", "operation")] == [2, 1, 3]
    assert (series.counts["faults_total", None], series.counts["refusals_total", None]) == (1, 1)
    assert series.threads <= {"MainThread", "report_0"}  # the main thread before the first request


def test_what_a_session_refuses_does_not_wait(module, series, monkeypatch):
    monkeypatch.setattr("triton_sam.sessions.video.sessions.Strand.submit", refuse)
    model = module.TritonPythonModel()
    model.initialize(arguments())
    try:
        click = {"frame_index": 0, "object_id": 1, "points": [[3, 4]]}
        assert ask(model, "add_prompt", start(model), step=1, **click).error.code == "BUSY"
        wait_until(lambda: series.counts["refusals_total", None] == 1)
        assert series.gauges["waiting_requests", "operation"][-1:] in ([], [0])
        assert not series.seconds["waiting_seconds", "operation"]
    finally:
        model.finalize()


def refuse(*_):
    raise ServerBusyError("too many")


def test_sessions_close_at_once_while_others_compute(model):
    session, other = start(model), start(model)
    Bls.gate.clear()
    waiting = Request("add_frames", session, ["result"], {"frames": text(frame_file(0))}, frame_indexes=[0])
    model.execute([waiting])
    assert ask(model, "close_session", other, ["result"]).error is None
    assert not waiting.sent
    Bls.gate.set()
    assert waiting.answer().error is None


def test_idle_sessions_are_swept(module, monkeypatch):
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)
    made = module.TritonPythonModel()
    made.initialize(arguments(idle_seconds="1"))
    try:
        start(made)
        wait_until(lambda: len(made._model.sessions) == 0)
    finally:
        made.finalize()


@pytest.mark.parametrize("changed", [{"image_size": "0"}, {"threads": "two"}, {"cache_bytes": "1"}])
def test_wrong_parameters_are_refused(module, changed):
    refusal = sys.modules["triton_python_backend_utils"].TritonModelException
    with pytest.raises(refusal, match=next(iter(changed))):
        module.TritonPythonModel().initialize(arguments(**changed))
