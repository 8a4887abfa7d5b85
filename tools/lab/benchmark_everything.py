#!/usr/bin/env python3
"""Measure how fast the demo model finds all objects of an image.

The official generator, this process, a client that sends clicks, and the session model that searches by itself take
turns. Example:

    python tools/lab/benchmark_everything.py --points 16 32
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam._common import strict_json
from triton_sam._common.bundle import bundled
from triton_sam._common.process import run_program
from triton_sam._common.text import aligned
from triton_sam.client.sync import SAM2TritonClient
from triton_sam.export import registry
from triton_sam.export.reference import GenerateMasks
from triton_sam.families import get_family, model_name
from triton_sam.families.tables import DECODER, ENCODER
from triton_sam.inputs.images import ImageSource, image_bytes, open_image
from triton_sam.local_server import LocalServer
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url
from triton_sam.verify.compare import OnnxClient
from triton_sam.verify.everything import by_client, fitting_thresholds
from triton_sam.wire import contract

FAMILY = "sam2"
OFFICIAL = "official generator"
_PATIENCE = 3600.0  # timeout of a request in seconds; the session model responds at the end of the search
_WARM_UP = 4  # points along one side in an unmeasured search; more would only take time

Say = Callable[[str], None]


@dataclass(frozen=True)
class SearchSpeed:
    """The time of a search."""

    runner: str
    points: int
    masks: int
    median: float
    ratio: float


class SessionJob:
    """Sends one request to the session model, which runs the search on the server."""

    def __init__(self, url: str) -> None:
        self._transport = Transport(parse_url(url), timeout=_PATIENCE)

    def __call__(self, image: ImageSource, **parameters: Any) -> list[dict[str, Any]]:
        content = image_bytes(image)
        inputs = {
            contract.IMAGE: np.array([content], np.object_),
            contract.EVERYTHING: np.array([strict_json.dumps(parameters).encode()], np.object_),
        }
        answer = self._transport.infer(FAMILY, inputs, [contract.RESULT_JSON])[contract.RESULT_JSON][0]
        objects: list[dict[str, Any]] = json.loads(answer)["objects"]
        return objects

    def close(self) -> None:
        self._transport.close()


def measure_searches(
    server: LocalServer, image: Path, points: Sequence[int], rounds: int, say: Say
) -> Iterator[SearchSpeed]:
    """Measure searches of the demo model in turns: the official generator, this process, both ways through Triton.

    Half of the candidates of a small grid pass the thresholds. No mask of the demo model passes the official ones.
    """
    pixels = np.asarray(open_image(image))
    with contextlib.ExitStack() as stack:
        runners = _runners(server, stack)
        thresholds = fitting_thresholds(runners[OFFICIAL], pixels)
        for name, runner in runners.items():
            say(f"{_WARM_UP} x {_WARM_UP} points before the measurement, {name}")
            runner(pixels, points_per_side=_WARM_UP, **thresholds)
        for count in points:
            seconds: dict[str, list[float]] = {name: [] for name in runners}
            masks = {}
            for turn, (name, runner) in itertools.product(range(rounds), runners.items()):
                say(f"{count} x {count} points, round {turn + 1}, {name}")
                began = time.perf_counter()
                masks[name] = len(runner(pixels, points_per_side=count, **thresholds))
                seconds[name].append(time.perf_counter() - began)
                say(f"{seconds[name][-1]:.1f} s, {masks[name]} masks")
            medians = {name: statistics.median(each) for name, each in seconds.items()}
            for name, median in medians.items():
                yield SearchSpeed(name, count, masks[name], median, medians[OFFICIAL] / median)


def format_searches(speeds: Sequence[SearchSpeed]) -> str:
    """Return the speeds of searches as aligned plain text."""
    head = ("runner", "grid", "masks", "median s", "official / this")
    rows = [
        (one.runner, f"{one.points} x {one.points}", str(one.masks), f"{one.median:.2f}", f"{one.ratio:.2f}")
        for one in speeds
    ]
    return aligned(head, rows, right=range(1, 5))


def _runners(server: LocalServer, stack: contextlib.ExitStack) -> dict[str, GenerateMasks]:
    family = get_family(FAMILY)
    repository = bundled("model_repository")
    files = {role: repository / model_name(FAMILY, role) / "1" / "model.onnx" for role in (ENCODER, DECODER)}
    checkpoint = bundled("checkpoints") / f"{family.built_in}.pt"
    in_process = stack.enter_context(OnnxClient(files))
    served = stack.enter_context(SAM2TritonClient(server.grpc_url, timeout=_PATIENCE))
    exporter, model = registry.official(FAMILY, checkpoint, None, None)
    return {
        OFFICIAL: exporter.everything_reference(model),
        "client, in process": by_client(in_process),
        "session model in parts, gRPC": lambda image, **parameters: list(served.everything(image, **parameters)),
        "session model, gRPC": stack.enter_context(contextlib.closing(SessionJob(server.grpc_url))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, metavar="FILE", help="image (default: a photo of this project)")
    parser.add_argument("--points", type=int, nargs="+", default=[16], metavar="N", help="points a side (default: 16)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds (default: 2)")
    args = parser.parse_args()
    return run_program(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    image = args.image or bundled("test/images") / "coffee.jpg"
    with LocalServer(bundled("model_repository")) as server:
        say = partial(print, file=sys.stderr)
        print(format_searches(list(measure_searches(server, image, args.points, args.rounds, say))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
