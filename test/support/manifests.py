"""Reads files of Kubernetes manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]


def load(path: Path) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]
