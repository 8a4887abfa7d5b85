"""Pixi tasks and scripts fit their schemas, start, and report errors. Pixi itself is not needed."""

import contextlib
import functools
import http.server
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.manifest import pixi_tasks, project

from triton_sam._common import extras
from triton_sam._common.bundle import checkout
from triton_sam.errors import MissingDependencyError

jsonschema = pytest.importorskip("jsonschema")
ROOT = checkout()
DATA = Path(__file__).parents[1] / "data"
PYPROJECT = project()
PIXI = PYPROJECT["tool"]["pixi"]
TOOLS = {"pytest", "ruff", "mypy"}
TASKS = pixi_tasks()
COMMANDS = sorted({part.strip() for task in TASKS.values() if "cmd" in task for part in task["cmd"].split("&&")})


def test_pixi_manifest_fits_the_schema():
    schema = json.loads((DATA / "pixi-schema.json").read_text(encoding="utf-8"))
    errors = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(PIXI)]
    assert errors == []


def test_every_package_of_the_checkout_is_installed():
    """`triton_sam2` is the first name of the package."""
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    targets = PYPROJECT["tool"]["hatch"]["build"]["targets"]
    assert packages == targets["wheel"]["packages"] == ["triton_sam", "triton_sam2"]
    assert set(packages) <= set(targets["sdist"]["include"])


def test_pixi_schema_is_really_applied():
    schema = json.loads((DATA / "pixi-schema.json").read_text(encoding="utf-8"))
    broken = {**PIXI, "tasks": {"demo": {"command": "triton-sam demo"}}}
    assert list(jsonschema.Draft7Validator(schema).iter_errors(broken))


PROMISED = """
demo serve doctor test lint lint-deploy format typecheck download-tiny download-small download-base download-large
clone-sam2 export-sam2 export-onnx setup setup-sam2 test-sam2 setup-sam1 setup-sam3 setup-all download-sam1-h
download-sam1-l download-sam1-b download-sam3-onnx hf-login clone-sam1 export-sam1 export-sam3 test-sam1 test-sam3
test-speculative speculative service evaluate benchmark-sam1 benchmark-sam2 benchmark-sam3 benchmark-load
install-sam1 install-sam2 benchmark-sam2-both benchmark-sam3-both
"""
"""The tasks that the first README named. test_documents.py checks the names in today's documents."""


def test_promised_tasks_exist_and_depend_on_existing_ones():
    promised = PROMISED.split()
    assert set(promised) <= set(TASKS)
    for task in TASKS.values():
        assert set(task.get("depends-on", [])) <= set(TASKS)


def test_environments_name_existing_features():
    for environment in PIXI["environments"].values():
        features = environment["features"] if isinstance(environment, dict) else environment
        assert set(features) <= set(PIXI["feature"])


def test_pixi_knows_the_environment_of_each_task():
    """Pixi uses the default environment when all others have the same task, otherwise the only one with the task."""
    places = {name: ["default feature"] if name in PIXI["tasks"] else [] for name in TASKS}
    for environment in PIXI["environments"].values():
        for feature in environment["features"] if isinstance(environment, dict) else environment:
            for name in PIXI["feature"][feature].get("tasks", {}):
                places[name].append(feature)
    assert {name: found for name, found in places.items() if len(found) != 1} == {}


