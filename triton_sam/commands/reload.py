"""Reload models on a running server.

A name is a model (`sam2_encoder`) or a variant (`sam2`: all its models, with those for videos and words).

A server that accepts requests to load models (`triton-sam serve --admin`, or a container with TRITON_SAM_ADMIN=1)
reloads without interruption: Triton serves the old version until the new one is ready, and keeps it if the new one does
not load.

Any other server is restarted by its supervisor, which takes as long as its models need to load; clients repeat their
requests meanwhile. Run the command as the server's user, on its machine or inside its container. It checks the files
first, and does not restart the server if a file is damaged.

A session model with a new encoder starts with an empty cache; the clients send their images again automatically.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Collection, Iterable, Sequence

from ..errors import ConfigurationError, InferenceError
from ..families import pair_names
from ..repository.selection import models_of_variant, read_repository, unloadable
from ..transport.triton import Transport
from ..transport.url import parse_url
from . import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="models or variants, for example sam2")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="time limit for each model (default: 600, because TensorRT is slow)",
    )
    _options.add_access(parser)
    _options.add_url(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and print the name and the version of every loaded model."""
    from ..local_server.control import find_closed_server

    url = parse_url(args.url)
    server = find_closed_server(url.port) if url.is_local else None
    if server is not None:
        models = read_repository(server.repository)
        names = _expand(args.names, models.keys() - unloadable(models).keys(), models)
        _options.say(args, "the server accepts no requests to load models, so it starts again ...")
        versions = server.load_again(names, args.timeout)
    else:
        transport = Transport(url, timeout=args.timeout, retries=0, **_options.access(args))
        with contextlib.closing(transport):
            names = reload(transport, args.names)
            versions = transport.ready_models()
    for name in names:
        print(f"{name} version {versions.get(name, '?')}")
    return 0


def reload(transport: Transport, names: Sequence[str]) -> list[str]:
    """Reload models, encoders and decoders before the session models that use them.

    If a model of a variant does not load, for example a video model before an export with --video, the model is left
    out. This does not apply to the model pair, the session model, and models that were ready.

    Returns:
        Names of the loaded models.
    """
    known = transport.known_models()
    ready = transport.ready_models()
    needed = {*names, *ready, *(model for name in names for model in pair_names(name))}
    wanted = []
    for name in _expand(names, known, known):
        try:
            transport.load_model(name)
        except InferenceError:
            if name in needed:
                raise
        else:
            wanted.append(name)
    stale = [name for name in ready if name not in wanted and _encoder_of(transport, name) in wanted]
    renewed = [name for name in wanted if name in ready and _encoder_of(transport, name) in wanted]
    for name in [*stale, *renewed]:
        _renew(transport, name)
    return [*wanted, *stale]


def _expand(names: Iterable[str], loadable: Collection[str], known: Collection[str]) -> list[str]:
    """Return the models to load, each after the models that it calls; some of ``known`` cannot be loaded."""
    wanted: list[str] = []
    for name in names:
        found = models_of_variant(name, loadable, known)
        if not found:
            listed = ", ".join(sorted(known)) or "nothing"
            raise ConfigurationError(f"the server's repository has no model or variant {name!r}, but {listed}")
        wanted += [model for model in found if model not in wanted]
    return wanted


def _encoder_of(transport: Transport, model: str) -> str | None:
    """Return the encoder in the parameters of a session model; None for other models."""
    parameters = transport.model_config(model).get("parameters", {})
    name: str | None = parameters.get("encoder", {}).get("string_value")
    return name


def _renew(transport: Transport, model: str) -> None:
    """Reload a model with unchanged files. Triton does so only if the configuration changes."""
    config = transport.model_config(model)
    config.setdefault("parameters", {})["reloaded"] = {"string_value": str(time.time())}
    transport.load_model(model, config)
