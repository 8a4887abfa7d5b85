"""Move an imaginary mouse in circles over an image, and print the masks that arrive meanwhile.

python examples/speculative.py --local
python examples/speculative.py --url grpc://localhost:8001 --image photo.jpg
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
import time

import numpy as np

from triton_sam import SamError, SpeculativeSAM2Client
from triton_sam._common.bundle import bundled


async def play(url: str | None, image: str, seconds: float) -> None:
    """Move the mouse 60 times per second, and print each mask that arrives.

    Args:
        url: URL of the server; None means the client's default.
        image: path of the image.
        seconds: duration of the movement.
    """
    async with SpeculativeSAM2Client(url) as client:
        await client.set_image_async(image)
        width, height = client.image_embeddings.image_size
        start = time.perf_counter()

        def show(x: float, y: float, task: asyncio.Task) -> None:
            if not task.cancelled() and task.exception() is None:
                masks, iou = task.result()
                share = (masks[0, 0] > 0).mean()
                now = time.perf_counter() - start
                print(f"{now:6.2f} s  position ({x:4.0f},{y:4.0f})  mask {share:6.1%}, score {iou[0, 0]:.2f}")

        asked = 0
        while (now := time.perf_counter() - start) < seconds:
            x, y = width * (0.5 + 0.3 * math.cos(2 * now)), height * (0.5 + 0.3 * math.sin(2 * now))
            _, task = await client.predict_async(np.array([[x, y]]), [1], session_id="mouse")
            task.add_done_callback(lambda task, x=x, y=y: show(x, y, task))
            asked += 1
            await asyncio.sleep(1 / 60)
        print(f"the mouse stops after {asked} positions")
        client.cancel_session_requests("mouse")
        await task  # the mask of the last position, or the error of its request
        print(f"{asked} asked, {client.requests_sent} sent:", client.get_session_status("mouse"))


def main() -> int:
    """Parse the arguments and move the mouse. An error is printed as one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="URL of the server (default: $TRITON_URL, else localhost:8000)")
    parser.add_argument("--local", action="store_true", help="start a local Triton and use it")
    parser.add_argument(
        "--image",
        default=str(bundled("test/images") / "shapes.jpg"),
        help="image file (default: an image of this project)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the movement (default: 3)")
    args = parser.parse_args()
    if not args.seconds > 0:
        parser.error("--seconds must be above 0")
    try:
        run(args)
    except SamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(args: argparse.Namespace) -> None:
    """Move the mouse on the server at --url, or on a local one."""
    with contextlib.ExitStack() as stack:
        if args.local:
            from triton_sam.local_server import LocalServer

            server = stack.enter_context(
                LocalServer(bundled("model_repository"), models=["sam2_encoder", "sam2_decoder"])
            )
            args.url = server.grpc_url
        asyncio.run(play(args.url, args.image, args.seconds))


if __name__ == "__main__":
    sys.exit(main())
