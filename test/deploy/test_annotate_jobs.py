"""The jobs of Kubernetes for `triton-sam annotate`: their options are those of the command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support import manifests

from triton_sam._common.bundle import bundled
from triton_sam.annotate.folder import Part
from triton_sam.cli import build_parser

FOLDER = bundled("deploy/kubernetes/annotate")


def command_of(name: str) -> list[str]:
    """Return the arguments of the command that a job runs."""
    (job,) = manifests.load(FOLDER / name)
    if job["kind"] == "RayJob":
        return shlex.split(job["spec"]["entrypoint"])[1:]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    return [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in words][1:]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_command_understands_its_options(path: Path) -> None:
    args = build_parser().parse_args(command_of(path.name))
    assert (args.source, args.task, args.out) == ("/data/boxes.json", "boxes", Path("/data/masks"))
    assert args.images == "/data/images"


def test_the_parts_are_as_many_as_the_pods() -> None:
    (job,) = manifests.load(FOLDER / "indexed-job.yaml")
    part = build_parser().parse_args(command_of("indexed-job.yaml")).part
    assert part == Part(3, job["spec"]["completions"])
    assert job["spec"]["completionMode"] == "Indexed"


def test_the_jobs_of_one_run_differ_in_nothing_that_decides_about_the_masks() -> None:
    def deciding(name: str) -> list[str]:
        return [word for word in command_of(name) if not word.startswith(("--part", "--threads"))]

    assert deciding("indexed-job.yaml") == deciding("finish-job.yaml")
    pods = [
        manifests.load(FOLDER / name)[0]["spec"]["template"]["spec"] for name in ("indexed-job.yaml", "finish-job.yaml")
    ]
    assert pods[0]["volumes"] == pods[1]["volumes"]
    assert pods[0]["containers"][0]["image"] == pods[1]["containers"][0]["image"]
