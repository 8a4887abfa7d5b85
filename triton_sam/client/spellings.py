"""Second spellings of parameters: their names in the clients of this project's first versions.

docs/compatibility.md lists them. Type checkers accept only the first spelling.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import ConfigurationError, InputError
from ..families.base import Family

P = ParamSpec("P")
R = TypeVar("R")


def also_spelled(
    error: type[ConfigurationError | InputError] = InputError, /, **others: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets callers write other names for keyword arguments.

    Args:
        others: the second spellings, each with the name of its parameter, for example ``triton_url="url"``.
    """

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        places = {name: place for place, name in enumerate(inspect.signature(call).parameters)}

        def rename(args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
            if others.keys().isdisjoint(given):
                return given
            for other, name in others.items():
                if other in given:
                    if name in given or len(args) > places[name]:
                        raise error(f"{name} and {other} are the same parameter: give one of them")
                    given[name] = given.pop(other)
            return given

        @functools.wraps(call)
        def spelled(*args: P.args, **kwargs: P.kwargs) -> R:
            return call(*args, **rename(args, kwargs))

        @functools.wraps(call)
        async def spelled_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await cast(Awaitable[Any], call(*args, **rename(args, kwargs)))

        # An async function stays async, so that it raises its errors when the caller awaits it.
        return cast(Callable[P, R], spelled_async) if inspect.iscoroutinefunction(call) else spelled

    return decorate


def timeout_in_second_place(call: Callable[P, None]) -> Callable[P, None]:
    """Decorate a constructor (url, model_type, ...): a number in place of the family is the timeout in seconds.

    The first speculative client was ``SpeculativeSAM2Client(url, timeout)``.
    """

    @functools.wraps(call)
    def constructor(*args: P.args, **kwargs: P.kwargs) -> None:
        positional: tuple[Any, ...] = args
        keywords: dict[str, Any] = kwargs
        own, url, second = (*positional[:3], None, None, None)[:3]
        if isinstance(second, (int, float)) and not isinstance(second, bool):
            if "timeout" in keywords:
                raise ConfigurationError(f"{second} in second place is a timeout already: leave out timeout")
            return call(*(own, url), **{**keywords, "timeout": float(second)})
        return call(*args, **kwargs)

    return constructor


def check_image_size(image_size: int | None, family: Family) -> None:
    """Check the argument ``image_size`` of the first clients, which resized images to a side that the caller chose."""
    if image_size not in (None, family.image_size):
        raise ConfigurationError(
            f"image_size={image_size}: the encoder of {family.label} takes {family.image_size} pixels, and the client "
            "resizes every image itself: leave out image_size"
        )