def test_pixi_extras_are_those_of_the_project():
    known = set(PYPROJECT["project"]["optional-dependencies"])
    tables = [
        PIXI["pypi-dependencies"],
        *(feature.get("pypi-dependencies", {}) for feature in PIXI["feature"].values()),
    ]
    for table in tables:
        assert set(table.get("triton-sam", {}).get("extras", [])) <= known


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_task_starts(command):
    program, *arguments = shlex.split(command)
    if program == "git":
        assert arguments[0] == "clone"
        assert shutil.which("git")
        return
    if program == "triton-sam":
        start = [sys.executable, "-m", "triton_sam", *_known(arguments), "--help"]
    elif program == "python":
        start = [sys.executable, arguments[0], "--help"]
    else:
        assert program in TOOLS
        if program == "pytest":
            paths = [each for each in arguments if not each.startswith("-") and not each.isdigit()]  # a number: -n 2
            assert all((ROOT / path).exists() for path in paths)
        start = [sys.executable, "-m", program, "--version"]
    done = subprocess.run(start, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def _known(arguments):
    """Check a task's arguments by parsing them, and return the command's name."""
    from triton_sam.cli import build_parser

    if arguments == ["track"]:  # the user adds a video and prompts
        arguments = ["track", "clip.mp4", "--out", "masks"]
    build_parser().parse_args(arguments)
    return arguments[:1]


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "scripts").glob("*.sh")))
def test_shell_scripts_parse_and_explain_themselves(script):
    path = ROOT / "scripts" / script
    subprocess.run(["bash", "-n", path], check=True, timeout=30)
    done = subprocess.run(["bash", path, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "sage" in done.stdout


def one_line_error(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["examples/speculative.py", "--url", "127.0.0.1:9"], "nothing answers"),
        (["examples/speculative.py", "--url", "ftp://x"], "scheme"),
        (["examples/speculative.py", "--url", "127.0.0.1:9", "--image", "nofile.jpg"], "nofile.jpg"),
        (["scripts/click_bytes.py", "--url", "127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
        (["scripts/click_bytes.py", "--url", "grpc://127.0.0.1:9"], "http://"),
    ],
)
def test_python_programs_tell_errors_in_one_line(arguments, words):
    assert words in one_line_error(sys.executable, *arguments)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_script_for_curl_tells_errors_in_one_line(tmp_path):
    script = ("bash", "scripts/infer_example.sh", "127.0.0.1")
    prompt = '{"points": [[200, 180]]}'
    assert "curl: (7)" in one_line_error(*script, "9", "test/images/shapes.jpg", prompt)
    assert "test/images/shape.jpg is neither a file" in one_line_error(*script, "9", "test/images/shape.jpg", prompt)
    with serving(tmp_path) as port:  # a web server that is not Triton
        assert "this answer is not from Triton: <" in one_line_error(*script, port, "test/images/shapes.jpg", prompt)


@contextlib.contextmanager
def serving(folder):
    """Run a plain web server, and yield its port."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_port)
        server.shutdown()


def test_ci_runs_the_tests_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    install = 'pip install -c constraints.txt -e ".[local,export,dev]"'
    assert f"{install} && pytest -n 2" in readme
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert install.removeprefix("pip install ") in script
    assert "\npytest" in script


def test_constraints_name_no_url():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "://" not in line for line in pins)


def test_the_command_that_installs_an_extra_names_the_checkout(monkeypatch, tmp_path):
    """No index has the package, so its extras are installed from the checkout, from any working directory."""
    monkeypatch.chdir(ROOT)
    assert extras.install("export,local") == 'pip install -c constraints.txt -e ".[export,local]"'
    monkeypatch.chdir(tmp_path)
    parts = shlex.split(extras.install("export"))
    assert parts[:3] == ["pip", "install", "-c"]
    assert Path(parts[3]).is_file()
    assert parts[4:] == ["-e", f"{ROOT}[export]"]
    monkeypatch.setattr(extras, "checkout", lambda: None)
    assert extras.install("export") == 'pip install "triton-sam[export]"'


def test_a_missing_package_is_named_with_its_extra():
    error = extras.missing("the plots need", "benchmark", ImportError("No module named 'a.b'", name="a.b"))
    assert isinstance(error, MissingDependencyError)
    assert str(error).startswith("the plots need the benchmark extra (a is missing): pip install ")


def test_only_one_place_in_the_code_says_how_to_install_an_extra():
    for path in (ROOT / "triton_sam").rglob("*.py"):
        if path != ROOT / "triton_sam" / "_common" / "extras.py":
            assert not re.search(r"""-e ['"]?\.\[|triton-sam\[""", path.read_text()), path
