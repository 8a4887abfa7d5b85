"""The table of adapters. To add an adapter, write its module and add a row."""

from __future__ import annotations

from ...errors import ConfigurationError
from . import cvat, label_studio, osam, qupath, roboflow, x_anylabeling
from .adapter import Adapter

ADAPTERS: dict[str, Adapter] = {
    module.ADAPTER.name: module.ADAPTER for module in (cvat, label_studio, x_anylabeling, qupath, roboflow, osam)
}


def find_adapters(names: tuple[str, ...]) -> tuple[Adapter, ...]:
    unknown = next((name for name in names if name not in ADAPTERS), None)
    if unknown is not None:
        raise ConfigurationError(f"there is no adapter {unknown[:80]!r}: choose from {', '.join(ADAPTERS)}")
    return tuple(ADAPTERS[name] for name in dict.fromkeys(names))
