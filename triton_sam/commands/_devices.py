"""On which device a server runs its models, and whether it has a GPU at all."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..transport.url import ServerUrl

_COMPUTING = frozenset({"onnxruntime", "onnxruntime_onnx", "tensorrt", "tensorrt_plan", "pytorch", "pytorch_libtorch"})
"""Backends that a GPU makes faster. Python models only pass requests on."""


@dataclass(frozen=True)
class Placement:
    """Where the instances of one model run.

    Args:
        text: for a person.
        on_gpu: whether some instance has a GPU.
        on_cpu: whether some instance has none.
        computes: whether a GPU would make the model faster.
    """

    text: str
    on_gpu: bool
    on_cpu: bool
    computes: bool


def placement(config: Mapping[str, Any]) -> Placement:
    """Read a model's instances from the configuration that the server filled in.

    Args:
        config: as the JSON of Triton's HTTP protocol.
    """
    computes = (config.get("backend") or config.get("platform")) in _COMPUTING
    groups = config.get("instance_group", [])
    kinds = [str(group.get("kind", "KIND_AUTO")).removeprefix("KIND_") for group in groups]
    parts = []
    for group, kind in zip(groups, kinds, strict=True):
        gpus = ",".join(map(str, group.get("gpus", [])))
        parts.append(f"{group.get('count', 1)} instance(s) on {kind}{' ' + gpus if gpus else ''}")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {}).get("gpu_execution_accelerator", [])
    if accelerators:
        parts.append("with " + ", ".join(str(accelerator.get("name")) for accelerator in accelerators))
    return Placement("; ".join(parts) or "device not told", "GPU" in kinds, "CPU" in kinds, computes)


def usual_metrics_url(url: ServerUrl) -> str | None:
    """Return where the figures of a server on the usual ports are, None for one on others."""
    parts = urlsplit(str(url))
    if url.is_secure or parts.port not in (8000, 8001) or parts.path:
        return None
    return f"http://{parts.netloc.rpartition(':')[0]}:8002/metrics"


def check_metrics_url(metrics_url: str | None) -> None:
    """Refuse a URL that cannot be one of figures.

    Raises:
        ConfigurationError: it cannot work.
    """
    try:
        fits = metrics_url is None or urlsplit(metrics_url).scheme in ("http", "https")
    except ValueError:  # http://[, say
        fits = False
    if not fits:
        raise ConfigurationError(f"{metrics_url!r} is no URL of figures: write http://host:8002/metrics")


def server_gpus(metrics_url: str | None) -> bool | None:
    """Whether a server sees a GPU, by its own figures at a URL that was checked; None when it does not tell."""
    if metrics_url is None:
        return None
    try:
        with urllib.request.urlopen(metrics_url, timeout=5) as answer:  # noqa: S310 - http and https only
            figures = answer.read().decode("utf-8", "replace")
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return bool(re.search(r"(?m)^nv_gpu_", figures))


def is_this_machine_with_gpu(url: ServerUrl) -> bool:
    """Whether a server is on this machine, and this machine has an NVIDIA GPU."""
    here = urlsplit(str(url)).hostname in ("localhost", "127.0.0.1", "::1")
    return here and any(Path("/dev").glob("nvidia[0-9]*"))
