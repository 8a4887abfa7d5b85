"""Clients that try to stall or bloat a running service. Each runs as a separate program.

python test/support/attackers.py NAME URL SECONDS
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image
from support.contents import encoded

SIDE = 7000


def wide_png(side: int) -> bytes:
    """Return a PNG, of 49 megapixels with SIDE, whose large squares the demo model finds."""
    pixels = np.zeros((side, side), np.uint8)
    step = side // 4
    for row in range(4):
        for column in range(4):
            y, x = row * step + step // 4, column * step + step // 4
            pixels[y : y + step // 2, x : x + step // 2] = 90 + 10 * (row + column)
    return encoded(Image.fromarray(pixels))


def upload(url: str, content: bytes) -> str:
    """Upload an image; return its id."""
    return str(httpx.post(f"{url}/v1/images", files={"image": content}, timeout=120).json()["id"])


async def _repeat(url: str, content: bytes, end: float) -> None:
    """Send requests one by one, each over a new connection, until its answer begins."""
    place = urlsplit(url)
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(content)
            await reader.readline()
            writer.transport.abort()


async def masks(url: str, end: float) -> None:
    """16 concurrent requests, each for the polygons of 8 objects in a large image."""
    image = await asyncio.to_thread(upload, url, wide_png(SIDE))
    step = SIDE // 4
    objects = [{"points": [[(n % 4) * step + step // 2, (n // 4) * step + step // 2]]} for n in range(8)]
    body = json.dumps({"objects": objects, "format": "polygons"}).encode()
    lines = [f"POST /v1/images/{image}/segment HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "\r\n"]).encode()
    await asyncio.wait(
        [asyncio.create_task(_repeat(url, head + body, end)) for _ in range(16)],
        timeout=max(0.0, end - time.monotonic()),
    )


async def deaf(url: str, end: float) -> None:
    """Ten clicks per second over each of 4 sockets, without reading the answers."""
    from websockets.asyncio.client import connect

    from triton_sam.service.messages import VERSION

    image = await asyncio.to_thread(upload, url, wide_png(512))
    message = {"type": "segment", "lane": "click", "image": image, "multimask": True}

    async def click() -> None:
        async with connect(url.replace("http", "ws") + "/live", ping_interval=None) as socket:
            await socket.send(json.dumps({"type": "hello", "version": VERSION}))
            await socket.recv()
            socket.transport.pause_reading()
            setattr(socket.transport, "resume_reading", lambda: None)  # noqa: B010 - mypy allows no assignment
            seq = 0
            while time.monotonic() < end:
                await socket.send(json.dumps({**message, "seq": seq, "points": [[9 + seq % 400, 9]]}))
                await asyncio.sleep(0.1)
                seq += 1
            socket.transport.abort()

    await asyncio.wait([asyncio.create_task(click()) for _ in range(4)], timeout=max(0.0, end - time.monotonic()))


ATTACKS = {"masks": masks, "deaf": deaf}

if __name__ == "__main__":
    name, url, seconds = sys.argv[1:]
    asyncio.run(ATTACKS[name](url, time.monotonic() + float(seconds)))
