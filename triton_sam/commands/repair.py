"""Guard models of earlier exports, or downloaded ones, against requests of wrong sizes.

With some versions of ONNX Runtime, a request for 0 images ends the server. Models that this version exports refuse such
requests. This command adds the same guard to ONNX files that lack it; their weights and their results stay the same. It
needs neither PyTorch nor the checkpoint. `triton-sam doctor` names the models that lack the guard.
"""

from __future__ import annotations

import argparse

from ..errors import RepositoryError
from ..repository import list_models
from . import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="for example sam2_encoder (default: all that lack the guard)"
    )
    _options.add_repository(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and print the files that it changed."""
    from ..export.repair import add_missing_guards

    folder = _options.repository(args, writes=True)
    models = [model for model in list_models(folder) if not args.models or model.name in args.models]
    changed = add_missing_guards(folder, args.models)
    if not models:
        raise RepositoryError(f"there is no model in {folder}: give --model-repository")
    for path in changed:
        print(path)
    for model in models:
        if model.problem:
            _options.say(args, f"{model.name} is left out: {model.problem}")
    rest = "every other model" if any(model.problem for model in models) else "every model"
    _options.say(args, "restart a running server to load them" if changed else f"{rest} has the guard already")
    return 0
