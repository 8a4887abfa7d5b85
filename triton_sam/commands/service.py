"""Run the SAM service: a web page for clicks, a REST API, and the REST API of 2024.

The service calls a Triton server; with --local, it starts one if none answers. Ctrl-C or SIGTERM stop it. It logs one
JSON line for each request on stderr. The page is at /, beside /metrics, /health and /docs.
"""

from __future__ import annotations

import argparse
import math
import os

from ..concepts.query import MAX_TEXTS
from ..errors import ConfigurationError
from ..transport.url import URL_VARIABLE
from . import _options

MEBI = 1 << 20
TOOLS = ("cvat", "label-studio", "x-anylabeling", "qupath", "roboflow", "osam")
"""The adapters of triton_sam/service/adapters/registry.py, named here so that `--help` needs no FastAPI."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=5000, help="(default: 5000; 0: any free port)")
    parser.add_argument(
        "--url", help="URL of Triton, best with gRPC (default: $TRITON_URL, else grpc://localhost:8001)"
    )
    parser.add_argument(
        "--triton-token", metavar="TOKEN", help="bearer token for Triton (default: $TRITON_TOKEN, else none)"
    )
    parser.add_argument(
        "--ca-certs", metavar="FILE", help="file of PEM certificates to trust for https and grpcs to Triton"
    )
    parser.add_argument("--local", action="store_true", help="start a local Triton if none answers")
    _options.add_repository(parser)
    parser.add_argument(
        "--model", default="sam2", metavar="NAME", help="model for requests that name none (default: sam2)"
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="bearer token that callers must send (default: $TRITON_SAM_TOKEN, else none)",
    )
    parser.add_argument(
        "--tokens", metavar="FILE", help="JSON file of further tokens, each with a name and limits of its own"
    )
    _add_quota(parser)
    parser.add_argument(
        "--cors",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="web origins that may call the service, * for all (default: none)",
    )
    parser.add_argument(
        "--allowed-host",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="names by which callers may address the service besides this machine's own, * for all; a reverse proxy "
        "that sends its own name in the header Host needs it (default: localhost, this machine's names, and addresses; "
        "with a token, all names)",
    )
    parser.add_argument(
        "--root-path",
        default="",
        metavar="PATH",
        help="path that a reverse proxy adds before those of the service, such as /sam (default: none)",
    )
    parser.add_argument(
        "--max-body", type=int, default=64, metavar="MIB", help="maximum size of a request (default: 64)"
    )
    parser.add_argument(
        "--max-json",
        type=float,
        default=2.0,
        metavar="MIB",
        help="maximum size of a request without a file (default: 2)",
    )
    parser.add_argument(
        "--body-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for a request to arrive; each 256 KiB that have arrived add one second (default: 30)",
    )
    parser.add_argument(
        "--body-memory", type=int, default=256, metavar="MIB", help="memory for all requests at a time (default: 256)"
    )
    parser.add_argument(
        "--answer-memory", type=int, default=256, metavar="MIB", help="memory for all answers at a time (default: 256)"
    )
    parser.add_argument(
        "--max-megapixels", type=float, default=100.0, metavar="N", help="maximum size of an image (default: 100)"
    )
    parser.add_argument(
        "--work-megapixels",
        type=float,
        default=64.0,
        metavar="N",
        help="size of the masks and previews that are computed at a time; more wait (default: 64)",
    )
    parser.add_argument(
        "--max-requests", type=int, default=256, metavar="N", help="maximum simultaneous requests (default: 256)"
    )
    parser.add_argument("--max-encodes", type=int, default=4, metavar="N", help="images encoded at a time (default: 4)")
    parser.add_argument(
        "--max-pages", type=int, default=256, metavar="N", help="maximum number of open pages (default: 256)"
    )
    parser.add_argument(
        "--page-messages",
        type=float,
        default=60.0,
        metavar="N",
        help="messages a second that the service reads from one page (default: 60)",
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="time limit of a request (default: 60)"
    )
    parser.add_argument(
        "--memory", type=int, default=512, metavar="MIB", help="memory for uploaded images (default: 512)"
    )
    parser.add_argument(
        "--max-searches",
        type=int,
        default=4,
        metavar="N",
        help="images searched for everything or for words at a time (default: 4)",
    )
    parser.add_argument(
        "--search-seconds",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="time limit of a search for everything (default: 600)",
    )
    parser.add_argument(
        "--large-images",
        metavar="DIR",
        help="show the slides and maps of a folder on the page /large, and segment them by /v1/large (default: none)",
    )
    parser.add_argument(
        "--image-urls",
        action="store_true",
        help="callers may name images by their addresses, which the service fetches; it reaches public addresses alone",
    )
    _add_videos(parser)
    _add_adapters(parser)
    parser.add_argument(
        "--log-format", choices=("json", "text"), default="json", help="form of the log on stderr (default: json)"
    )
    _options.add_quiet(parser)


def _add_videos(parser: argparse.ArgumentParser) -> None:
    """Add the limits of videos."""
    for option, kind, default, unit, text in (
        ("--max-video", int, 512, "MIB", "maximum size of an uploaded video"),
        ("--max-videos", int, 16, "N", "maximum number of uploaded videos"),
        ("--max-video-frames", int, 20_000, "N", "maximum number of frames of a video"),
        ("--video-disk", int, 4096, "MIB", "disk for uploaded videos, in the folder of temporary files"),
        ("--video-mask-memory", int, 256, "MIB", "memory for the masks of videos"),
        ("--video-idle", float, 900.0, "SECONDS", "time after which an unused video is removed"),
        ("--max-tracks", int, 4, "N", "videos tracked at a time"),
    ):
        parser.add_argument(option, type=kind, default=default, metavar=unit, help=f"{text} (default: {default:g})")


def _add_adapters(parser: argparse.ArgumentParser) -> None:
    """Add the options of other tools."""
    parser.add_argument(
        "--adapter",
        nargs="+",
        action="extend",
        default=[],
        choices=TOOLS,
        metavar="TOOL",
        help=f"speak the protocol of other tools, too: {', '.join(TOOLS)}",
    )
    parser.add_argument("--adapters", action="store_true", help="speak the protocols of all of them")
    parser.add_argument(
        "--cvat-words",
        metavar="WORDS",
        help="words that CVAT's detectors find, with commas between them: they become the labels (needs SAM3)",
    )
    parser.add_argument(
        "--label-studio-url",
        metavar="URL",
        help="address of the Label Studio whose images the service may fetch; it sends the token in "
        "$LABEL_STUDIO_API_KEY (default: $LABEL_STUDIO_URL, else none)",
    )
    parser.add_argument(
        "--label-studio-private-storage",
        action="store_true",
        help="Label Studio may lead to images in a storage of a private network; without it, to public addresses alone",
    )


def _words(text: str | None) -> tuple[str, ...]:
    """Return the words of an option, without those that come twice: labels of CVAT are unique.

    Raises:
        ConfigurationError: there are more than one search takes.
    """
    words = tuple(dict.fromkeys(word for each in (text or "").split(",") if (word := each.strip())))
    if len(words) > MAX_TEXTS:
        raise ConfigurationError(f"--cvat-words takes up to {MAX_TEXTS} words, not {len(words)}")
    return words


def _add_quota(parser: argparse.ArgumentParser) -> None:
    """Add the limits of every token that the file of --tokens gives no other ones."""
    for option, kind, text in (
        ("--requests-per-minute", float, "requests in a minute"),
        ("--image-mib-per-hour", float, "MiB of uploads in an hour"),
        ("--requests-at-a-time", int, "simultaneous requests"),
        ("--pages", int, "simultaneously open pages"),
    ):
        parser.add_argument(
            option,
            type=kind,
            metavar="N",
            help=f"maximum {text} for each token, or for all callers together if there is no token (default: no limit)",
        )


def _check_numbers(args: argparse.Namespace) -> None:
    """Check the limits before they become whole numbers, which NaN and infinity cannot.

    Raises:
        ConfigurationError: one of them is not a finite number above 0.
    """
    from ..service.settings import LIMITS

    for option in LIMITS.values():
        value = getattr(args, option.removeprefix("--").replace("-", "_"))
        if not 0 < value * MEBI < math.inf:  # also the number of bytes
            raise ConfigurationError(f"{option} must be a number above 0, not {value}")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from ..service.run import serve
    from ..service.settings import DEFAULT_TRITON, TOKEN_VARIABLE, Settings
    from ..service.tokens import QUOTAS, Quota, read_tokens

    protected = args.token is not None or os.environ.get(
        TOKEN_VARIABLE
    )  # docker compose sets it to "" if it is not given
    _check_numbers(args)
    quota = Quota(**{name: getattr(args, name) for name in QUOTAS})
    settings = Settings(
        url=args.url or os.environ.get(URL_VARIABLE) or DEFAULT_TRITON,
        model=args.model,
        triton_token=_options.bearer_token(args.triton_token, _options.TOKEN_VARIABLE) or None,
        ca_certs=args.ca_certs,
        token=_options.bearer_token(args.token, TOKEN_VARIABLE) if protected else None,
        tokens=read_tokens(args.tokens, quota) if args.tokens else (),
        quota=quota,
        origins=tuple(args.cors),
        allowed_hosts=tuple(args.allowed_host),
        max_body=args.max_body * MEBI,
        max_json=round(args.max_json * MEBI),
        body_seconds=args.body_seconds,
        body_bytes=args.body_memory * MEBI,
        answer_bytes=args.answer_memory * MEBI,
        max_megapixels=args.max_megapixels,
        work_megapixels=args.work_megapixels,
        max_requests=args.max_requests,
        max_encodes=args.max_encodes,
        max_pages=args.max_pages,
        page_messages=args.page_messages,
        timeout=args.timeout,
        store_bytes=args.memory * MEBI,
        max_video=args.max_video * MEBI,
        max_videos=args.max_videos,
        max_video_frames=args.max_video_frames,
        video_bytes=args.video_disk * MEBI,
        video_mask_bytes=args.video_mask_memory * MEBI,
        video_idle_seconds=args.video_idle,
        max_tracks=args.max_tracks,
        max_searches=args.max_searches,
        search_seconds=args.search_seconds,
        image_urls=args.image_urls,
        root_path=args.root_path.rstrip("/"),
        log_format=args.log_format,
        large_images=args.large_images,
        adapters=TOOLS if args.adapters else tuple(args.adapter),
        cvat_words=_words(args.cvat_words),
        label_studio_url=args.label_studio_url or os.environ.get("LABEL_STUDIO_URL") or None,
        label_studio_token=os.environ.get("LABEL_STUDIO_API_KEY") or None,
        label_studio_private_storage=args.label_studio_private_storage,
    )
    repository = _options.repository(args) if args.local else None
    return serve(settings, args.host, args.port, repository=repository, quiet=args.quiet)
