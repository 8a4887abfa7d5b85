#!/usr/bin/env python3
"""Measure how long a search for words takes: one word and many, served, in this process, and by transformers.

Each search gets an image that nobody has seen, so its time contains the encode. The runners take turns. Weights are
random, so thresholds are chosen that either no proposal or a few pass. Example:

    python scripts/benchmark_words.py --size reduced --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triton_sam._common.bundle import bundled
from triton_sam.client.sync import SamTritonClient
from triton_sam.errors import SamError
from triton_sam.export import registry
from triton_sam.export.settings import Settings
from triton_sam.families import get_family
from triton_sam.local_server import LocalServer
from triton_sam.verify.concept_transport import ConceptTransport

FAMILY = "sam3"
SEED = 0
CASES = {"no instance": {"threshold": 1.0}, "two instances each": {"threshold": 0.0, "limit": 2}}
Search = Callable[[Image.Image, list[str], dict[str, Any]], object]


def client_search(client: SamTritonClient) -> Search:
    """Return a search by a client."""
    return lambda image, words, parameters: client.find(words, image=image, **parameters)


def reference_search(size: str) -> Search:
    """Return a search by the official detector. It always makes all 200 masks of a word, and knows no limit."""
    reference = registry.concept_reference(FAMILY, None, size, SEED)

    def search(image: Image.Image, words: list[str], parameters: dict[str, Any]) -> object:
        reference.set_image(image)
        return reference.find(words, threshold=parameters["threshold"])

    return search


def measure(runners: dict[str, Search], words: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each runner, case and number of words. The first round does not count."""
    photo = Image.open(bundled("test/images") / "coffee.jpg").convert("RGB")
    shifts = itertools.count(1)  # each makes an image that no cache holds
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in runners}
    for number in range(rounds + 1):
        for case, parameters in CASES.items():
            for count in (1, len(words)):
                for name, search in runners.items():
                    if name == "transformers" and case != "no instance":
                        continue
                    fresh = Image.fromarray(np.roll(np.asarray(photo), next(shifts), axis=1))
                    begin = time.perf_counter()
                    search(fresh, words[:count], parameters)
                    if number:
                        key = f"{case}, {count} words"
                        taken[name].setdefault(key, []).append(time.perf_counter() - begin)
    return {name: {key: statistics.median(each) for key, each in found.items()} for name, found in taken.items()}


def main() -> int:
    """Export, serve and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="reduced", choices=("reduced", "full"), help="default: reduced")
    parser.add_argument("--words", type=int, default=20, help="number of words of the long search (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default: 3)")
    arguments = parser.parse_args()
    words = [f"word {index}" for index in range(arguments.words)]
    with tempfile.TemporaryDirectory(prefix="triton_sam_words_") as temporary:
        folder = Path(temporary)
        settings = Settings(folder, model=arguments.size, random_seed=SEED, concepts=True, progress=True)
        exported = registry.export(FAMILY, settings)
        shutil.copytree(bundled("model_repository") / FAMILY, folder / FAMILY)
        inside = SamTritonClient(model_type=FAMILY, transport=ConceptTransport(get_family(FAMILY), exported.files))
        with (
            LocalServer(folder, models=[FAMILY], http_port=0, grpc_port=0, metrics_port=0) as server,
            SamTritonClient(server.grpc_url, FAMILY, timeout=3600) as served,
            inside,
        ):
            runners = {
                "transformers": reference_search(arguments.size),
                "in process": client_search(inside),
                "served": client_search(served),
            }
            found = measure(runners, words, arguments.rounds)
    for name, figures in found.items():
        for case in CASES:
            one, many = (figures.get(f"{case}, {count} words") for count in (1, len(words)))
            if one and many:
                ratio = f"{many / one:.2f} times"
                print(f"{name:13}{case:20}1 word {one:7.2f} s   {len(words)} words {many:7.2f} s   {ratio}")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SamError as error:
        sys.exit(f"benchmark_words: error: {error}")
