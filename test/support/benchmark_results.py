"""A result of `triton-sam benchmark` with chosen rows, without a measurement."""

from __future__ import annotations

from triton_sam.benchmark.results import Results


def make_results(rows, family="sam2"):
    about = {
        "created": "2024-01-01T00:00:00+00:00", "command": "", "kit": "1",
        "machine": {"cpu": "x", "cores": 2, "threads": 2, "usable_threads": 2, "memory_gb": 1.0, "load_before": 0.0,
                    "gpus": [], "system": "s", "python": "3", "packages": {}},
        "model": {"family": family, "name": None, "weights": "w", "precision": "fp32", "server": "u",
                  "server_version": "1", "local": True, "picture": {"width": 1, "height": 1, "bytes": 1}},
        "settings": {"duration": 1.0, "sections": [], "compare": [], "concurrency": [1], "boxes": [1], "users": 1,
                     "think": 0.0, "load_seconds": 1.0, "least_rounds": 1, "link": "1gbit,1ms"},
    }  # fmt: skip
    return Results(about, rows)
