"""Queues a whole path of positions in one step, and waits for the mask of the newest position."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..errors import PromptError
from .speculative import Queued, Result, SpeculativeSAM2Client
from .spellings import also_spelled


@also_spelled(point_coords_list="coords_list", point_labels_list="labels_list")
async def queue_multiple_requests(
    client: SpeculativeSAM2Client, coords_list: Sequence[Any], labels_list: Sequence[Any], session_id: str
) -> list[Queued]:
    """Queue predictions for a path of positions, the newest last. Only the newest is sent.

    Args:
        client: the client, after set_image().
        coords_list: points of each position, in the form that predict_async() takes. ``point_coords_list`` is a second
            spelling.
        labels_list: labels of each position. ``point_labels_list`` is a second spelling.
        session_id: the lane of the predictions.

    Returns:
        (request_id, task) of each position, in order.

    Raises:
        PromptError: the lists differ in length, or a prompt has a wrong shape, type or range; nothing is queued.
        NoImageError: no image has been set.
    """
    if len(coords_list) != len(labels_list):
        raise PromptError(f"coords_list has {len(coords_list)} positions, but labels_list has {len(labels_list)}")
    works = [
        client._work(None, coords, labels, None, None, False)
        for coords, labels in zip(coords_list, labels_list, strict=True)
    ]
    return client._queue(works, session_id)


async def wait_for_latest_result(
    tasks: Sequence[Queued], client: SpeculativeSAM2Client, session_id: str
) -> Result | None:
    """Wait for the mask of the newest position.

    All other requests of the lane are cancelled first.

    Args:
        tasks: results of queue_multiple_requests() or predict_async(), the newest last.
        client: the client.
        session_id: the lane of the predictions.

    Returns:
        (masks, iou) of the last of ``tasks``; None if it was cancelled or replaced, or if ``tasks`` is empty.

    Raises:
        ServerError: the newest prediction failed.
    """
    client.cancel_session_requests(session_id, keep_latest=True)
    if not tasks:
        return None
    _, newest = tasks[-1]
    await asyncio.wait([newest])
    return None if newest.cancelled() else newest.result()
