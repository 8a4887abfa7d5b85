"""CVAT's own gateway to its functions, from a checkout of CVAT, against a service.

This script runs in an environment with Django and requests. It loads `LambdaGateway` and `LambdaFunction` unchanged.
The rest of CVAT (its database, queues and REST framework) has stand-ins. The script prints the answers as parsed by
CVAT, and the requests.
"""

from __future__ import annotations

import ast
import base64
import importlib
import importlib.abc
import importlib.util
import io
import json
import sys
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import requests

django_conf: Any = importlib.import_module("django.conf")
django_exceptions: Any = importlib.import_module("django.core.exceptions")

PACKAGES = ("cvat", "datumaro", "django_rq", "rq", "drf_spectacular", "rest_framework")
REAL = ("cvat.utils.http", "cvat.apps.lambda_manager.models", "cvat.apps.lambda_manager.views")


class Standin(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name.endswith("ViewSet") else MagicMock(name=name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the real modules from the checkout, and stand-ins for the others."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        file = self.checkout.joinpath(*fullname.split(".")).with_suffix(".py")
        if fullname in REAL and file.exists():
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Standin(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Rows(list[Any]):
    """Rows of a table."""

    def all(self) -> Rows:
        return self

    def values(self) -> Rows:
        return self

    def prefetch_related(self, *_: str) -> Rows:
        return self


class ShapeType(str, Enum):
    """The names of shapes in CVAT's models."""

    RECTANGLE, POLYGON, MASK = "rectangle", "polygon", "mask"


class Frame:
    """A frame of a task. Older versions of CVAT read its bytes from the first member."""

    def __init__(self, path: str) -> None:
        self.data = io.BytesIO(Path(path).read_bytes())

    def __getitem__(self, place: int) -> io.BytesIO:
        return (self.data,)[place]


class Labelled:
    """The serializer of annotations, which accepts all of them."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.validated_data = {"tags": [], "shapes": [], "tracks": [], **data}

    def is_valid(self, *, raise_exception: bool) -> bool:
        return raise_exception


def runs_of(column: Any) -> dict[str, Any]:
    """Return the lengths of the runs of a column of bits; the first run is background."""
    flat = np.asarray(column).ravel()
    edges = np.concatenate(([0], np.flatnonzero(np.diff(flat)) + 1, [flat.size]))
    return {"counts": np.array([*([0] if flat[0] else []), *np.diff(edges)])}


def gateway_code(checkout: str, server: dict[str, Any], frames: list[str]) -> Any:
    """Return the module with CVAT's gateway."""
    nuclio = {"SCHEME": "http", "DEFAULT_TIMEOUT": 60, "FUNCTION_NAMESPACE": "nuclio", "INVOKE_METHOD": "dashboard"}
    options = {"SMOKESCREEN_ENABLED": False, "SECRET_KEY": "any", "USE_TZ": True}
    django_conf.settings.configure(NUCLIO={**nuclio, **server}, **options)
    sys.meta_path.insert(0, Finder(Path(checkout)))
    cvat: Any = importlib.import_module("cvat")
    assigned = Path(checkout, "cvat/__init__.py").read_text().split("VERSION = ")[1].splitlines()[0]
    cvat.__version__ = ".".join(str(part) for part in ast.literal_eval(assigned)[:3])
    models: Any = importlib.import_module("cvat.apps.engine.models")
    mask_tools: Any = importlib.import_module("datumaro.util.mask_tools")
    models.ShapeType, mask_tools.mask_to_rle = ShapeType, runs_of
    views: Any = importlib.import_module("cvat.apps.lambda_manager.views")
    provider = SimpleNamespace(get_frame=lambda number, **_: Frame(frames[number]))
    views.FrameProvider = MagicMock(return_value=provider)
    views.TaskFrameProvider = views.FrameProvider
    views.LabeledDataSerializer = Labelled
    return views


def record_requests() -> list[dict[str, Any]]:
    """Return a list that receives every later request."""
    recorded: list[dict[str, Any]] = []
    session_class: Any = requests.Session
    send = session_class.send

    def recording(session: requests.Session, request: Any, **options: Any) -> Any:
        body = json.loads(request.body) if request.body else None
        if body and "image" in body:
            body["image"] = len(base64.b64decode(body["image"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        recorded.append({"method": request.method, "path": request.path_url, "headers": headers, "body": body})
        return send(session, request, **options)

    session_class.send = recording
    return recorded


def main() -> None:
    """Call functions. ``"states": "last"`` stands for the states of the previous answer."""
    checkout, server, labels, frames, calls = json.loads(sys.argv[1])
    views = gateway_code(checkout, server, frames)
    recorded = record_requests()
    gateway = views.LambdaGateway()
    listed = [each.to_dict() for each in gateway.list()]
    table = Rows(
        SimpleNamespace(name=name, id=number, type="any", attributespec_set=Rows())
        for number, name in enumerate(labels, 1)
    )
    task = SimpleNamespace(id=1, data=None, project_id=None, label_set=table, get_labels=lambda prefetch: table)
    converter: dict[str, Any] = {}
    if hasattr(views, "DetectionResultConverter"):
        converter["converter"] = views.DetectionResultConverter(task)
    answers: list[Any] = []
    for name, data in calls:
        if data.get("states") == "last":
            data["states"] = answers[-1]["states"]
        try:
            answers.append(gateway.get(name).invoke(task, data, **converter))
        except requests.HTTPError as error:
            reply: Any = error.response
            answers.append({"status": reply.status_code, "text": reply.text})
        except django_exceptions.ValidationError as error:
            answers.append({"invalid": error.messages})
    version = sys.modules["cvat"].__version__
    print(json.dumps({"version": version, "functions": listed, "answers": answers, "requests": recorded}))


if __name__ == "__main__":
    main()
