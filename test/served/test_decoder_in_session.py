"""Session models that run their decoders themselves, beside one that calls the decoder: see support.toy_server."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.conditions import settled, wait_until
from support.session_requests import colored, metrics, point_inputs, serve, text
from support.toy_server import CALLS, CHOSEN, CONFIGURED

from triton_sam.errors import LocalServerError
from triton_sam.repository.hashes import forget_hashes
from triton_sam.transport import Transport

BOX = np.float32([[90, 70, 310, 290]])


def decoder_calls(transport: Transport) -> int:
    return settled(lambda: int(transport.statistics("sam2_decoder")["inference_count"]))


def test_the_log_says_who_decodes(server):
    said = [line for line in server.log.splitlines() if "runs sam2_decoder itself, from " in line]
    assert {name for name in (CALLS, CONFIGURED, CHOSEN) if any(f"{name} runs" in line for line in said)} == {
        CONFIGURED,
        CHOSEN,
    }


def test_masks_and_scores_are_equal_to_the_bit(transport, content):
    for prompt in (
        point_inputs(),
        {**point_inputs(), "multimask_output": np.array([True])},
        {
            "point_coords": np.float32([[[200, 180], [3, 4]], [[520, 145], [0, 0]]]),
            "point_labels": np.float32([[1, 0], [1, -2]]),
        },
        {"boxes": np.tile(BOX, (5, 1)), "multimask_output": np.array([True])},
        {"boxes": BOX, **point_inputs()},
        {"mask_input": np.random.default_rng(0).normal(0, 9, (1, 1, 256, 256)).astype(np.float32)},
        {"mask_input": np.full((1, 1, 256, 256), -7, np.float32), **point_inputs(300, 200)},
    ):
        answers = [
            transport.infer(model, {"image": text(content), **prompt}, ["masks", "iou_predictions"])
            for model in (CALLS, CONFIGURED, CHOSEN)
        ]
        for answer in answers[1:]:
            for output in ("masks", "iou_predictions"):
                assert answer[output].tobytes() == answers[0][output].tobytes()
        assert answers[0]["masks"].any()


def test_full_size_masks_and_searches_are_equal(transport, content):
    everything = {"points_per_side": 3, "pred_iou_thresh": 0, "stability_score_thresh": 0}
    requests = [
        ({"output_format": text(b"png"), "boxes": BOX}, "encoded_masks"),
        ({"everything": text(json.dumps(everything).encode())}, "result_json"),
    ]
    for inputs, output in requests:
        called, own = (
            transport.infer(model, {"image": text(content), **inputs}, [output])[output].ravel()[0]
            for model in (CALLS, CHOSEN)
        )
        if output == "result_json":
            called, own = json.loads(called), json.loads(own)
            assert called["decodes"] == 9
            assert called["objects"]
        assert own == called


def test_only_the_counters_of_the_session_model_grow(server, transport, content):
    (image_id,) = transport.infer(CHOSEN, {"image": text(content)}, ["image_id"])["image_id"]
    calls, counted = decoder_calls(transport), settled(lambda: metrics(server, model=CHOSEN)["decodes_total"])
    for _ in range(3):
        transport.infer(CHOSEN, {"image_id": text(image_id), **point_inputs()}, ["masks"])
    wait_until(lambda: metrics(server, model=CHOSEN)["decodes_total"] == counted + 3)
    assert decoder_calls(transport) == calls
    transport.infer(CALLS, {"image": text(content), **point_inputs()}, ["masks"])
    assert decoder_calls(transport) == calls + 1


def test_clicks_at_the_same_time_get_their_own_masks(transport, content):
    images = [content, colored(5)]
    places = [(5 * number, 4 * number) for number in range(6)]
    wanted = [(image, place) for place in places for image in images]

    def click(model: str, image: bytes, place: tuple[int, int]) -> bytes:
        return transport.infer(model, {"image": text(image), **point_inputs(*place)}, ["masks"])["masks"].tobytes()

    expected = [click(CALLS, *one) for one in wanted]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda one: click(CHOSEN, *one), wanted))
    assert found == expected
    assert len(set(expected)) == len(wanted)


def test_a_damaged_decoder_is_one_clear_error(toy_repository, tmp_path):
    """Triton loads the broken decoder itself with an error, too: the session model says its own."""
    repository = shutil.copytree(toy_repository, tmp_path / "models")
    file = repository / "sam2_decoder" / "1" / "model.onnx"
    file.write_bytes(b"no model")
    forget_hashes([file])
    server = serve(repository, decoder_in_session=True)
    with pytest.raises(LocalServerError, match="model 'sam2' failed to load: ") as caught:
        server.start()
    (said,) = (part for part in str(caught.value).split("; ") if part.startswith("model 'sam2' "))
    assert str(file) in said
    assert "\n" not in str(caught.value)
