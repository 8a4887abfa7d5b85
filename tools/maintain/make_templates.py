"""Makes the templates of all official models: graphs without weights, and how the weights follow from a checkpoint.

A model is traced twice, with two seeds; a third trace proves that the template gives the same graph for other weights.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.maintain.recipes import Recipes, Recorder, traced_graphs
from tools.maintain.sources import digest
from triton_sam.export import onnx_tools, pipeline, rewrites
from triton_sam.export.derive import Tree, evaluate
from triton_sam.export.registry import exporter
from triton_sam.export.settings import Settings
from triton_sam.export.templates import FOLDER, LAYOUT, MADE
from triton_sam.families import FAMILIES, Family, get_family
from triton_sam.families.tables import ModelSize

Array = npt.NDArray[Any]
SEEDS = (1, 2, 3)
SIDES = {"sam2": (1024, 512)}
"""Image sizes besides the official one: 512 is that of fast videos."""
PACKAGES = (
    "torch",
    "onnx",
    "onnxscript",
    "sam2",
    "segment-anything",
    "mobilesam-mirror",
    "segment-anything-hq",
    "transformers",
)


@dataclass
class Traced:
    """One model with random weights: its state dict, and the graphs of a role before and after the optimiser."""

    state: Mapping[str, Array]
    raw: onnx.ModelProto
    graph: onnx.ModelProto
    recorder: Recorder


def traces(family: str, settings: Settings, seed: int) -> Iterator[tuple[str, Traced]]:
    """Trace all models of a family with the weights of a seed."""
    chosen = exporter(family)
    settings = chosen.prepare(replace(settings, random_seed=seed).complete(chosen.family))
    model = pipeline.build(chosen, settings)
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    specs = chosen.family.at(settings.side).models_for(video=settings.video, concepts=settings.concepts)
    for role, spec in specs.items():
        with traced_graphs() as raw, Recorder() as recorder:
            graph = chosen.trace(model, spec, settings.options)
        onnx_tools.strip(graph)
        rewrites.reorder_gelu(graph)
        onnx_tools.label_dimensions(graph, spec)
        yield role, Traced(state, raw[-1], graph, recorder)


def recipe_of(first: Traced, second: Traced) -> tuple[onnx.ModelProto, dict[str, Tree]]:
    """Return a graph without the weights that a checkpoint gives, and the trees of these weights."""
    recipes = Recipes(first.state, first.recorder, first.raw, second.raw)
    others = {item.name: numpy_helper.to_array(item) for item in second.graph.graph.initializer}
    users = {name: node for node in first.graph.graph.node for name in node.input}
    trees = {}
    for item in first.graph.graph.initializer:
        array = numpy_helper.to_array(item)
        if item.name in others and np.array_equal(array, others[item.name], equal_nan=array.dtype.kind == "f"):
            continue
        trees[item.name] = recipes.of(item.name, array, users.get(item.name))
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(first.graph)
    for item in skeleton.graph.initializer:
        if item.name in trees:
            item.ClearField("raw_data")
    return skeleton, trees


def differences(skeleton: onnx.ModelProto, trees: Mapping[str, Tree], traced: Traced) -> dict[str, float]:
    """Return what a template gives differently from a trace, in units in the last place; empty if nothing."""
    found = {}
    given = {item.name: item for item in skeleton.graph.initializer}
    if list(skeleton.graph.node) != list(traced.graph.graph.node):
        found["nodes"] = np.inf
    for item in traced.graph.graph.initializer:
        wanted = numpy_helper.to_array(item)
        if item.name in trees:
            array = np.ascontiguousarray(evaluate(trees[item.name], traced.state.__getitem__))
        else:
            array = numpy_helper.to_array(given[item.name])
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            found[item.name] = np.inf
        elif array.tobytes() != wanted.tobytes():
            found[item.name] = float(np.max(np.abs(array - wanted) / np.spacing(np.abs(wanted).max())))
    return found


def make(family: Family, size: ModelSize, side: int, folder: Path) -> None:
    """Write the templates of all roles of a size to a folder.

    Raises:
        SystemExit: a template does not give the graph of a trace.
    """
    own = {"video": family.tracking is not None, "concepts": bool(family.concepts)}
    settings = Settings(Path("unused"), model=size.model, image_size=side, progress=False, **own)
    runs = [traces(family.name, settings, seed) for seed in SEEDS]
    roles = folder / str(side)
    roles.mkdir(parents=True, exist_ok=True)
    for (role, first), (_, second), (_, third) in zip(*runs, strict=True):
        layout = {name: list(array.shape) for name, array in first.state.items()}
        (folder / LAYOUT).write_text(json.dumps(layout, separators=(",", ":")))
        skeleton, trees = recipe_of(first, second)
        first.recorder.made.clear()
        del second
        gc.collect()
        wrong = differences(skeleton, trees, third)
        print(
            f"{family.name} {size.name} {side} {role}: {len(trees)} weights, largest difference "
            f"{max(wrong.values(), default=0):g} ulp",
            flush=True,
        )
        if max(wrong.values(), default=0) > 1:
            raise SystemExit(f"the template differs from a trace: {wrong}")
        (roles / f"{role}.onnx").write_bytes(skeleton.SerializeToString(deterministic=True))
        (roles / f"{role}.json").write_text(json.dumps(trees, separators=(",", ":")))


def pack(family: str, work: Path) -> Path:
    """Put the templates of a family into its archive, and return its path."""
    made = {"sources": digest(family), "versions": {name: version(name) for name in PACKAGES}}
    (work / MADE).write_text(json.dumps(made))
    target = FOLDER / f"{family}.tar.xz"
    target.parent.mkdir(exist_ok=True)
    with (
        lzma.open(target, "wb", preset=9 | lzma.PRESET_EXTREME) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for path in sorted(work.rglob("*"), key=lambda path: (path.suffix, path.name, str(path))):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(work).as_posix())
                entry.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(entry, content)
    return target


def main() -> None:
    """Make the templates of a family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("--size", action="append", help="make this size only, beside those that the work folder has")
    parser.add_argument("--side", action="append", type=int, help="make this image size only, as for --size")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir(), "triton-sam-templates"),
        help="folder for the parts, which are kept (default: %(default)s)",
    )
    args = parser.parse_args()
    family = get_family(args.family)
    work = args.work / family.name
    for size in family.sizes:
        if args.size is None or size.name in args.size:
            for side in args.side or SIDES.get(family.name, (family.image_size,)):
                make(family, size, side, work / size.name)
    target = pack(family.name, work)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
