"""The Python models under random requests: each is answered, or refused with a code that is documented."""

import base64
import json
import random
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.fake_tracking import SIZE, frame_file, kept_bytes
from support.fuzzing import REFUSALS, code, image_file, junk, once, session, spoil, text
from support.pb_utils import Request, Triton
from support.strategies import anything, damaged_images

from triton_sam.concepts.query import query_from
from triton_sam.errors import PromptError, SamError
from triton_sam.everything.parameters import Parameters
from triton_sam.masks import Cleanup
from triton_sam.sessions.messages import read_object
from triton_sam.sessions.video.messages import ARGUMENTS, WITH_STEP
from triton_sam.wire import contract, video

MODEL = session()
GOOD = image_file()
images = damaged_images | st.binary(max_size=64) | st.just(GOOD)
names = st.text(max_size=20).map(str.encode) | st.binary(max_size=20)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.uint8]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


@given(st.binary(max_size=200))
@example(b"\1" + b"[" * 100_000)
@example(b'\1{"points": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'\1{"points": [[1e999, 0]]}')
@settings(max_examples=300)
def test_any_bytes_are_answered_or_refused(data):
    once(data, MODEL)


@given(images)
@settings(max_examples=300)
def test_any_image_is_encoded_or_refused(content):
    assert code(MODEL.answer({"image": text(content)})) in ("", "BAD_IMAGE")
    encoded = {"image_b64": text(base64.encodebytes(content))}
    assert code(MODEL.answer(encoded)) in ("", "BAD_IMAGE")
    assert code(MODEL.answer({"image_b64": text(content)})) == "BAD_IMAGE"


numbers = st.floats(-5, 25) | st.floats() | st.integers(-(10**30), 10**30)
cleanups = st.dictionaries(st.sampled_from([*Cleanup.__dataclass_fields__, "other"]), numbers | st.booleans())
prompts = st.fixed_dictionaries(
    {},
    optional={
        "points": st.lists(st.lists(numbers, max_size=3), max_size=5)
        | st.lists(st.lists(st.lists(numbers)))
        | anything,
        "labels": st.lists(st.integers(-3, 4), max_size=5) | anything,
        "boxes": st.lists(st.lists(numbers, min_size=4, max_size=4), max_size=3) | anything,
        "multimask": st.booleans() | anything,
        "rle": st.booleans() | anything,
        "cleanup": cleanups | anything,
        "image_id": st.text(max_size=5) | anything,
    },
)


@given(prompts)
@settings(max_examples=300)
def test_any_prompt_json_is_answered_or_refused(prompt):
    reply = MODEL.answer({"prompt_json": text(json.dumps(prompt).encode()), "image_b64": text(base64.b64encode(GOOD))})
    refused = code(reply)
    answer = json.loads(reply.tensors["result_json"][0])
    if not refused:
        assert answer["image_size"] == [16, 12]
        assert all((mask["width"], mask["height"]) == (16, 12) for mask in answer["masks"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "image": images.map(text),
            "image_id": names.map(text),
            "point_coords": arrays | hnp.arrays(np.float32, (1, 2, 2), elements=st.floats(0, 12, width=32)),
            "point_labels": arrays | hnp.arrays(np.float32, (1, 2), elements=st.sampled_from([0.0, 1.0, -2.0, 3.0])),
            "boxes": arrays | st.just(np.float32([[1, 1, 9, 9]])),
            "mask_input": arrays | st.just(np.zeros((1, 1, 256, 256), np.float32)),
            "multimask_output": st.booleans().map(lambda value: np.array([value])),
            "output_format": (st.sampled_from([b"logits", b"png", b"rle"]) | names).map(text),
            "cleanup": (names | cleanups.map(lambda each: json.dumps(each).encode())).map(text),
        },
    )
)
@settings(max_examples=400)
def test_any_tensors_are_answered_or_refused(tensors):
    code(MODEL.answer(tensors))


@given(names)
@settings(max_examples=200)
def test_any_id_is_unknown_or_no_text(name):
    assert code(MODEL.answer({"image_id": text(name)})) in ("UNKNOWN_IMAGE_ID", contract.BAD_REQUEST)


def test_no_request_has_touched_the_next():
    """After all of that the model holds what it may, and answers as before."""
    assert MODEL.images.cache.nbytes <= MODEL.images.cache.limit
    reply = MODEL.answer({"image": text(GOOD), "point_coords": np.float32([[[3, 3]]])})
    assert code(reply) == ""
    assert reply.tensors["masks"].shape == (1, 1, 256, 256)


# The model that only opens images


@pytest.fixture(scope="module")
def preprocess():
    """The model, inside of what it takes for Triton."""
    model = Triton(lambda *_: {}).load("image.preprocess_model").TritonPythonModel()
    output = [{"name": "image", "dims": [1, 3, 1024, 1024]}]
    config = {"parameters": {"family": {"string_value": "SAM2"}}, "output": output}
    model.initialize({"model_config": json.dumps(config)})
    return model


