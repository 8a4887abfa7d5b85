"""The documents that the Helm chart renders for a file of values, and functions that read them."""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

from . import helm

ROOT = helm.CHART.parents[2]
CASES = [path.name.removesuffix("-values.yaml") for path in helm.value_files()]
Manifest = dict[str, Any]


@functools.cache
def script(name: str) -> ModuleType:
    """Return a program of tools/maintain as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "maintain" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def rendered(case: str) -> dict[str, Any]:
    """Return the manifests of the chart for a file of values, by kind and name."""
    found = helm.template(helm.CHART / "ci" / f"{case}-values.yaml")
    objects = {f"{one['kind']}/{one['metadata']['name']}": one for one in found}
    assert len(objects) == len(found)
    return objects


def by_kind(case: str, kind: str) -> list[Manifest]:
    """Return all objects of a kind."""
    return [one for name, one in rendered(case).items() if name.startswith(f"{kind}/")]


def pods(case: str) -> dict[str, tuple[Manifest, Manifest]]:
    """Return labels and specification of every pod, by the name of its owner."""
    found = {one["metadata"]["name"]: one["spec"]["template"] for one in by_kind(case, "Deployment")}
    found.update({one["metadata"]["name"]: one for one in by_kind(case, "Pod")})
    return {name: (one["metadata"]["labels"], one["spec"]) for name, one in found.items()}


def containers(spec: Manifest) -> list[Manifest]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def triton(case: str) -> Manifest:
    """Return the container of the server."""
    return pods(case)["sam-triton-sam"][1]["containers"][0]


def selected(case: str, selector: Manifest) -> set[str]:
    """Return the names of the pods that a selector selects."""
    wanted = selector["matchLabels"].items()
    return {name for name, (labels, _) in pods(case).items() if wanted <= labels.items()}
