"""Functions as networks of all families, for a service over a Triton in this process.

Masks are half-planes that depend on the prompts, and embeddings depend on the image.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from support.in_process import Arrays, InProcess

from triton_sam.families import get_family


def compute(pairs: Mapping[str, str], model: str, inputs: Mapping[str, Any], wanted: Sequence[str]) -> Arrays:
    """Compute a network of one of these pairs, given as families by name."""
    name, _, role = model.rpartition("_")
    spec = get_family(pairs[name]).models[role]
    points = inputs.get("point_coords", inputs.get("input_points"))
    count = 1 if points is None else points.shape[-3] if points.size else inputs["input_boxes"].shape[1]
    small = [
        np.asarray(inputs[key], np.float32).round(2).tobytes() for key in sorted(inputs) if inputs[key].size < 9999
    ]
    rng = np.random.default_rng(zlib.crc32(b"".join(small)))
    answers = {}
    for tensor in spec.outputs:
        shape = [{"images": 1, "prompts": count}.get(str(side), side) for side in tensor.shape]
        if role == "encoder":
            answers[tensor.name] = np.full(shape, np.mean([each.mean() for each in inputs.values()]), np.float32)
        elif shape[-1] < 200:
            answers[tensor.name] = rng.uniform(0.1, 0.9, shape).astype(np.float32)
        else:
            down, across, level = rng.normal(size=(3, *shape[:-2], 1, 1))
            place = np.linspace(-1, 1, shape[-1])
            answers[tensor.name] = (down * place[:, None] + across * place + 0.1 * level).astype(np.float32)
    return {name: answers[name] for name in wanted}


@contextlib.contextmanager
def made_up_triton(pairs: Mapping[str, str], with_sessions: Sequence[str]) -> Iterator[InProcess]:
    """Serve pairs of networks, given as families by name, and the session models of some of them."""
    with InProcess(functools.partial(compute, pairs), pairs) as server:
        for name in with_sessions:
            server.add_session_model(name)
        yield server
