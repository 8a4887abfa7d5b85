#!/usr/bin/env python3
"""Measure `triton-sam annotate` beside the encoder and the decoder in this process, which are its limit.

Both take turns on drawn scenes whose boxes become masks: the same images, the same requests, the built-in
model. Example:

    python tools/lab/benchmark_annotate.py --images 40 --decoder-in-session
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test"))

from support.drawn_data_set import write_scenes

from triton_sam._common import strict_json
from triton_sam._common.bundle import bundled
from triton_sam.annotate.folder import RunFolder
from triton_sam.annotate.job import Inputs, Job
from triton_sam.annotate.run import annotate
from triton_sam.client.sync import SamTritonClient
from triton_sam.errors import SamError
from triton_sam.local_server import LocalServer
from triton_sam.transport.base import Tensors
from triton_sam.transport.onnx import OnnxTransport

Figures = dict[str, float]


class TimedTransport(OnnxTransport):
    """Runs the models in this process, and sums the seconds of ONNX Runtime."""

    seconds = 0.0

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        begin = time.perf_counter()
        try:
            return super().infer(model, inputs, outputs)
        finally:
            self.seconds += time.perf_counter() - begin


def run(job: Job, inputs: Inputs, folder: Path, threads: int) -> float:
    """Annotate all images and return the seconds."""
    with job.clients() as clients:
        results = RunFolder(folder, job.manifest(inputs, clients), inputs.items)
        begin = time.perf_counter()
        with results.opened():
            annotate(results, results.shards(inputs.items), job.work(inputs), clients * threads)
        return time.perf_counter() - begin


def limit(job: Job, inputs: Inputs, transport: TimedTransport) -> tuple[float, float]:
    """Annotate all images in this process; return the seconds of both models, and the total seconds."""
    client = SamTritonClient("localhost", embeddings="client", transport=transport)  # no connection is opened
    transport.seconds, begin, work = 0.0, time.perf_counter(), job.work(inputs)
    for item in inputs.items:
        work(client, item)
    return transport.seconds, time.perf_counter() - begin


def measure(count: int, side: int, rounds: int, threads: int, *, decoder_in_session: bool = False) -> Figures:
    """Return the median images per second of the command, of only the models, and of the whole run in this process."""
    models = bundled("model_repository")
    files = {name: models / name / "1" / "model.onnx" for name in ("sam2_encoder", "sam2_decoder")}
    local = LocalServer(models, models=["sam2"], decoder_in_session=decoder_in_session)
    with tempfile.TemporaryDirectory() as name, local as server:
        job = Job(str(write_scenes(Path(name), count, side, None)), "boxes", urls=(server.grpc_url,))
        inputs = job.read()
        transport = TimedTransport(files)
        rows = []
        for number in range(rounds + 1):
            seconds = run(job, inputs, Path(name) / f"out{number}", threads)
            rows.append((seconds, *limit(job, inputs, transport)))
        served, alone, whole = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    objects = sum(1 for item in inputs.items for _ in inputs.prompts.of(item, (side, side))[0]) if inputs.prompts else 0
    return {
        "images": count,
        "objects": objects,
        "annotate, images/s": count / served,
        "models in process, images/s": count / alone,
        "everything in process, images/s": count / whole,
        "annotate / models in process": alone / served,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=40, metavar="N", help="drawn scenes (default: 40)")
    parser.add_argument("--side", type=int, default=512, metavar="PIXELS", help="their side (default: 512)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="counted rounds (default: 3)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="as of the command (default: 2)")
    parser.add_argument("--decoder-in-session", action="store_true", help="as of `triton-sam serve`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if min(args.images, args.side, args.rounds, args.threads) < 1:
        parser.error("all numbers must be at least 1")
    try:
        figures = measure(args.images, args.side, args.rounds, args.threads, decoder_in_session=args.decoder_in_session)
    except SamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(strict_json.dumps(figures))
    else:
        print("\n".join(f"{name:32} {value:8.2f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