@given(content=images)
@settings(max_examples=100)
def test_the_model_that_opens_images_answers_or_refuses(preprocess, content):
    (response,) = preprocess.execute([Request(["image", "image_size"], {"encoded_image": text(content)})])
    if response.has_error():
        assert response.error().code() == "INVALID_ARG", response.error().message()
        assert response.error().message().partition(": ")[0] in REFUSALS
    else:
        shapes = {tensor.name(): tensor.shape() for tensor in response.output_tensors()}
        assert shapes == {"image": [1, 3, 1024, 1024], "image_size": [2]}


# Searches for everything and for words

IMAGE_SIZE = [16, 12]
PARAMETERS = [each.name for each in fields(Parameters)]


def parameters(rng):
    """Return parameters of a small search, of which some may be wrong."""
    right = {"points_per_side": rng.randrange(1, 4), "pred_iou_thresh": 0, "stability_score_thresh": 0}
    right |= rng.choice([{}, {}, {"crop_n_layers": 1}, {"use_m2m": True}])
    if rng.random() < 0.3:
        cleanup = {name: rng.choice([0, 1, True, 5]) for name in rng.sample([*Cleanup.__dataclass_fields__], 2)}
        right["cleanup"] = spoil(rng, cleanup, [*Cleanup.__dataclass_fields__])
    return spoil(rng, right, PARAMETERS)


def part(rng):
    """Return a part of a search, of which some members may be wrong."""
    right = {
        "points": [[rng.choice([0, 3, 11.5, 16]), rng.choice([0, 3, 11.5, 12])] for _ in range(rng.randrange(1, 4))],
        "parameters": parameters(rng) if rng.random() < 0.5 else {"pred_iou_thresh": 0, "stability_score_thresh": 0},
    }
    if rng.random() < 0.5:
        right |= {"crop": [0, 0, *IMAGE_SIZE], "image_size": rng.choice([IMAGE_SIZE, [40, 30]])}
    if rng.random() < 0.1:
        right["points"] = [[rng.choice([-1, 17, 1e9]), 3]]
    return spoil(rng, right, ["crop", "image_size"])


def query(rng):
    """Return a search for words, of which some members may be wrong."""
    right = {"text": rng.choice(["cat", ["cat", "yellow bus"], "é" * 20])}
    optional = {
        "boxes": [[1, 2, 8, 9]],
        "box_labels": [1],
        "threshold": rng.random(),
        "mask_threshold": rng.random(),
        "nms": rng.choice([None, 0.5]),
        "limit": rng.choice([None, 1, 300]),
    }
    right |= {name: value for name, value in optional.items() if rng.random() < 0.4}
    return spoil(rng, right, sorted(optional))


def refusal_of(reply, sent):
    """Return the code of a refusal, or "" for an answer. Anything else is a fault of the model."""
    if reply.error is None:
        return ""
    assert isinstance(reply.error, SamError), f"{sent}: {reply.error!r}"
    refusal = contract.code_of(reply.error).split()[-1]
    assert refusal in REFUSALS, f"{sent}: {type(reply.error).__name__}: {reply.error}"
    assert "\n" not in str(reply.error)
    return refusal


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make", "count"), [("everything", parameters, 150), ("everything_part", part, 800)])
def test_any_search_for_everything_is_answered_or_refused(name, make, count):
    model, rng, counts = session(), random.Random(1), Counter()
    find = model.find_everything if name == "everything" else model.find_part
    for _ in range(count):
        given = make(rng) if rng.random() < 0.95 else junk(rng)
        named = {"image": text(GOOD)}
        if name == "everything_part" and rng.random() < 0.3:
            named = {"image_id": model.answer(named).tensors["image_id"]}
        sent = {**named, name: text(json.dumps(given).encode())}
        reply = find(sent, lambda: False)
        counts[refusal := refusal_of(reply, given)] += 1
        if not refusal:
            result = json.loads(reply.tensors["result_json"][0])
            assert result["objects"] or result["reason"]
    assert counts[""] >= count // 5, counts  # otherwise this test would prove little
    assert counts["BAD_REQUEST"] >= count // 5, counts


def test_any_query_for_words_is_read_or_refused():
    rng, counts = random.Random(1), Counter()
    for _ in range(3000):
        content = json.dumps(query(rng) if rng.random() < 0.95 else junk(rng)).encode()
        if rng.random() < 0.05:
            content = content[: rng.randrange(len(content))] + rng.randbytes(2)
        try:
            found = query_from(read_object({"find": text(content)}, "find", "", PromptError))
        except PromptError:
            counts["refused"] += 1
            continue
        counts["read"] += 1
        assert np.isfinite(found.boxes).all()
        assert len(found.boxes) == len(found.box_labels)
        again = query_from(json.loads(found.to_json()))
        assert again.texts == found.texts
        np.testing.assert_array_equal(again.boxes, found.boxes)
    assert min(counts["read"], counts["refused"]) >= 500, counts


# The video model under generated requests: each is answered, or refused with a code that is documented

