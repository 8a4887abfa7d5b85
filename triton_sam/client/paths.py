"""Whole paths of positions: queued at one stroke, waited for by their newest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..errors import PromptError
from .dispatcher import Work
from .flows import predict
from .speculative import Queued, Result, SpeculativeSAM2Client


async def queue_multiple_requests(
    client: SpeculativeSAM2Client, coords_list: Sequence[Any], labels_list: Sequence[Any], session_id: str
) -> list[Queued]:
    """Queue predictions for a path of positions, the newest last, at one stroke: only that one is sent.

    Args:
        client: the client; an image is set.
        coords_list: points of each position, as predict_async() takes them.
        labels_list: labels of each position.
        session_id: their lane.

    Returns:
        (request_id, task) of each position, in order.

    Raises:
        PromptError: the lists differ in length, or a prompt of the wrong shape, type or range; nothing is queued.
        NoImageError: no image has been set.
    """
    if len(coords_list) != len(labels_list):
        raise PromptError(f"{len(coords_list)} coords, but {len(labels_list)} labels")
    clicks = [
        await client._click_async(None, coords, labels, None, None, False)  # noqa: SLF001
        for coords, labels in zip(coords_list, labels_list, strict=True)
    ]
    return client._queue([Work(predict(click)) for click in clicks], session_id)  # noqa: SLF001


async def wait_for_latest_result(
    tasks: Sequence[Queued], client: SpeculativeSAM2Client, session_id: str
) -> Result | None:
    """Wait for the mask of the newest position.

    Nothing that the lane still has on the wire is waited for but its newest request; the rest is cancelled.

    Args:
        tasks: what queue_multiple_requests() or predict_async() returned, the newest last.
        client: the client.
        session_id: their lane.

    Returns:
        (masks, iou) of the last of ``tasks``; None when it was cancelled or replaced, or when there is none.

    Raises:
        ServerError: it failed.
    """
    client.cancel_session_requests(session_id, keep_latest=True)
    if not tasks:
        return None
    _, newest = tasks[-1]
    await asyncio.wait([newest])
    return None if newest.cancelled() else newest.result()
