"""Requests that attack exported graphs, the rule that says which of them are right, and the programs that run them.

A request is a list of tensors, as graph_runner.py reads it. The rule is written here by hand and does not read the
tables of the families, so that it also tests them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from triton_sam.families import get_family
from triton_sam.families.tables import ModelSpec

RUNNER = Path(__file__).with_name("graph_runner.py")
LARGEST = 8 << 20
"""Bytes of the largest tensor of a generated request."""
SIZES = (0, 0, 0, 1, 1, 2, 3, 4, 7, 64, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 62)
FILLS = ("nan", "inf", "huge")
TYPES = {"FP32": "float32", "INT64": "int64"}
WRONG_TYPES = ("float64", "float16", "int32", "int64", "float32", "uint8", "bool", "str")

Request = list[dict]


def request(spec: ModelSpec, sizes: dict[str, int], optional: bool = False, fill: str = "random") -> Request:
    """Return a request with a size for each symbol of the spec's inputs."""
    return [
        {
            "name": tensor.name,
            "dtype": TYPES[tensor.dtype],
            "shape": [side if isinstance(side, int) else sizes[side] for side in tensor.shape],
            "fill": fill,
        }
        for tensor in spec.inputs
        if optional or not tensor.optional
    ]


def controls(family: str, role: str) -> list[Request]:
    """Return right requests, whose answers must stay the same whatever comes between them."""
    spec = get_family(family).models[role]
    if role == "encoder":
        return [request(spec, {"images": 1})]
    one = {"images": 1, "prompts": 1, "points": 1, "masks": 1, "boxes": 0}
    return [
        request(spec, one),
        request(spec, {**one, "points": 0}, optional=True),  # a mask alone; without one, "segment something"
        request(spec, {**one, "prompts": 3, "points": 2, "boxes": 3}),
        request(spec, {"images": 2, "prompts": 2, "points": 1, "masks": 2, "boxes": 2}, optional=True),
    ]


def classics(family: str, role: str) -> list[Request]:
    """Return attacks that once ended the process or got a wrong answer, and a few that are obvious."""
    spec = get_family(family).models[role]
    one = {"images": 1, "prompts": 1, "points": 1, "masks": 1, "boxes": 0}
    found = [request(spec, {**one, symbol: 0}, optional=True) for symbol in ("images", "prompts", "masks", "boxes")]
    found += [request(spec, {**one, symbol: 2}, optional=True) for symbol in ("images", "masks", "boxes")]
    found += [request(spec, dict.fromkeys(one, 0), optional=True), request(spec, one, fill="nan")]
    for index, tensor in enumerate(spec.inputs):  # one tensor contradicts the others
        for axis, side in enumerate(tensor.shape):
            if isinstance(side, str):
                for size in (0, 2, 3):
                    attack = request(spec, one, optional=True)
                    attack[index]["shape"][axis] = size
                    found.append(attack)
    if role == "decoder":
        for size in (1 << 20, 1 << 40):  # many prompts in no byte
            found.append(request(spec, {**one, "prompts": size, "points": 0}))
    return list({json.dumps(attack): attack for attack in found}.values())


def negative(family: str, role: str) -> list[Request]:
    """Return attacks with negative sizes, which only a request to a server can have."""
    spec = get_family(family).models[role]
    found = []
    for index, tensor in enumerate(spec.inputs):
        for axis in range(len(tensor.shape)):
            for size in (-1, -(1 << 40), -(1 << 63)):
                sizes = {"images": 1, "prompts": 1, "points": 1, "masks": 1, "boxes": 0}
                found.append(request(spec, sizes, optional=True))
                found[-1][index]["shape"][axis] = size
    return found


def generated(family: str, role: str, count: int, seed: int) -> Iterator[Request]:
    """Yield random attacks: right requests of which one or two parts are changed."""
    spec = get_family(family).models[role]
    # random, not numpy: the sequence is the same with every version
    chance = random.Random(f"{family}/{role}/{seed}")
    for _ in range(count):
        prompts = chance.choice((1, 1, 2, 3))
        sizes = {
            "images": chance.choice((1, 1, prompts)) if family != "sam3" and role == "decoder" else 1,
            "prompts": prompts,
            "points": chance.choice((0, 1, 2)),
            "masks": chance.choice((1, prompts)),
            "boxes": chance.choice((0, prompts)),
        }
        attack = request(spec, sizes, optional=chance.random() < 0.5)
        for _ in range(chance.choice((1, 1, 2))):
            _spoil(chance, attack)
        yield attack


