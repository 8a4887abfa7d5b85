"""Positions of a mouse, and helper functions for tests of the speculative client."""

import asyncio
import time

import numpy as np
import pytest

from triton_sam import SpeculativeSAM2Client
from triton_sam.benchmark.speculative import mouse_path

POINT = [[200, 180]]

over_http, over_grpc = (pytest.mark.parametrize("url", [protocol], indirect=True) for protocol in ("http", "grpc"))


PATH = [np.array([position]) for position in mouse_path(50, (800, 600))]


LABELS = [np.array([1])] * 50


def speculate(sync, scenario, **options):
    """Run ``scenario(client)`` with a client that shares the sync client's image."""

    async def main():
        async with SpeculativeSAM2Client(sync.url, **options) as client:
            client.image_embeddings = sync.image_embeddings
            return await scenario(client)

    return asyncio.run(main())


def assert_same(result, expected):
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


async def all_ended(tasks):
    done, pending = await asyncio.wait([task for _, task in tasks], timeout=60)
    assert not pending
    return done


async def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)
