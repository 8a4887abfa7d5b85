"""Requests that attack exported graphs, and the program that runs them.

A request is a list of tensors in the format of graph_runner.py. A graph is a role of a family, for example "decoder" of
"sam2". graph_rules.py defines valid requests.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.tiny_models import WIDTH

from triton_sam.export import onnx_tools
from triton_sam.families import get_family
from triton_sam.families.tables import GUARD_PREFIX, ModelSpec

RUNNER = Path(__file__).with_name("graph_runner.py")
LARGEST = 8 << 20
"""Maximum size of a tensor of a generated request, in bytes."""
SIZES = (0, 0, 0, 1, 1, 2, 3, 4, 7, 64, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 62)
FILLS = ("nan", "inf", "huge")
TYPES = {"FP32": "float32", "INT64": "int64"}
WRONG_TYPES = ("float64", "float16", "int32", "int64", "float32", "uint8", "bool", "str")

Request = list[dict]

ONE = {
    "images": 1, "prompts": 1, "points": 1, "masks": 1, "boxes": 0, "objects": 1, "memories": 1, "pointers": 1,
    "instances": 1,
}  # fmt: skip
"""The sizes of a small valid request, by symbol."""
MANY = {
    "images": 2, "prompts": 2, "points": 1, "masks": 2, "boxes": 2, "objects": 2, "memories": 3, "pointers": 4,
    "instances": 3,
}  # fmt: skip
"""The sizes of a larger valid request."""


def spec_of(family: str, role: str) -> ModelSpec:
    """Return the row of the family's table for a graph; for video models, at the size of the tests."""
    chosen = get_family(family)
    tracking = chosen.tracking.models if chosen.tracking else {}
    return (chosen.at(VIDEO_SIDES[family]) if role in tracking else chosen).every_model[role]


def request(spec: ModelSpec, sizes: dict[str, int], optional: bool = False, fill: str = "random") -> Request:
    """Return a request with a size for each symbol of the spec's inputs."""
    return [
        {
            "name": tensor.name,
            "dtype": TYPES[tensor.dtype],
            "shape": [sizes[side] if isinstance(side, str) else side or WIDTH for side in tensor.shape],
            "fill": fill,
        }
        for tensor in spec.inputs
        if optional or not tensor.optional
    ]


def controls(family: str, role: str) -> list[Request]:
    """Return valid requests, whose answers must not depend on requests in between."""
    spec = spec_of(family, role)
    if _is_encoder(spec):
        return [request(spec, ONE)]
    return [
        request(spec, ONE),
        request(spec, {**ONE, "points": 0, "pointers": 0}, optional=True),  # only a mask, or no pointer yet
        request(spec, {**ONE, "prompts": 3, "points": 2, "boxes": 3, "objects": 3, "memories": 2, "pointers": 2}),
        request(spec, MANY, optional=True),
    ]


def classics(family: str, role: str) -> list[Request]:
    """Return attacks that once ended the process or got a wrong answer, and a few obvious ones."""
    spec = spec_of(family, role)
    found = [request(spec, {**ONE, symbol: 0}, optional=True) for symbol in ONE if symbol != "points"]
    found += [request(spec, {**ONE, symbol: 2}, optional=True) for symbol in ("images", "masks", "boxes")]
    found += [request(spec, dict.fromkeys(ONE, 0), optional=True), request(spec, ONE, fill="nan")]
    for index, tensor in enumerate(spec.inputs):  # one tensor is inconsistent with the others
        for axis, side in enumerate(tensor.shape):
            if isinstance(side, str):
                for size in (0, 2, 3):
                    attack = request(spec, ONE, optional=True)
                    attack[index]["shape"][axis] = size
                    found.append(attack)
    if role == "decoder":
        for size in (1 << 20, 1 << 40):  # many prompts without bytes
            found.append(request(spec, {**ONE, "prompts": size, "points": 0}))
    return list({json.dumps(attack): attack for attack in found}.values())


def negative(family: str, role: str) -> list[Request]:
    """Return attacks with negative sizes, which are only possible in requests to a server."""
    spec = spec_of(family, role)
    found = []
    for index, tensor in enumerate(spec.inputs):
        for axis in range(len(tensor.shape)):
            for size in (-1, -(1 << 40), -(1 << 63)):
                found.append(request(spec, ONE, optional=True))
                found[-1][index]["shape"][axis] = size
    return found


def generated(family: str, role: str, count: int, seed: int) -> Iterator[Request]:
    """Yield random attacks: valid requests with one or two changed parts."""
    spec = spec_of(family, role)
    # random instead of numpy: its sequence does not depend on the version
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
        sizes |= {"objects": prompts, "memories": sizes["masks"], "pointers": sizes["points"], "instances": prompts}
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
    """Remove all elements of a tensor that is too large for a request, and keep its other sizes."""
    while _elements(part) * 8 > LARGEST:
        part["shape"][chance.randrange(len(part["shape"]))] = 0


