"""Measure the duration of searches for one and twenty words, and with the encode of a new image."""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import Any

from PIL import Image

from ..errors import SamError
from .progress import Progress
from .results import Results, times_row
from .settings import BenchmarkSettings
from .target import Target
from .timing import Act, take_turns

COUNTS = (1, 20)
"""Numbers of words per search."""
CASES: dict[str, dict[str, Any]] = {
    "no instance": {"threshold": 1.0},
    "two instances a word": {"threshold": 0.0, "limit": 2},
}
"""Parameters of the searches. Scores of random weights are meaningless, so the threshold passes none or two of them."""
MAX_SEARCHES = 5


def measure_words(
    target: Target, settings: BenchmarkSettings, results: Results, session: bool, progress: Progress
) -> None:
    """Measure searches. The numbers of words, the protocols and the official detector take turns.

    The official detector has no limit and always computes all masks of a word, so it takes part only without instances.

    Args:
        results: receives the rows of the section "words", or a note that the server cannot find words.
    """
    if not target.pair.family.concepts:
        return
    if not session or not target.finds_concepts():
        name = target.family
        results.note(f"No words were searched: set the models up with `triton-sam setup {name} --concepts`.")
        return
    progress.step("words")
    numbers, times = itertools.count(), dict[str, list[float]]()
    with contextlib.ExitStack() as stack:
        acts: dict[str, Act] = {}
        for protocol in target.protocols:
            client = stack.enter_context(target.client(protocol, "server"))
            for case, count in itertools.product(CASES, COUNTS):
                acts[f"session|{protocol}|{case}|{count}"] = lambda client=client, case=case, count=count: client.find(  # type: ignore[misc]
                    _words(numbers, count), image=target.unseen_content(), **CASES[case]
                )
        acts |= _official(target, settings, results, numbers)
        try:
            rounds = min(settings.least_rounds, MAX_SEARCHES)
            take_turns(acts, times, settings.duration, min_rounds=rounds, max_rounds=MAX_SEARCHES)
        finally:
            for name, values in times.items():
                who, protocol, case, count = name.split("|")
                results.add(*times_row("words", case, who, values, protocol=protocol or None, size=int(count)))


def _official(
    target: Target, settings: BenchmarkSettings, results: Results, numbers: itertools.count[int]
) -> dict[str, Act]:
    """Return the searches of the official detector in PyTorch. A note explains why they are left out."""
    if "torch" not in settings.compare or target.weights is None:
        return {}
    try:
        reference = target.weights.concept_reference(target.family)
    except SamError as error:
        results.note(f"The official detector of words was left out: {error}")
        return {}
    case = next(iter(CASES))

    def search(count: int) -> None:
        with Image.open(io.BytesIO(target.content)) as image:
            reference.set_image(image.convert("RGB"))
        reference.find(_words(numbers, count), threshold=CASES[case]["threshold"])

    return {f"torch||{case}|{count}": lambda count=count: search(count) for count in COUNTS}  # type: ignore[misc]


def _words(numbers: itertools.count[int], count: int) -> list[str]:
    """Return new words, so that each must be encoded."""
    return [f"word {next(numbers)}" for _ in range(count)]
