"""Triton's traces of a server with a session model."""

import json

import numpy as np
from support.session_requests import serve

from triton_sam import SAM2TritonClient

POINT = [[200, 180]]


def test_traces_hold_requests_to_session_models_without_their_steps(toy_repository, tmp_path, images):
    """A trace file has no steps of session models: Triton frees the trace of a request when execute() returns.

    Triton 2.51 crashed at the first click when the session model passed such a trace on.
    """
    settings = [f"triton,file={tmp_path / 'trace.json'}", "triton,log-frequency=1", "rate=1", "level=TIMESTAMPS"]
    options = [f"--trace-config={setting}" for setting in settings]
    with (
        serve(toy_repository, extra_args=options) as server,
        SAM2TritonClient(server.http_url) as client,
    ):
        client.set_image(images / "shapes.jpg")
        masks = [client.predict(POINT)[0] for _ in range(3)]
        assert server.is_alive()
    np.testing.assert_array_equal(masks[0], masks[2])
    entries = [entry for path in tmp_path.glob("trace.json.*") for entry in json.loads(path.read_text())]
    assert {entry["model_name"] for entry in entries if "model_name" in entry} == {"sam2"}
    assert {stamp["name"] for entry in entries for stamp in entry.get("timestamps", ())} >= {
        "REQUEST_START",
        "INFER_RESPONSE_COMPLETE",
    }