def _elements(part: dict) -> int:
    product = 1
    for side in part["shape"]:
        product *= side
    return product


def is_right(family: str, role: str, attack: Request) -> bool:
    """Return whether a request has the sizes and types that docs/reference/models.md allows."""
    spec = spec_of(family, role)
    types = {tensor.name: TYPES[tensor.dtype] for tensor in spec.inputs}
    ranks = {tensor.name: len(tensor.shape) for tensor in spec.inputs}
    shapes = {part["name"]: part["shape"] for part in attack}
    needed = {tensor.name for tensor in spec.inputs if not tensor.optional}
    if not needed <= shapes.keys() <= types.keys() or any(part["dtype"] != types[part["name"]] for part in attack):
        return False
    if any(len(shape) != ranks[name] for name, shape in shapes.items()):
        return False
    return has_right_shapes(family, role, shapes)


def _is_encoder(spec: ModelSpec) -> bool:
    """Return whether a graph takes only an image, so that a valid request is expensive."""
    return len(spec.inputs) == 1 and spec.inputs[0].shape[1:2] == (3,)


def run(
    model: Path, requests: Sequence[Request], folder: Path, python: Sequence[str] = (sys.executable,)
) -> list[dict]:
    """Run requests against an ONNX file in separate processes.

    Args:
        requests: see graph_runner.py.
        python: the command of a Python with numpy and onnxruntime.

    Returns:
        One answer for each request; ``{"died": code}`` if it ended the process. A new process runs the rest.
    """
    folder.mkdir(parents=True)
    todo, answers = folder / "requests.json", folder / "answers.jsonl"
    todo.write_text(json.dumps(requests))
    answers.touch()
    while (done := len(answers.read_text().splitlines())) < len(requests):
        command = [*python, str(RUNNER), str(model), str(todo), str(answers)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        if ended.returncode > 0 and len(answers.read_text().splitlines()) == done:
            raise AssertionError(f"{model}: {ended.stderr[-2000:]}")  # it ended before the first request
        if ended.returncode:
            with answers.open("a") as stream:
                stream.write(json.dumps({"died": ended.returncode}) + "\n")
    return [json.loads(line) for line in answers.read_text().splitlines()]


# --- The valid shapes of each graph, written by hand so that they also test the tables of the families ---------------


Shapes = Mapping[str, list[int]]

SIDES = {"sam1": 1024, "mobilesam": 1024, "samhq": 1024, "sam2": 1024, "edgetam": 1024, "sam3": 1008}
VIDEO_SIDES = {"sam2": 512, "edgetam": 256}
"""Sides of the images of the video models that the tests export."""
_TEXT, _SMALL = [32, 256], [256, 72, 72]


def has_right_shapes(family: str, role: str, shapes: Shapes) -> bool:
    """Return whether tensors of the right names, types and ranks have valid and consistent shapes."""
    if role == "concept_encoder":
        ((images, *rest),) = shapes.values()
        return images >= 1 and rest == [WIDTH, 72, 72]
    if role == "encoder":
        ((images, *rest),) = shapes.values()
        return images >= 1 and rest == [3, SIDES[family], SIDES[family]]
    if role == "decoder":
        return _decoder_of_sam3(shapes) if family == "sam3" else _decoder_of_points(shapes)
    return _RULES_OF_VIDEOS[role](family, shapes) if role in _RULES_OF_VIDEOS else _RULES[role](shapes)


def _decoder_of_points(shapes: Shapes) -> bool:
    prompts, points, two = shapes["point_coords"]
    fixed = {
        "image_embeddings": [256, 64, 64],
        "hq_features": [32, 256, 256],
        "high_res_feats_0": [32, 256, 256],
        "high_res_feats_1": [64, 128, 128],
        "mask_input": [1, 256, 256],
        "has_mask_input": [],
    }
    return (
        1 <= prompts <= 64
        and prompts * points <= 2048
        and two == 2
        and shapes["point_labels"] == [prompts, points]
        and _one_or_each(shapes, fixed, prompts)
    )


def _decoder_of_sam3(shapes: Shapes) -> bool:
    images, prompts, points, two = shapes["input_points"]
    return (
        min(images, prompts) >= 1
        and images * prompts <= 64
        and images * prompts * points <= 2048
        and two == 2
        and shapes["input_labels"] == [images, prompts, points]
        and shapes["input_boxes"] in ([images, 0, 4], [images, prompts, 4])
        and shapes["image_embeddings.0"] == [images, 32, 288, 288]
        and shapes["image_embeddings.1"] == [images, 64, 144, 144]
        and shapes["image_embeddings.2"] == [images, 256, 72, 72]
    )


def _memory_attention(family: str, shapes: Shapes) -> bool:
    objects, memories = shapes["memory_ages"]
    pointers = shapes["pointer_ages"][1]
    side = VIDEO_SIDES[family] // 16
    memory = [512, 64] if family == "edgetam" else [64, side, side]
    return (
        1 <= objects <= 64
        and 1 <= objects * memories <= 320
        and objects * pointers <= 2048
        and shapes["memories"] == [objects, memories, *memory]
        and shapes["object_pointers"] == [objects, pointers, 256]
        and shapes["pointer_ages"] == [objects, pointers]
        and _one_or_each(shapes, {"image_embeddings": [256, side, side]}, objects)
    )


def _memory_encoder(family: str, shapes: Shapes) -> bool:
    (objects,) = shapes["is_prompted"]
    side = VIDEO_SIDES[family]
    return (
        1 <= objects <= 64
        and shapes["masks"] == [objects, 1, side // 4, side // 4]
        and shapes["object_score_logits"] == [objects, 1]
        and _one_or_each(shapes, {"image_embeddings": [256, side // 16, side // 16]}, objects)
    )


def _tracking_decoder(family: str, shapes: Shapes) -> bool:
    objects, points, two = shapes["point_coords"]
    side = VIDEO_SIDES[family]
    fixed = {
        "image_embeddings": [256, side // 16, side // 16],
        "high_res_feats_0": [32, side // 4, side // 4],
        "high_res_feats_1": [64, side // 8, side // 8],
        "mask_input": [1, side // 4, side // 4],
        "has_mask_input": [],
    }
    return (
        1 <= objects <= 64
        and objects * points <= 2048
        and two == 2
        and shapes["point_labels"] == [objects, points]
        and shapes["multimask"] == shapes["mask_prompt"] == [objects]
        and _one_or_each(shapes, fixed, objects)
    )


def _mask_prompt(family: str, shapes: Shapes) -> bool:
    objects, *rest = shapes["mask"]
    return objects >= 1 and rest == [1, VIDEO_SIDES[family], VIDEO_SIDES[family]]


def _text_encoder(shapes: Shapes) -> bool:
    prompts, tokens = shapes["input_ids"]
    return 1 <= prompts <= 64 and tokens == 32 and shapes["attention_mask"] == [prompts, 32]


def _detector(shapes: Shapes) -> bool:
    prompts, boxes = shapes["input_boxes_labels"]
    return (
        1 <= prompts <= 64
        and boxes <= 64
        and shapes["input_boxes"] == [prompts, boxes, 4]
        and shapes["text_features"] == [prompts, *_TEXT]
        and shapes["attention_mask"] == [prompts, 32]
        and shapes["concept_states"] == shapes["example_features"] == [1, *_SMALL]
    )


def _mask_head(shapes: Shapes) -> bool:
    prompts, instances, channels = shapes["mask_queries"]
    return (
        1 <= prompts <= 8
        and 1 <= prompts * instances <= 1600
        and channels == 256
        and shapes["mask_features"] == [prompts, *_SMALL]
        and shapes["concept_features.0"] == [1, 256, 288, 288]
        and shapes["concept_features.1"] == [1, 256, 144, 144]
    )


_RULES_OF_VIDEOS = {
    "memory_attention": _memory_attention,
    "memory_encoder": _memory_encoder,
    "tracking_decoder": _tracking_decoder,
    "mask_prompt": _mask_prompt,
}
_RULES = {
    "text_encoder": _text_encoder,
    "detector": _detector,
    "mask_head": _mask_head,
}


def _one_or_each(shapes: Shapes, rests: Mapping[str, list[int]], count: int) -> bool:
    """Return whether each tensor is one for all objects, or one per object, and has its fixed shape otherwise."""
    return all(shape[0] in (1, count) and shape[1:] == rests[name] for name, shape in shapes.items() if name in rests)


def assert_guarded(model: Any) -> None:
    """Check that no node reads an input with a variable size before the guard has checked it."""
    free = {
        value.name
        for value in model.graph.input
        if any(not side.HasField("dim_value") for side in value.type.tensor_type.shape.dim)
    }
    assert free
    guarding = [node for node in model.graph.node if node.name.startswith(GUARD_PREFIX)]
    assert free == {name for node in guarding for name in node.input} & {value.name for value in model.graph.input}
    for node in model.graph.node:
        assert node in guarding or not free & set(node.input), node.name
    assert model.ir_version <= onnx_tools.MAX_IR_VERSION
    assert {opset.domain: opset.version for opset in model.opset_import}[""] == onnx_tools.OPSET
    assert {node.domain for node in guarding} == {""}
