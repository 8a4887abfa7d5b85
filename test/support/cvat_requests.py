"""The requests of CVAT's gateway to its functions, as CVAT's own code sent them (test/data/cvat_requests.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from triton_sam._common.bundle import bundled

IMAGE, STATE = "IMAGE", "STATE"
"""Placeholders for an image in base64 and for the state of a tracked object."""


def recorded_requests() -> list[dict[str, Any]]:
    """Return all requests, each with the versions of CVAT that sent it."""
    return list(json.loads((bundled("test/data") / "cvat_requests.json").read_text())["requests"])


def calls_of(function: str) -> list[dict[str, Any]]:
    """Return the requests that call a function, in the order of sending."""
    found = [each for each in recorded_requests() if each["headers"].get("x-nuclio-function-name") == function]
    assert found, f"test/data/cvat_requests.json has no call of {function}"
    return found


def send(http: httpx.Client, request: dict[str, Any], image64: str, states: Sequence[Any] = ()) -> Any:
    """Send a recorded request with an image, and with the states of objects; return the JSON of the answer."""
    body = {**request["body"], "image": image64}
    if body.get("states"):
        body["states"] = [None if state is None else states[place] for place, state in enumerate(body["states"])]
    answer = http.request(request["method"], request["path"], headers=request["headers"], json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def read_functions(http: httpx.Client) -> dict[str, list[str]]:
    """Return the labels of each function, from the members that CVAT's gateway reads."""
    [listed, *_] = [each for each in recorded_requests() if each["body"] is None]
    functions = http.request(listed["method"], listed["path"], headers=listed["headers"]).json()
    labels = {}
    for name, function in functions.items():
        assert http.get(f"{listed['path']}/{name}").json() == function
        known = function["metadata"]["annotations"]
        assert function["metadata"]["name"] == name
        assert known["type"] in {"interactor", "detector", "tracker"}
        assert isinstance(function["spec"]["description"], str)
        assert function["status"]["httpPort"] is not None
        assert int(known["version"]) == 2
        assert all(text == str(int(text)) for key, text in known.items() if key.startswith("min_"))
        assert "supported_shape_types" not in known or all(known["supported_shape_types"].split(","))
        spec = json.loads(known["spec"] or "[]")
        assert all((each["type"], each["attributes"]) == ("mask", []) for each in spec)
        labels[name] = [each["name"] for each in spec]
        assert len(set(labels[name])) == len(spec)
    return labels


def in_recorded_form(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request without the parts that differ between calls."""
    headers = {name: value for name, value in request["headers"].items() if name.startswith("x-nuclio")}
    body = request["body"]
    if body is not None:
        body = {**body, "image": IMAGE}
        if "states" in body:
            body["states"] = [state and STATE for state in body["states"]]
    return {"method": request["method"], "path": request["path"], "headers": headers, "body": body}


def check_recorded(requests: Iterable[dict[str, Any]]) -> None:
    """Check that the file has all requests, so that tests without CVAT's code send the same as CVAT."""
    known = [{name: each[name] for name in ("method", "path", "headers", "body")} for each in recorded_requests()]
    new = [request for request in map(in_recorded_form, requests) if request not in known]
    assert not new, f"add to test/data/cvat_requests.json: {json.dumps(new)}"
