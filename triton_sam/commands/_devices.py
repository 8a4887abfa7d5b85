"""Find the devices on which a server runs its models, and whether the server has a GPU."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..local_server.settings import has_gpu
from ..transport.url import ServerUrl

_COMPUTING = frozenset({"onnxruntime", "onnxruntime_onnx", "tensorrt", "tensorrt_plan", "pytorch", "pytorch_libtorch"})
"""Backends that run faster on a GPU. Models of the Python backend only forward requests."""


@dataclass(frozen=True)
class Placement:
    """Where the instances of one model run."""

    text: str
    on_gpu: bool
    on_cpu: bool
    computes: bool


def placement(config: Mapping[str, Any]) -> Placement:
    """Return where the instances of a model run, by the configuration that the server completed."""
    computes = (config.get("backend") or config.get("platform")) in _COMPUTING
    groups = config.get("instance_group", [])
    kinds = [str(group.get("kind", "KIND_AUTO")).removeprefix("KIND_") for group in groups]
    parts = []
    if config.get("platform") == "ensemble":  # only the models that an ensemble calls have instances
        called = [str(step.get("model_name")) for step in config.get("ensemble_scheduling", {}).get("step", [])]
        parts.append("ensemble of " + ", ".join(dict.fromkeys(called)) if called else "ensemble")
    for group, kind in zip(groups, kinds, strict=True):
        gpus = ",".join(map(str, group.get("gpus", [])))
        count = group.get("count", 1)
        parts.append(f"{count} {'instance' if count == 1 else 'instances'} on {kind}{' ' + gpus if gpus else ''}")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {}).get("gpu_execution_accelerator", [])
    if accelerators:
        parts.append("with " + ", ".join(str(accelerator.get("name")) for accelerator in accelerators))
    return Placement("; ".join(parts) or "unknown device", "GPU" in kinds, "CPU" in kinds, computes)


def check_metrics_url(metrics_url: str | None) -> None:
    """Check the form of a metrics URL."""
    try:
        fits = metrics_url is None or urlsplit(metrics_url).scheme in ("http", "https")
    except ValueError:  # for example http://[
        fits = False
    if not fits:
        raise ConfigurationError(f"{metrics_url!r} is not the URL of metrics: write http://host:8002/metrics")


def server_gpus(metrics_url: str | None) -> bool | None:
    """Return whether the metrics of a server list a GPU; None if metrics are unavailable."""
    if metrics_url is None:
        return None
    try:
        with urllib.request.urlopen(metrics_url, timeout=5) as answer:  # noqa: S310 - http and https only
            metrics = answer.read().decode("utf-8", "replace")
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return bool(re.search(r"(?m)^nv_gpu_", metrics))


def is_this_machine_with_gpu(url: ServerUrl) -> bool:
    """Return whether a server runs on this machine and this machine has an NVIDIA GPU."""
    here = urlsplit(str(url)).hostname in ("localhost", "127.0.0.1", "::1")
    return here and has_gpu()