FRAMES = [frame_file(number) for number in range(6)]
PROMPTS = (["points"], ["points", "labels"], ["box"], ["points", "box"], ["mask"], ["points", "mask"], [])
RIGHT = {
    "num_frames": [6],
    "frame_size": [list(SIZE)],
    "frame_indexes": [list(range(6))],
    "frame_index": [0, 0, 1, 2, 5],
    "object_id": [1, 1, 2, 3],
    "points": [[[3, 4]], [[3, 4], [9, 9]]],
    "labels": [[1], [1, 0]],
    "box": [[1, 1, 8, 8]],
    "clear_old_points": [True, False],
    "reverse": [True, False],
    "first": [True, False],
    "remember": [True, False],
    "absent": [[], [1], [1, 7]],
    "confirmed": [[], [2], [1, 2]],
    "step": ["next"],
    "words": [False, False, True],
    "query": [{"text": "bus"}, {}],
}
assert set(RIGHT) == {key for keys in ARGUMENTS.values() for key in keys}


def request_of(rng, step):
    """Return operation, arguments and tensors of a request that is right but for a few members."""
    operation = rng.choice(["add_prompt", "propagate", "propagate", "update_memories", *sorted(video.OPERATIONS)])
    prompt = rng.choice(PROMPTS)
    unwanted = {"points", "labels", "box"} - set(prompt) if operation == "add_prompt" else set()
    arguments = {key: rng.choice(RIGHT[key]) for key in ARGUMENTS[operation] if key not in unwanted}
    if "step" in arguments:
        arguments["step"] = step
    inputs = {"frames": np.array(FRAMES, np.object_)} if "frame_indexes" in arguments else {}
    if operation == "add_prompt" and "mask" in prompt:
        inputs["mask"] = np.ones((SIZE[1], SIZE[0]), np.bool_)
    others = {
        "frames": np.array([rng.choice([*FRAMES, b"", b"no image"]) for _ in range(rng.randrange(1, 7))], np.object_),
        "mask": np.ones([rng.randrange(4) for _ in range(rng.randrange(4))], np.bool_),
        "snapshot": text(rng.randbytes(20)),
        "output_format": text(rng.choice([b"logits", b"png", b"rle", b"gif", b"\xff"])),
    }
    if rng.random() < 0.25:
        name = rng.choice(sorted(others))
        inputs[name] = others[name]
    if rng.random() < 0.03:
        operation = str(junk(rng))
    return operation, spoil(rng, arguments, sorted(RIGHT)), inputs


def send(server, session_id, operation, arguments, inputs):
    sent = {video.OPERATION: text(operation.encode()), video.ARGUMENTS: text(json.dumps(arguments).encode()), **inputs}
    if session_id:
        sent[video.SESSION_ID] = text(session_id.encode())
    reply = server.model.answer(sent)
    refusal = refusal_of(reply, (operation, arguments, inputs))
    assert not (refusal and reply.tensors)
    result = {} if refusal else json.loads(reply.tensors["result"][0])
    if operation == video.START_SESSION and not refusal:
        server.ask("close_session", result["session_id"])
    return refusal


def test_any_requests_are_answered_or_refused_and_other_sessions_live_on(video_sessions):
    rng, counts = random.Random(1), Counter()
    for _ in range(300):
        lone, session = video_sessions.start(num_frames=6), video_sessions.start(num_frames=6)
        session.click(0)
        step = 2
        for _ in range(20):
            operation, arguments, inputs = request_of(rng, step)
            name = rng.choice([session.id] * 15 + ["", "unknown"])
            refusal = send(video_sessions, name, operation, arguments, inputs)
            counts[operation if operation in ARGUMENTS else "none", refusal] += 1
            for each in video_sessions.model.sessions.by_id.values():
                kept_bytes(each.tracker)
            step += name == session.id and not refusal and operation in WITH_STEP and arguments["step"] == step
        lone.click(0)
        assert lone.track(range(3)).keys() == {(0, 1), (1, 1), (2, 1)}
        for each in (lone.id, session.id):
            send(video_sessions, each, "close_session", {}, {})
        assert len(video_sessions.model.sessions.by_id) == 0
    # Otherwise this test would prove little.
    answered = {operation for operation, refusal in counts if not refusal}
    assert answered == set(video.OPERATIONS) - {video.FIND}, counts  # SAM2 has no models for words
    assert min(counts["add_prompt", ""], counts["propagate", ""]) >= 30, counts
    assert {code for _, code in counts} >= {"BAD_PROMPT", "BAD_REQUEST", "UNKNOWN_SESSION_ID", "BAD_IMAGE"}, counts


def test_any_bytes_as_arguments_are_refused(video_sessions):
    rng = random.Random(3)
    for _ in range(300):
        content = rng.choice([rng.randbytes(rng.randrange(1, 30)), json.dumps([junk(rng)]).encode()])
        reply = video_sessions.model.answer({video.OPERATION: text(b"start_session"), video.ARGUMENTS: text(content)})
        assert refusal_of(reply, content), content
