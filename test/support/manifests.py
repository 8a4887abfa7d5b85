"""What `kubectl kustomize` makes of deploy/kubernetes, without kubectl: the few features that are used there."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "patches"}
_CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[Manifest]:  # noqa: C901 - one step after the other
    """Return the manifests of a kustomization.

    Raises:
        ValueError: it uses a feature that this does not know, or a patch that hits nothing.
    """
    described = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    if set(described) - _KNOWN:
        raise ValueError(f"{folder.name}: unknown to this program: {sorted(set(described) - _KNOWN)}")
    found: list[Manifest] = []
    for name in described["resources"]:
        path = folder / name
        found += render(path) if path.is_dir() else load(path)
    for patch in described.get("patches", []):
        targets = [one for one in found if _is_target(one, patch["target"])]
        if not targets:
            raise ValueError(f"{folder.name}: a patch for {patch['target']} hits nothing")
        for target in targets:
            for operation in yaml.safe_load(patch["patch"]):
                apply(target, operation)
    for image in described.get("images", []):
        for manifest in found:
            _set_image(manifest, image)
    for manifest in found:
        if "namespace" in described and manifest["kind"] not in _CLUSTER_WIDE:
            manifest["metadata"]["namespace"] = described["namespace"]
    return found


def load(path: Path) -> list[Manifest]:
    """Return the manifests of one file."""
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


def apply(document: Any, operation: Manifest) -> None:
    """Carry out one operation of a JSON patch (RFC 6902): add, replace or remove, in place.

    Raises:
        ValueError: another operation, or a path that is not there.
    """
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    try:
        for part in parents:
            document = document[int(part) if isinstance(document, list) else part]
        if operation["op"] in ("replace", "remove"):
            document[int(last) if isinstance(document, list) else last]
    except (KeyError, IndexError):
        raise ValueError(f"nothing at {operation['path']}") from None
    if operation["op"] == "remove":
        del document[int(last) if isinstance(document, list) else last]
    elif operation["op"] in ("add", "replace") and isinstance(document, dict):
        document[last] = copy.deepcopy(operation["value"])
    else:
        raise ValueError(f"{operation['op']} at {operation['path']}: unknown to this program")


def _is_target(manifest: Manifest, target: Manifest) -> bool:
    return manifest["kind"] == target["kind"] and manifest["metadata"]["name"] == target["name"]


def _set_image(value: Any, image: Manifest) -> None:
    if isinstance(value, list):
        for item in value:
            _set_image(item, image)
    elif isinstance(value, dict):
        if value.get("image") == image["name"]:
            value["image"] = f"{image['newName']}:{image['newTag']}"
        for item in value.values():
            _set_image(item, image)
