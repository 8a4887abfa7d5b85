"""Clients run on every system and Python; the local server runs where nvidia-pytriton does, and says so elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.manifest import project

from triton_sam.cli import main
from triton_sam.local_server import installation

TESTS = Path(__file__).parents[1]

A_CLIENT_PROGRAM = """
import support.elsewhere
import asyncio, sys
from pathlib import Path
import triton_sam
from triton_sam._common.files import atomic_write, locked
from triton_sam.cli import main

with locked(Path(sys.argv[1]) / "lock"):
    atomic_write(Path(sys.argv[1]) / "file", b"content")
assert [path.name for path in Path(sys.argv[1]).iterdir()] == ["file"]
for url in ("http://127.0.0.1:9", "grpc://127.0.0.1:9"):
    with triton_sam.SAM2TritonClient(url, timeout=60, retries=0) as client:
        assert not client.is_ready()

async def hover():
    async with triton_sam.SpeculativeSAM2Client("grpc://127.0.0.1:9", timeout=60, retries=0) as client:
        await client.set_image(sys.argv[2])

try:
    asyncio.run(hover())
except triton_sam.ServerUnreachableError:
    pass
else:
    raise AssertionError("nobody listens there")
assert main(["predict", sys.argv[2], "--point", "200,180", "--url", "127.0.0.1:9"]) == 1
"""


def run_elsewhere(*arguments):
    """Run Python with the tests' support and the package; plugins of pytest that need POSIX stay out."""
    path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False)


def test_a_program_needs_nothing_of_posix(tmp_path, images):
    done = run_elsewhere("-c", A_CLIENT_PROGRAM, tmp_path, images / "shapes.jpg")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "nothing answers" in done.stderr or "127.0.0.1:9" in done.stderr


def test_an_extra_says_where_nvidia_pytriton_has_a_wheel():
    requirements = pytest.importorskip("packaging.requirements")
    (wheel,) = [
        requirement
        for requirement in map(requirements.Requirement, project()["project"]["optional-dependencies"]["serving"])
        if requirement.name == "nvidia-pytriton"
    ]

    def wanted(python, system, machine):
        about = {"python_version": python, "sys_platform": system, "platform_machine": machine}
        return bool(wheel.marker.evaluate(about))

    pythons = [f"3.{minor}" for minor in range(10, 15)]
    assert tuple(python for python in pythons if wanted(python, "linux", "x86_64")) == installation.PYTHONS
    machines = ("x86_64", "aarch64", "riscv64", "AMD64")
    assert tuple(machine for machine in machines if wanted("3.12", "linux", machine)) == installation.MACHINES
    assert not wanted("3.12", "win32", "x86_64")
    assert not wanted("3.12", "darwin", "x86_64")


WRONG_SYSTEM = (
    r"error: the local server needs Linux on x86_64 or aarch64, this is .*: run Triton in Docker instead: .*\n"
)
WRONG_PYTHON = (
    r"error: the local server needs Python 3\.10, 3\.11, 3\.12, .*; this is 3\.14: use another Python "
    r"\(`uv venv --python 3\.12`, then `uv pip install .*local.*`\), or .*docker compose up\n"
)
NO_PACKAGE = r"error: the local server needs the nvidia-pytriton wheel: pip install .*local.*\n"
FITTING = {
    "sys.platform": "linux",
    "platform.machine": lambda: "x86_64",
    "triton_sam.local_server.installation._python_version": lambda: "3.12",
}
ELSEWHERE = {
    "system": ({"sys.platform": "win32"}, WRONG_SYSTEM),
    "machine": ({**FITTING, "platform.machine": lambda: "riscv64"}, WRONG_SYSTEM),
    "Python": ({**FITTING, "triton_sam.local_server.installation._python_version": lambda: "3.14"}, WRONG_PYTHON),
    "package": ({**FITTING, "importlib.util.find_spec": lambda name: None}, NO_PACKAGE),
}


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("command", ["serve", "predict"])
def test_a_local_server_elsewhere_is_one_line(where, command, images, capsys, monkeypatch):
    patches, expected = ELSEWHERE[where]
    options = {
        "serve": ["-q", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"],
        "predict": ["-q", str(images / "shapes.jpg"), "--point", "200,180", "--local"],
    }
    with monkeypatch.context() as patch:
        for name, value in patches.items():
            patch.setattr(name, value)
        assert main([command, *options[command]]) == 1
    (line,) = capsys.readouterr().err.splitlines(keepends=True)
    assert re.search(expected, line), line


def test_doctor_ends_well_on_a_python_without_a_wheel(capsys, monkeypatch):
    patches, expected = ELSEWHERE["Python"]
    with monkeypatch.context() as patch:
        for name, value in patches.items():
            patch.setattr(name, value)
        assert main(["doctor", "--json", "--url", "127.0.0.1:9"]) == 1
    printed = capsys.readouterr()
    (finding,) = [each for each in json.loads(printed.out) if each["subject"] == "local Triton"]
    assert (finding["status"], printed.err) == ("missing", "")
    assert re.fullmatch(expected, f"error: {finding['mend']}\n")
