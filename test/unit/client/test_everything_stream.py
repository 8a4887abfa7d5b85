"""Streams of parts that break, end early, or are not there: the search goes on with single requests."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from support.fake_transport import AsyncFakeTransport, FakeTransport, text
from unit.client.test_everything_parts import IMAGE, LOW, Server, summary

from triton_sam import InferenceError, ModelNotReadyError, SAM2TritonClient, ServerUnreachableError
from triton_sam.client.aio import AsyncSAM2TritonClient
from triton_sam.errors import ServerError
from triton_sam.sessions.everything_front.parts import cut
from triton_sam.wire import contract

GRID = {**LOW, "points_per_side": 8}
"""64 points, so 8 parts."""


class Streams:
    """Answers as the model for streams does, and fails after some answers."""

    can_stream = True

    def __init__(self, server: Server, failure: ServerError | None = None, after: int = 1000) -> None:
        self.server, self.failure, self.after = server, failure, after
        self.streams = self.closed = 0

    def answers(self, inputs):
        self.streams += 1
        image_id, parts = cut(inputs)
        for number, part in enumerate(parts):
            if number == self.after:
                if self.failure is None:
                    return
                raise self.failure
            given = {contract.IMAGE_ID: text(image_id), contract.EVERYTHING_PART: text(part)}
            yield self.server.model.find_part(given, lambda: False).tensors


class SyncTransport(Streams, FakeTransport):
    def __init__(self, server, *arguments):
        Streams.__init__(self, server, *arguments)
        FakeTransport.__init__(self, server)

    def stream(self, model, inputs, outputs):
        assert (model, tuple(outputs)) == ("sam2_everything", ("result_json",))
        try:
            yield from self.answers(inputs)
        finally:
            self.closed += 1


class AsyncTransport(Streams, AsyncFakeTransport):
    def __init__(self, server, *arguments):
        Streams.__init__(self, server, *arguments)
        AsyncFakeTransport.__init__(self, server)

    async def stream(self, model, inputs, outputs):
        assert (model, tuple(outputs)) == ("sam2_everything", ("result_json",))
        try:
            for answer in self.answers(inputs):
                yield answer
        finally:
            self.closed += 1


def find(transport, image=IMAGE, **more):
    if isinstance(transport, SyncTransport):
        with SAM2TritonClient(transport=transport, embeddings="server") as client:
            return client.everything(image, progress=more.pop("progress", lambda step: None), **{**GRID, **more})

    async def search():
        async with AsyncSAM2TritonClient(transport=transport, embeddings="server") as client:
            progress = more.pop("progress", lambda step: None)
            return await client.everything(image, progress=progress, **{**GRID, **more})

    return asyncio.run(search())


KINDS = pytest.mark.parametrize("kind", [SyncTransport, AsyncTransport])


@KINDS
@pytest.mark.parametrize(
    ("failure", "after", "asked"),
    [
        (None, 1000, 0),
        (None, 3, 5),
        (ServerUnreachableError("gone"), 0, 8),
        (ServerUnreachableError("gone"), 3, 5),
        (InferenceError("UNKNOWN_IMAGE_ID: lost"), 7, 1),
    ],
    ids=["whole", "ends early", "never begins", "breaks", "last part"],
)
def test_missing_answers_are_asked_for(kind, failure, after, asked):
    server = Server()
    transport = kind(server, failure, after)
    found = find(transport)
    assert found
    assert summary(found) == summary(find(kind(Server(), ModelNotReadyError("no streams"), 0)))
    assert server.asked.count("everything_part") == asked
    assert transport.streams == transport.closed == 1


@KINDS
def test_a_server_without_streams_is_asked_once(kind):
    server = Server()
    transport = kind(server, ModelNotReadyError("no streams"), 0)
    find(transport, crop_n_layers=1)
    assert transport.streams == 1
    assert server.asked.count("everything_part") == 5 * 8


@KINDS
def test_a_broken_answer_is_asked_for_again(kind):
    class Broken(kind):
        def answers(self, inputs):
            self.streams += 1
            yield {"result_json": text(b"{}")}

    server = Server()
    assert find(Broken(server))
    assert server.asked.count("everything_part") == 8


@KINDS
def test_an_error_of_progress_ends_the_stream(kind):
    class EndError(Exception):
        pass

    def end(step):
        raise EndError

    server = Server()
    transport = kind(server)
    with pytest.raises(EndError):
        find(transport, progress=end)
    assert transport.closed == 1
    assert server.asked == ["other"]


def test_one_part_needs_no_stream():
    transport = SyncTransport(Server())
    find(transport, points_per_side=2)
    assert transport.streams == 0


def test_a_stream_is_cut_into_parts():
    points = np.arange(20).reshape(10, 2).tolist()
    request = {"points": points, "parameters": {"use_m2m": True}, "points_per_answer": 4}
    image_id, parts = cut({"image_id": text(b"one"), "everything_part": text(json.dumps(request).encode())})
    assert image_id == b"one"
    assert [json.loads(part)["points"] for part in parts] == [points[:4], points[4:8], points[8:]]
    assert all(json.loads(part).keys() == {"points", "parameters"} for part in parts)
