"""Clients that try to stall or bloat a running service. Each runs as a separate program.

python test/support/attackers.py NAME URL SECONDS [TOKEN]
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
import urllib.request
from collections import Counter
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

SIDE = 7000


def deep_png(side: int = SIDE) -> bytes:
    """Return a small PNG with 16 bits per channel. Every copy of its pixels takes hundreds of megabytes."""
    return _png(np.broadcast_to((np.arange(side, dtype=np.uint16) * 9)[:, None], (side, side)))


def wide_png(side: int = SIDE) -> bytes:
    """Return a PNG of 49 megapixels whose large squares the demo model finds."""
    pixels = np.zeros((side, side), np.uint8)
    step = side // 4
    for row in range(4):
        for column in range(4):
            y, x = row * step + step // 4, column * step + step // 4
            pixels[y : y + step // 2, x : x + step // 2] = 90 + 10 * (row + column)
    return _png(pixels)


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def upload(url: str, content: bytes) -> str:
    """Upload an image; return its id."""
    body = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + content + b"\r\n--b--\r\n"
    request = urllib.request.Request(
        f"{url}/v1/images", body, {"Content-Type": "multipart/form-data; boundary=b"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(json.load(answer)["id"])


def head(method: str, path: str, length: int | None = None, kind: str = "application/json") -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if length is not None:
        lines += [f"Content-Type: {kind}", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _repeat(url: str, content: bytes, end: float, statuses: Counter[str]) -> None:
    """Send requests one by one, each over a new connection, and read every answer."""
    place = urlsplit(url)
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(content)
            line = await reader.readline()
            statuses[line.decode().split(" ")[1] if line else "closed"] += 1
            writer.transport.abort()
        except OSError as error:
            statuses[type(error).__name__] += 1
            await asyncio.sleep(0.05)


def _keys(megabytes: float) -> bytes:
    count = int(megabytes * 1e6 / 11)
    body = ("{" + ",".join(f'"{number:06d}":0' for number in range(count)) + "}").encode()
    return head("POST", f"/v1/images/{'0' * 32}/segment", len(body)) + body


async def keys(url: str, end: float, statuses: Counter[str]) -> None:
    """JSON with a million unknown members."""
    await asyncio.gather(*(_repeat(url, _keys(10.9), end, statuses) for _ in range(2)))


async def allowed_keys(url: str, end: float, statuses: Counter[str]) -> None:
    """JSON with unknown members, as large as the service accepts."""
    await asyncio.gather(*(_repeat(url, _keys(2.0), end, statuses) for _ in range(4)))


async def points(url: str, end: float, statuses: Counter[str]) -> None:
    """JSON with as many wrong points in as many objects as fit."""
    body = json.dumps({"objects": [{"points": [["x", "y"]] * 1024}] * 64}).encode()
    content = head("POST", f"/v1/images/{'0' * 32}/segment", len(body)) + body
    await asyncio.gather(*(_repeat(url, content, end, statuses) for _ in range(4)))


async def slow_bodies(url: str, end: float, statuses: Counter[str]) -> None:
    """256 uploads, with a byte every two seconds."""
    place = urlsplit(url)

    async def trickle() -> None:
        while time.monotonic() < end:
            try:
                _, writer = await asyncio.open_connection(place.hostname, place.port)
                writer.write(head("POST", "/v1/images", 1000, "multipart/form-data; boundary=b"))
                while time.monotonic() < end:
                    writer.write(b"-")
                    await writer.drain()
                    await asyncio.sleep(2)
                writer.transport.abort()
            except OSError:
                statuses["closed"] += 1
                await asyncio.sleep(0.1)

    await asyncio.gather(*(trickle() for _ in range(256)))


async def previews(url: str, end: float, statuses: Counter[str]) -> None:
    """Abandoned previews of a large image."""
    place = urlsplit(url)
    image = await asyncio.to_thread(upload, url, deep_png())
    for _ in range(40):
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(head("GET", f"/v1/images/{image}/preview"))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()
        statuses["sent"] += 1
    await asyncio.sleep(15)  # encoding the image also took some time


async def masks(url: str, end: float, statuses: Counter[str]) -> None:
    """16 concurrent requests, each for the polygons of 8 objects in a large image."""
    image = await asyncio.to_thread(upload, url, wide_png())
    step = SIDE // 4
    objects = [{"points": [[(n % 4) * step + step // 2, (n // 4) * step + step // 2]]} for n in range(8)]
    body = json.dumps({"objects": objects, "format": "polygons"}).encode()
    content = head("POST", f"/v1/images/{image}/segment", len(body)) + body
    await asyncio.wait(
        [asyncio.create_task(_repeat(url, content, end, statuses)) for _ in range(16)],
        timeout=max(0.0, end - time.monotonic()),
    )


async def flood(url: str, end: float, statuses: Counter[str]) -> None:
    """As many messages as eight sockets accept."""
    from websockets.asyncio.client import connect

    image = await asyncio.to_thread(upload, url, wide_png(512))
    message = json.dumps({"type": "segment", "lane": "hover", "seq": 1, "image": image, "points": [[9, 9]]})

    async def pour() -> None:
        async with connect(url.replace("http", "ws") + "/live", max_queue=None) as socket:
            await socket.send(json.dumps({"type": "hello", "version": await asyncio.to_thread(version)}))
            await socket.recv()
            reading = asyncio.create_task(drain(socket))
            while time.monotonic() < end:
                await socket.send(message)
                statuses["sent"] += 1
            reading.cancel()
            socket.transport.abort()

    async def drain(socket: object) -> None:
        async for _ in socket:  # type: ignore[attr-defined]
            pass

    await asyncio.wait([asyncio.create_task(pour()) for _ in range(8)], timeout=max(0.0, end - time.monotonic()))


async def deaf(url: str, end: float, statuses: Counter[str]) -> None:
    """Ten clicks per second over each of 4 sockets, without reading the answers."""
    from websockets.asyncio.client import connect

    image = await asyncio.to_thread(upload, url, wide_png(512))

    async def click() -> None:
        async with connect(url.replace("http", "ws") + "/live", ping_interval=None) as socket:
            await socket.send(json.dumps({"type": "hello", "version": await asyncio.to_thread(version)}))
            await socket.recv()
            socket.transport.pause_reading()
            setattr(socket.transport, "resume_reading", lambda: None)  # noqa: B010 - mypy allows no assignment
            for seq in range(1_000_000):
                if time.monotonic() > end:
                    break
                await socket.send(
                    json.dumps(
                        {
                            "type": "segment",
                            "lane": "click",
                            "seq": seq,
                            "image": image,
                            "points": [[9 + seq % 400, 9]],
                            "multimask": True,
                        }
                    )
                )
                statuses["sent"] += 1
                await asyncio.sleep(0.1)
            socket.transport.abort()

    await asyncio.wait([asyncio.create_task(click()) for _ in range(4)], timeout=max(0.0, end - time.monotonic()))


def version() -> int:
    """Return the version of the page's messages."""
    from triton_sam.service.messages import VERSION

    return VERSION


ATTACKS = {
    "keys": keys,
    "allowed-keys": allowed_keys,
    "points": points,
    "slow-bodies": slow_bodies,
    "previews": previews,
    "masks": masks,
    "flood": flood,
    "deaf": deaf,
}


def main() -> None:
    name, url, seconds = sys.argv[1:4]
    statuses: Counter[str] = Counter()
    asyncio.run(ATTACKS[name](url, time.monotonic() + float(seconds), statuses))
    print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    main()