def _spoil(chance: random.Random, attack: Request) -> None:
    """Change one part of a request."""
    if not attack:
        return
    part = chance.choice(attack)
    kind = chance.random()
    if kind < 0.65 and part["shape"]:
        part["shape"][chance.randrange(len(part["shape"]))] = chance.choice(SIZES)
        _shrink(chance, part)
    elif kind < 0.75:
        part["shape"] = chance.choice(([], part["shape"][1:], [1, *part["shape"]], part["shape"][::-1]))
    elif kind < 0.85:
        part["dtype"] = chance.choice(WRONG_TYPES)
        if part["dtype"] == "str":
            part["shape"] = part["shape"] and [1]
    elif kind < 0.95:
        part["fill"] = chance.choice(FILLS)
    elif kind < 0.98:
        attack.remove(part)
    else:
        attack.append({**part, "name": "no_such_input"})


def _shrink(chance: random.Random, part: dict) -> None:
    """Give a tensor that would not fit into a request no element at all: its other sizes stay as large as they are."""
    while _elements(part) * 8 > LARGEST:
        part["shape"][chance.randrange(len(part["shape"]))] = 0


def _elements(part: dict) -> int:
    product = 1
    for side in part["shape"]:
        product *= side
    return product


def is_right(family: str, role: str, attack: Request) -> bool:
    """Return whether a request has the sizes and types that docs/reference/models.md allows."""
    spec = get_family(family).models[role]
    types = {tensor.name: TYPES[tensor.dtype] for tensor in spec.inputs}
    ranks = {tensor.name: len(tensor.shape) for tensor in spec.inputs}
    shapes = {part["name"]: part["shape"] for part in attack}
    needed = {tensor.name for tensor in spec.inputs if not tensor.optional}
    if not needed <= shapes.keys() <= types.keys() or any(part["dtype"] != types[part["name"]] for part in attack):
        return False
    if any(len(shape) != ranks[name] for name, shape in shapes.items()):
        return False
    side = get_family(family).image_size
    if role == "encoder":
        ((images, *rest),) = shapes.values()
        return images >= 1 and rest == [3, side, side]
    return _is_right_for_sam3(shapes) if family == "sam3" else _is_right_for_points(shapes)


def _is_right_for_points(shapes: dict[str, list[int]]) -> bool:
    prompts, points, two = shapes["point_coords"]
    fixed = {
        "image_embeddings": [256, 64, 64],
        "high_res_feats_0": [32, 256, 256],
        "high_res_feats_1": [64, 128, 128],
        "mask_input": [1, 256, 256],
        "has_mask_input": [],
    }
    others = {name: shape for name, shape in shapes.items() if name in fixed}
    return (
        prompts >= 1
        and two == 2
        and shapes["point_labels"] == [prompts, points]
        and all(shape[0] in (1, prompts) and shape[1:] == fixed[name] for name, shape in others.items())
    )


def _is_right_for_sam3(shapes: dict[str, list[int]]) -> bool:
    images, prompts, points, two = shapes["input_points"]
    return (
        min(images, prompts) >= 1
        and two == 2
        and shapes["input_labels"] == [images, prompts, points]
        and shapes["input_boxes"] in ([images, 0, 4], [images, prompts, 4])
        and shapes["image_embeddings.0"] == [images, 32, 288, 288]
        and shapes["image_embeddings.1"] == [images, 64, 144, 144]
        and shapes["image_embeddings.2"] == [images, 256, 72, 72]
    )


def run(
    model: Path, requests: Sequence[Request], folder: Path, python: Sequence[str] = (sys.executable,)
) -> list[dict]:
    """Run requests against an ONNX file in processes of their own.

    Args:
        model: the ONNX file.
        requests: see graph_runner.py.
        folder: an empty folder for the files of the runs.
        python: the command of a Python with numpy and onnxruntime.

    Returns:
        One answer for each request; ``{"died": code}`` for one that ended the process. A new process does the rest.
    """
    folder.mkdir(parents=True)
    todo, answers = folder / "requests.json", folder / "answers.jsonl"
    todo.write_text(json.dumps(requests))
    answers.touch()
    while (done := len(answers.read_text().splitlines())) < len(requests):
        command = [*python, str(RUNNER), str(model), str(todo), str(answers)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        if ended.returncode > 0 and len(answers.read_text().splitlines()) == done:
            raise AssertionError(f"{model}: {ended.stderr[-2000:]}")  # it did not get as far as the first request
        if ended.returncode:
            with answers.open("a") as stream:
                stream.write(json.dumps({"died": ended.returncode}) + "\n")
    return [json.loads(line) for line in answers.read_text().splitlines()]
