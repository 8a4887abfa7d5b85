"""Which model pair answers a caller: the one that it names, or else one that stands for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("fastapi")
from support.in_process import InProcess

from triton_sam.errors import ServerUnreachableError
from triton_sam.service.engine import MODEL_HEADER, Engine
from triton_sam.service.metrics import Metrics
from triton_sam.service.problems import Problem, answer_headers
from triton_sam.service.settings import ServiceSettings


def server(pairs: Mapping[str, str]) -> InProcess:
    return InProcess(lambda model, inputs, wanted: {}, pairs)


def asked(serves: Mapping[str, str], name: str | None, default: str = "sam2") -> tuple[str, str | None]:
    """Ask an engine for a pair; return the name of the pair, and the name that the answer tells."""

    async def ask() -> tuple[str, str | None]:
        headers: dict[str, str] = {}
        answer_headers.set(headers)
        engine = Engine(ServiceSettings(url=triton.url, model=default), Metrics())
        try:
            return (await engine.pair(name)).name, headers.get(MODEL_HEADER)
        finally:
            await engine.stop()

    with server(serves) as triton:
        return asyncio.run(ask())


VARIANTS = {"sam1": "sam1", "sam2.1_large": "sam2", "sam2.1_tiny": "sam2"}
BOTH = {"sam2": "sam2", "sam2.1_tiny": "sam2", "sam1": "sam1"}


@pytest.mark.parametrize(
    ("serves", "name", "default", "answers"),
    [
        (BOTH, "sam1", "sam2", ("sam1", None)),
        (BOTH, "sam2.1_tiny", "sam2", ("sam2.1_tiny", None)),
        (BOTH, None, "sam2.1_tiny", ("sam2.1_tiny", None)),
        (BOTH, "", "sam2", ("sam2", None)),
        (VARIANTS, "sam2", "sam1", ("sam2.1_large", "sam2.1_large")),
        ({"mine": "sam2"}, "sam2", "sam1", ("mine", "mine")),
        (VARIANTS, None, "sam2", ("sam2.1_large", "sam2.1_large")),
        (VARIANTS, None, "sam3", ("sam1", "sam1")),
        (VARIANTS, "", "sam3", ("sam1", "sam1")),
    ],
    ids=[
        "named",
        "a named variant",
        "the default",
        "an empty name",
        "a variant of the named family",
        "a variant with another name",
        "a variant of the default family",
        "the first pair for a default that is not served",
        "the same for an empty name",
    ],
)
def test_the_pair_of_a_caller(serves: dict[str, str], name: str | None, default: str, answers: tuple) -> None:
    assert asked(serves, name, default) == answers


def test_a_named_model_that_is_not_served_is_unknown_whatever_the_default_is() -> None:
    with pytest.raises(Problem) as caught:
        asked(VARIANTS, "sam3" + "x" * 200, "sam1")
    assert (caught.value.status_code, caught.value.code) == (404, "unknown_model")
    words = f"there is no model {('sam3' + 'x' * 200)[:80]!r}: choose one of sam1, sam2.1_large, sam2.1_tiny"
    assert caught.value.detail == words


def test_a_triton_without_models_says_why() -> None:
    with pytest.raises(ServerUnreachableError, match="has no models ready: wait while it loads"):
        asked({}, None)


def test_a_model_that_was_loaded_since_the_last_look_is_found_and_known_ones_cost_no_look() -> None:
    looks: list[Any] = []

    async def story(triton: InProcess) -> None:
        engine = Engine(ServiceSettings(url=triton.url), Metrics())
        look = engine.look
        engine.look = lambda: (looks.append(1), look())[1]  # type: ignore[method-assign]
        try:
            assert (await engine.pair("sam1")).name == "sam1"
            assert not (await engine.pair("sam1")).keeps_images
            assert len(looks) == 1
            triton.add_pair("sam2", "sam2")
            triton.add_session_model("sam2")
            assert (await engine.pair("sam2")).keeps_images
            assert len(looks) == 2
        finally:
            await engine.stop()

    with server({"sam1": "sam1"}) as triton:
        asyncio.run(story(triton))
