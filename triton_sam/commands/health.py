"""Send a test request to every served model.

Encodes a small image and clicks on it, with each model pair and each session model. If the server has models for words
and videos, the command also searches a word and tracks an object through two frames. The exit code is 0 if all requests
succeed in time, else 1. The test image occupies one place in the cache of a session model.

Triton before 26.04 reports that it is ready even if the process of a model was killed; this command detects that.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from ..client.server_models import ServerModels, sort_models
from ..client.sync import EmbeddingsPlace, SamTritonClient
from ..client.video.sync import SAM2VideoClient
from ..errors import ModelNotReadyError, SamError
from ..families import get_family
from ..families.tables import ENCODER, model_name, video_name
from ..transport.triton import Transport
from ..transport.url import parse_url
from . import _options

SIDE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time limit for each request (default: 10; the first request after a start may take longer)",
    )
    _options.add_access(parser)
    _options.add_url(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and print one line for each model pair and session model."""
    models, sides = _served(args)
    failed = 0
    for family, variants in models.variants.items():
        for variant in variants:
            succeeds = partial(_succeeds, args, family, variant)
            if video_name(variant) in models:
                failed += not succeeds("videos of", "work", _track)
            official = get_family(family).image_size
            if sides[variant] != official:  # clients send images only in the official size
                use = "for videos only" if get_family(family).tracking else "clients cannot use it"
                _options.say(args, f"model pair {variant}: {use}, its encoder takes {sides[variant]} pixels")
                if variant in models:
                    print(f"session model {variant}: its encoder must take {official} pixels; export it with --name")
                    failed += 1
                continue
            failed += not succeeds("model pair", "works", partial(_click, "client"))
            if variant in models:
                failed += not succeeds("session model", "works", partial(_click, "server"))
                roles = get_family(family).concepts
                if roles and all(model_name(variant, role) in models for role in roles):
                    failed += not succeeds("words of", "work", _find)
            else:
                _options.say(args, f"session model {variant}: not served, so every click sends the embeddings")
    return 1 if failed else 0


def _served(args: argparse.Namespace) -> tuple[ServerModels, dict[str, int]]:
    """Return the models of the server, and the side in pixels of each variant's encoder input."""
    url = parse_url(args.url)
    transport = Transport(url, timeout=args.timeout, retries=0, **_options.access(args))
    try:
        transport.check_ready()
        models = sort_models(transport.ready_models(), transport.model_config)
        variants = [variant for found in models.variants.values() for variant in found]
        configs = {variant: transport.model_config(model_name(variant, ENCODER)) for variant in variants}
    finally:
        transport.close()
    if not models.variants:
        raise ModelNotReadyError(f"{url} has no model pair ready: `triton-sam setup sam2` sets one up")
    return models, {variant: int(config["input"][0]["dims"][-1]) for variant, config in configs.items()}


def _succeeds(
    args: argparse.Namespace, family: str, variant: str, subject: str, success: str, request: Callable[..., None]
) -> bool:
    """Send a test request to the models of a variant; print the result."""
    try:
        request(args.url, family, variant, timeout=args.timeout, retries=0, **_options.access(args))
    except SamError as error:
        print(f"{subject} {variant}: {error}")
        return False
    _options.say(args, f"{subject} {variant}: {success}")
    return True


def _track(url: str | None, family: str, variant: str, **options: Any) -> None:
    """Track an object through two frames."""
    with (
        SAM2VideoClient(url, variant, model_type=family, **options) as client,
        client.open([_image(0), _image(0)]) as video,
    ):
        video.add(frame=0, object_id=1, points=[[SIDE // 2, SIDE // 2]], labels=[1])
        list(video.propagate())


def _find(url: str | None, family: str, variant: str, **options: Any) -> None:
    """Search for a word in the image that _click() sends to the session model."""
    with SamTritonClient(url, family, model_name=variant, **options) as client:
        client.find("something", image=_image(0), threshold=1.0)


def _click(place: EmbeddingsPlace, url: str | None, family: str, variant: str, **options: Any) -> None:
    """Encode an image and click on it."""
    with SamTritonClient(url, family, model_name=variant, embeddings=place, **options) as client:
        # The encoder gets a new image each time. The session model gets the same image, to occupy one cache entry.
        client.set_image(_image(int.from_bytes(os.urandom(4), "big") if place == "client" else 0))
        client.predict([[SIDE // 2, SIDE // 2]], [1])


def _image(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8))
