"""Makes the templates of all official models: graphs without weights, and how the weights follow from a checkpoint.

A model is traced with two seeds: what differs follows from the weights, and the second trace proves the trees that the
first one gave. `--check` compares the stored templates with a third one.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.maintain.recipes import Recipes
from tools.maintain.sources import MADE, digest
from tools.maintain.traces import Traced, traced
from triton_sam.export.settings import Settings
from triton_sam.export.templates import FOLDER, LAYOUT, Tree, evaluate, graph_of, templates
from triton_sam.families import FAMILIES, Family, get_family
from triton_sam.families.tables import ModelSize

SEEDS, OTHER_SEED = (1, 2), 3
SIDES = {"sam2": (1024, 512)}
"""Image sizes in addition to the official one: 512 for fast videos."""
LIMIT = 2
"""Maximum difference of a weight in units in the last place of the largest weight. EdgeTAM's folded normalisations
contain x ** 0.5, which torch does not round to nearest, and a product doubles the difference."""
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


def recipe_of(first: Traced, second: Traced) -> tuple[onnx.ModelProto, dict[str, Tree]]:
    """Return a graph without the weights of a checkpoint, and the trees of these weights."""
    recipes = Recipes(first.state, first.made, onnx.ModelProto.FromString(first.raw), first.leaves, second.leaves)
    skeleton = onnx.ModelProto.FromString(first.graph)
    users = {name: node for node in skeleton.graph.node for name in node.input}
    trees = {}
    for item in skeleton.graph.initializer:
        array, other = first.weights[item.name], second.weights.get(item.name)
        if other is None or not np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
            trees[item.name] = recipes.of(item.name, array, users.get(item.name))
        elif not (item.int32_data or item.int64_data or item.float_data):
            item.raw_data = array.tobytes()
    return skeleton, trees


def differences(skeleton: onnx.ModelProto, trees: Mapping[str, Tree], trace: Traced) -> dict[str, float]:
    """Return the differences of a template from a trace, in units in the last place; empty if equal."""
    found = {}
    given = {item.name: item for item in skeleton.graph.initializer}
    if list(skeleton.graph.node) != list(onnx.ModelProto.FromString(trace.graph).graph.node):
        found["nodes"] = np.inf
    for name, wanted in trace.weights.items():
        if name in trees:
            array = np.ascontiguousarray(evaluate(trees[name], trace.state.__getitem__))
        else:
            array = numpy_helper.to_array(given[name])
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            found[name] = np.inf
        elif array.tobytes() != wanted.tobytes():
            found[name] = float(np.max(np.abs(array - wanted) / np.spacing(np.abs(wanted).max())))
    return found


def run(family: Family, size: ModelSize, side: int, seed: int, folder: Path) -> dict[str, Traced]:
    """Trace all roles of a size with the random weights of a seed."""
    settings = Settings(
        Path("unused"),
        model=size.model,
        image_size=side,
        progress=False,
        random_seed=seed,
        video=family.tracking is not None,
    )
    return traced(family.name, settings, folder)


def prove(label: str, skeleton: onnx.ModelProto, trees: Mapping[str, Tree], found: Traced) -> None:
    """Compare the result of a template with a trace."""
    wrong = differences(skeleton, trees, found)
    largest = max(wrong.values(), default=0)
    print(f"{label}: {len(trees)} weights, largest difference {largest:g} ulp", flush=True)
    if largest > LIMIT:
        raise SystemExit(f"the template differs from a trace: {wrong}")


def make(family: Family, size: ModelSize, side: int, folder: Path) -> None:
    """Write the templates of all roles of a size to a folder."""
    roles = folder / str(side)
    roles.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        runs = [run(family, size, side, seed, Path(scratch, str(seed))) for seed in SEEDS]
        for role, first in runs[0].items():
            layout = {name: list(array.shape) for name, array in first.state.items()}
            (folder / LAYOUT).write_text(json.dumps(layout, separators=(",", ":")))
            skeleton, trees = recipe_of(first, runs[1][role])
            prove(f"{family.name} {size.name} {side} {role}", skeleton, trees, runs[1][role])
            (roles / f"{role}.onnx").write_bytes(skeleton.SerializeToString(deterministic=True))
            (roles / f"{role}.json").write_text(json.dumps(trees, separators=(",", ":")))


def check(family: Family, size: ModelSize, side: int) -> None:
    """Compare the stored templates of a size with a trace with other weights."""
    template = next(each for each in templates(family) if (each.size, each.side) == (size.name, side))
    with tempfile.TemporaryDirectory() as scratch:
        specs = family.at(side).models_for(video=family.tracking is not None, concepts=False)
        for role, found in run(family, size, side, OTHER_SEED, Path(scratch)).items():
            skeleton, trees = graph_of(family, template, specs[role])
            prove(f"{family.name} {size.name} {side} {role}", skeleton, trees, found)


def pack(family: str, work: Path) -> Path:
    """Pack the templates of a family into its archive, and return the path."""
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


def stamp(family: str, **versions: Mapping[str, str]) -> None:
    """Record the digest of the code, and the versions of the packages that made the templates."""
    made = json.loads(MADE.read_text())
    made[family] = {**made.get(family, {}), "sources": digest(family), **versions}
    MADE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Make the templates of a family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("--size", action="append", help="make this size only, beside those that the work folder has")
    parser.add_argument("--side", action="append", type=int, help="make this image size only, as for --size")
    parser.add_argument(
        "--check", action="store_true", help="make nothing: compare the stored templates with a trace, and stamp them"
    )
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
                if args.check:
                    check(family, size, side)
                else:
                    make(family, size, side, work / size.name)
    if args.check:
        if args.size is None and args.side is None:
            stamp(family.name)
        return
    target = pack(family.name, work)
    stamp(family.name, versions={name: version(name) for name in PACKAGES})
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
