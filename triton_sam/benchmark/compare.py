"""The session model next to what a user would get otherwise, taking turns in one run, with the same weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from ..client.base import EmbeddingsPlace
from ..client.sync import SAM2TritonClient
from ..errors import SamError
from ..export.reference import Reference
from ..inputs.images import open_image
from ..transport.url import parse_url
from .link import EmulatedLink, parse_link
from .progress import Progress
from .results import Results, times_row
from .settings import MAX_ROUNDS, OVER_LINK, Settings
from .target import Point, Target
from .timing import Act, take_turns

OPERATIONS = ("encode", "click", "click, full-size mask")
MAX_ENCODES = 7


class Contender(Protocol):
    """Who takes part. An encode begins with the encoded bytes of a picture, as they lie in a file."""

    def encode(self, content: bytes) -> object:
        """Make a picture ready for clicks."""

    def click(self, point: Point) -> object:
        """Return low-resolution logits; not of everybody."""

    def mask(self, point: Point) -> object:
        """Return a full-size mask."""


class ClientContender:
    """A client of this kit: of the server, or with ONNX Runtime in this process."""

    def __init__(self, client: SAM2TritonClient) -> None:
        self._client = client

    def encode(self, content: bytes) -> object:
        """See Contender."""
        return self._client.set_image(content)  # type: ignore[func-returns-value]

    def click(self, point: Point) -> object:
        """See Contender."""
        return self._client.predict([point])

    def mask(self, point: Point) -> object:
        """See Contender."""
        return self._client.segment([point])


class TorchContender:
    """The official predictor, eager, on the CPU. It hands out full-size masks and nothing faster."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def encode(self, content: bytes) -> object:
        """See Contender."""
        return self._reference.set_image(open_image(content))  # type: ignore[func-returns-value]

    def mask(self, point: Point) -> object:
        """See Contender."""
        return self._reference.answer({"point_coords": [point], "point_labels": [1]}, False)


def measure_comparison(target: Target, settings: Settings, results: Results, session: bool, progress: Progress) -> None:
    """Let all take turns at encoding, clicking, and full-size masks."""
    progress.step("making ready")
    with contextlib.ExitStack() as stack:
        contenders = _contenders(target, settings, results, session, stack)
        points = target.points()
        for operation in OPERATIONS:
            progress.step(operation)
            acts: dict[str, Act] = {}
            for name, contender in contenders.items():
                act = _act(contender, operation, target, lambda: next(points))
                if act is not None:
                    acts[name] = act
            _measure(operation, acts, settings, results)
    progress.step(OVER_LINK)
    _measure_over_link(target, settings, results, session)


def _measure(operation: str, acts: dict[str, Act], settings: Settings, results: Results) -> None:
    times: dict[str, list[float]] = {}
    most = MAX_ENCODES if operation == "encode" else MAX_ROUNDS
    try:
        take_turns(acts, times, settings.duration, least=settings.least_rounds, most=most)
    finally:
        for name, values in times.items():
            who, _, protocol = name.partition(" ")
            results.add(*times_row("comparison", operation, who, values, protocol=protocol or None))


def _measure_over_link(target: Target, settings: Settings, results: Results, session: bool) -> None:
    """Let the session model and the naive client take turns at clicks over an emulated network."""
    link = parse_link(settings.link)
    if link is None or not session or "naive" not in settings.compare:
        return
    if not target.is_here:
        results.note("No network was emulated: there is a real one between this machine and the server.")
        return
    points = target.points()
    with contextlib.ExitStack() as stack:
        acts: dict[str, Act] = {}
        for protocol, url in target.urls.items():
            server = parse_url(url)
            if server.is_secure:
                results.note(f"No network was emulated for {server}: its certificate does not name the relay.")
                continue
            emulated = stack.enter_context(EmulatedLink(str(server), link))
            places: dict[str, EmbeddingsPlace] = {"naive": "client", "session": "server"}
            for who, place in places.items():
                client = stack.enter_context(target.client(protocol, place, emulated.url))
                client.set_image(target.content)
                acts[f"{who} {protocol}"] = lambda click=client.predict: click([next(points)])  # type: ignore[misc]
        _measure(OVER_LINK, acts, settings, results)


def _act(contender: object, operation: str, target: Target, point: Callable[[], Point]) -> Act | None:
    if operation == "encode":
        encode = contender.encode  # type: ignore[attr-defined]
        return lambda: encode(target.fresh())
    call = getattr(contender, "click" if operation == "click" else "mask", None)
    return None if call is None else lambda: call(point())


def _contenders(
    target: Target, settings: Settings, results: Results, session: bool, stack: contextlib.ExitStack
) -> dict[str, ClientContender | TorchContender]:
    """Return who takes part, by "who" or "who protocol"; notes say who does not, and why."""
    found: dict[str, ClientContender | TorchContender] = {}
    for name in settings.compare:
        if name == "naive":
            for protocol in target.protocols:
                found[f"naive {protocol}"] = ClientContender(stack.enter_context(target.client(protocol, "client")))
            continue
        if target.weights is None:
            results.note(f"{name} was left out: the server's weights are not known here, give --weights.")
            continue
        try:
            if name == "torch":
                found[name] = TorchContender(target.weights.reference(target.family))
            else:
                found[name] = ClientContender(stack.enter_context(_in_process(target)))
        except SamError as error:
            results.note(f"{name} was left out: {error}")
    if session:
        for protocol in target.protocols:
            found[f"session {protocol}"] = ClientContender(stack.enter_context(target.client(protocol, "server")))
    return found


def _in_process(target: Target) -> SAM2TritonClient:
    from ..verify.compare import OnnxClient

    assert target.weights is not None  # noqa: S101 - checked by the caller
    return OnnxClient(target.weights.files, target.family)
