"""Send a test request to every served model.

Encodes a small image and clicks on it, with each model pair and each session model. If the server has models for words
and videos, the command also searches a word and tracks an object through two frames. The exit code is 0 if all requests
succeed in time, else 1. The test image occupies one place in the cache of a session model.

Triton before 26.04 reports that it is ready even if the process of a model was killed; this command detects that.
"""

from __future__ import annotations

import argparse
import os

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
            failed += not _tracks(args, models, family, variant)
            official = get_family(family).image_size
            if sides[variant] != official:  # clients send images only in the official size
                use = "for videos only" if get_family(family).tracking else "clients cannot use it"
                _options.say(args, f"model pair {variant}: {use}, its encoder takes {sides[variant]} pixels")
                if variant in models:
                    print(f"session model {variant}: its encoder must take {official} pixels; export it with --name")
                    failed += 1
                continue
            failed += not _works(args, family, variant, "client")
            if variant in models:
                failed += not _works(args, family, variant, "server")
                failed += not _finds(args, models, family, variant)
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


def _tracks(args: argparse.Namespace, models: ServerModels, family: str, variant: str) -> bool:
    """Track an object through two frames, if the server has the video model of the variant; print the result."""
    if video_name(variant) not in models:
        return True
    try:
        with (
            SAM2VideoClient(
                args.url, variant, model_type=family, timeout=args.timeout, retries=0, **_options.access(args)
            ) as client,
            client.open([_image(0), _image(0)]) as video,
        ):
            video.add(frame=0, object_id=1, points=[[SIDE // 2, SIDE // 2]], labels=[1])
            list(video.propagate())
    except SamError as error:
        print(f"videos of {variant}: {error}")
        return False
    _options.say(args, f"videos of {variant}: work")
    return True


def _finds(args: argparse.Namespace, models: ServerModels, family: str, variant: str) -> bool:
    """Search for a word in the image of _works(), if the server has the models for words; print the result."""
    roles = get_family(family).concepts
    if not roles or not all(model_name(variant, role) in models for role in roles):
        return True
    try:
        with SamTritonClient(
            args.url, family, model_name=variant, timeout=args.timeout, retries=0, **_options.access(args)
        ) as client:
            client.find("something", image=_image(0), threshold=1.0)
    except SamError as error:
        print(f"words of {variant}: {error}")
        return False
    _options.say(args, f"words of {variant}: work")
    return True


def _image(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8))


def _works(args: argparse.Namespace, family: str, variant: str, place: EmbeddingsPlace) -> bool:
    """Encode an image and click on it; print the result."""
    subject = f"model pair {variant}" if place == "client" else f"session model {variant}"
    try:
        with SamTritonClient(
            args.url,
            family,
            model_name=variant,
            timeout=args.timeout,
            retries=0,
            embeddings=place,
            **_options.access(args),
        ) as client:
            # The encoder gets a new image each time. The session model gets the same image, to occupy one cache entry.
            seed = int.from_bytes(os.urandom(4), "big") if place == "client" else 0
            client.set_image(_image(seed))
            client.predict([[SIDE // 2, SIDE // 2]], [1])
    except SamError as error:
        print(f"{subject}: {error}")
        return False
    _options.say(args, f"{subject}: works")
    return True
