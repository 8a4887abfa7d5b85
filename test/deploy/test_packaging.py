"""Programs of the checkout start and report errors, and extras are installed by commands that work."""

import contextlib
import functools
import http.server
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from support.manifest import project

from triton_sam._common import extras
from triton_sam._common.bundle import checkout

ROOT = checkout()


def test_every_package_of_the_checkout_is_installed(tmp_path):
    """`triton_sam2` is the first name of the package."""
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    targets = project()["tool"]["hatch"]["build"]["targets"]
    assert packages == ["triton_sam", "triton_sam2"]
    assert set(packages) <= set(targets["wheel"]["only-include"]) & set(targets["sdist"]["include"])
    # `pip install -e`: the folder of the checkout is on the path.
    build = "import sys, hatchling.build; print(hatchling.build.build_editable(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / built.stdout.split()[-1]) as wheel:
        (path,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".pth"))
    assert path.splitlines() == [str(ROOT)]


def test_shell_scripts_parse_and_explain_themselves():
    for path in [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / "deploy/nginx/make_certificates.sh"]:
        subprocess.run(["bash", "-n", path], check=True, timeout=30)
        done = subprocess.run(["bash", path, "--help"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "sage" in done.stdout) == (0, True), path.name


@pytest.mark.nightly
def test_every_program_explains_itself_and_does_nothing_else():
    folders = ("scripts", "examples", "tools/maintain", "tools/lab", "tools/demo_model", "docs/tutorial")
    programs = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py"))]
    for path in (path for path in programs if "__main__" in path.read_text(encoding="utf-8")):
        command = [sys.executable, path, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout.startswith(f"usage: {path.name}"), done.stderr


def one_line_error(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


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
    assert extras.install("export") == f'pip install "triton-sam[export] @ {extras.REPOSITORY}"'
