"""Calls to `/v1/videos` that several tests share."""

from __future__ import annotations

import json

POINT = {"frame": 0, "object_id": 1, "points": [[60, 120]]}


def upload(http, content, name="clip.mp4"):
    answer = http.post("/v1/videos", files={"video": (name, content)})
    assert answer.status_code == 201, answer.text
    return answer.json()


def events_of(lines):
    """Yield (name, data) of each server-sent event."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def track(http, video, **body):
    with http.stream("POST", f"{video}/propagate", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events_of(answer.iter_lines()))


def used(service, budget):
    return service.app.state.engine.budgets.__dict__[budget].used
