"""Options and helper functions shared by several commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from .._common.files import atomic_path
from ..errors import ConfigurationError
from ..families import FAMILIES, get_family, tracking_families
from ..masks.polygons import Trace, main_polygons, trace_polygons
from ..repository.config import DECODER_IN_SESSION_VARIABLE
from ..repository.folder import default_repository, writable_repository

TOKEN_VARIABLE = "TRITON_TOKEN"  # noqa: S105 - a name, not a token
MODELS_VARIABLE = "TRITON_SAM_MODELS"
ADMIN_VARIABLE = "TRITON_SAM_ADMIN"
OF_LOCAL = "model repository of --local"


def add_url(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add --url. With ``several``, the option is repeatable and its value is a list or None."""
    parser.add_argument(
        "--url",
        action="append" if several else "store",
        help="server: host:port, http://, https://, grpc:// or grpcs:// (default: $TRITON_URL, else localhost:8000)",
    )


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add --token and --ca-certs, which a proxy in front of the server may require."""
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=f"send `Authorization: Bearer TOKEN` (default: ${TOKEN_VARIABLE}, which the process list does not show)",
    )
    parser.add_argument(
        "--ca-certs", type=Path, metavar="FILE", help="file of PEM certificates to trust for https and grpcs"
    )


def access(args: argparse.Namespace) -> dict[str, Any]:
    """Return --token and --ca-certs as arguments of a client or transport."""
    token = bearer_token(args.token, TOKEN_VARIABLE)
    return {"headers": {"Authorization": f"Bearer {token}"} if token else None, "ca_certs": args.ca_certs}


def bearer_token(given: str | None, variable: str) -> str:
    """Return the token from an option, else from an environment variable, else ""."""
    token = given if given is not None else os.environ.get(variable, "")
    return token.strip()  # a token read from a file may end with a line break


def add_local(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local", action="store_true", help="start a local Triton for this command and stop it afterwards"
    )


def add_repository(parser: argparse.ArgumentParser, what: str = "model repository") -> None:
    """Add --model-repository, also spelled --output-dir."""
    add_spellings(
        parser,
        "--model-repository",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"{what} (default: $TRITON_SAM_REPOSITORY, ./model_repository, or that of this installation: "
        "`triton-sam doctor` names it)",
    )


def add_video(parser: argparse.ArgumentParser, families: Sequence[str]) -> None:
    """Add --video, the models that track objects. It is always off if none of the families has video models."""
    owners = [name for name in tracking_families() if name in families]
    parser.set_defaults(video=False)
    if owners:
        text = f"{_labels(owners)}: also export the models that track objects through a video, and write VARIANT_video"
        parser.add_argument("--video", action="store_true", help=text)


def add_concepts(parser: argparse.ArgumentParser, families: Sequence[str]) -> None:
    """Add --concepts, the models for words and examples. It is always off if none of the families has these models."""
    owners = [name for name in families if get_family(name).concepts]
    parser.set_defaults(concepts=False)
    if owners:
        text = f"{_labels(owners)}: also export the models that find every instance of a word or of example boxes"
        parser.add_argument("--concepts", action="store_true", help=text)


def _labels(families: Sequence[str]) -> str:
    return ", ".join(get_family(name).label for name in families)


def add_name(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --name, also spelled --model-name, the name of a variant."""
    add_spellings(parser, "--name", "--model-name", metavar="VARIANT", help=text)


def add_spellings(parser: argparse.ArgumentParser, flag: str, *others: str, **settings: Any) -> None:
    """Add an option with alternative spellings that --help hides."""
    action = parser.add_argument(flag, *others, **settings)
    action.option_strings = [flag]


def add_family(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", choices=tuple(FAMILIES), help="model family")


def add_client(parser: argparse.ArgumentParser, *, several_urls: bool = False, families: Sequence[str] = ()) -> None:
    """Add the options that select the model and the server: --model, --name, --timeout, --url, --local and others.

    Args:
        families: the values of --model; empty: all families.
    """
    add_spellings(
        parser,
        "--model",
        "--model-type",
        choices=families or tuple(FAMILIES),
        default="sam2",
        help="model family (default: sam2)",
    )
    add_name(parser, "variant to use, for example sam2.1_large")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="time limit of each call (default: 60)"
    )
    add_url(parser, several=several_urls)
    add_access(parser)
    add_local(parser)
    add_repository(parser, OF_LOCAL)


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        action="store_true",
        help="trace the official model with PyTorch instead of filling its template; both write the same files",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the option for the models to load. wanted_models() reads it."""
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help="load only these models or variants, with the models that they call (default: "
        f"${MODELS_VARIABLE}, separated by spaces, else all with weights)",
    )


def wanted_models(args: argparse.Namespace) -> list[str] | None:
    """Return the names of the models to load; None means all models with weights."""
    return args.models or os.environ.get(MODELS_VARIABLE, "").split() or None


def add_admin(parser: argparse.ArgumentParser) -> None:
    """Add the option to accept requests that load models over the network."""
    parser.add_argument(
        "--admin",
        action="store_true",
        default=os.environ.get(ADMIN_VARIABLE) == "1",
        help="allow clients to load models (triton-sam reload --url), share memory, and change traces and logging "
        f"(also: {ADMIN_VARIABLE}=1)",
    )


def add_decoder_in_session(parser: argparse.ArgumentParser) -> None:
    """Add the option to run decoders inside the session models, whose value is None by default: on CPUs."""
    parser.add_argument(
        "--decoder-in-session",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="session models run their decoders in their own processes, so that clicks copy less (default: on CPUs; "
        f"also: {DECODER_IN_SESSION_VARIABLE}=1 or 0)",
    )


def add_no_verify(parser: argparse.ArgumentParser) -> None:
    """Add --no-verify, whose value is None or False."""
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_const",
        const=False,
        default=None,
        help="load models without comparing their files with SHA256SUMS (also: TRITON_SAM_VERIFY=0)",
    )


def repository(args: argparse.Namespace, *, writes: bool = False) -> Path:
    if args.model_repository is not None:
        return Path(args.model_repository)
    return writable_repository() if writes else default_repository()


def refuse_idle_repository(args: argparse.Namespace) -> None:
    if not args.local and getattr(args, "model_repository", None) is not None:
        raise ConfigurationError("--model-repository is for --local: a running server has its own models")


def write_png(path: Path, image: Image.Image) -> None:
    """Write an image as PNG. An error leaves no partial file."""
    with atomic_path(path) as temporary:
        image.save(temporary, format="PNG")


def check_writable(paths: Sequence[Path]) -> None:
    """Check that files can be written, before the work starts."""
    for path in paths:
        if path.is_dir() or not path.parent.is_dir():
            why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise ConfigurationError(f"cannot write {path}: {why}")


def add_all_parts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all-parts",
        action="store_true",
        help="polygons keep parts and holes below 10 pixels and below 1 %% of the object's largest part",
    )


def trace_of(args: argparse.Namespace) -> Trace:
    """Return the function that turns masks into polygons."""
    return trace_polygons if args.all_parts else main_polygons


def say(args: argparse.Namespace, text: str) -> None:
    """Print a progress message on stderr, unless --quiet is given."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def say_left_out(args: argparse.Namespace, path: Path | str, count: int) -> None:
    """Print how many empty masks were left out of a file."""
    if count:
        say(args, f"{path}: {count} empty mask{'s are' if count > 1 else ' is'} left out")
