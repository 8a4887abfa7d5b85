"""Programs of the checkout start and report errors, and extras are installed by commands that work."""

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from pathspec import PathSpec
from support.manifest import project
from support.nginx_proxy import answering

from triton_sam._common import bundle, extras
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
        subprocess.run(["bash", "-n", path], check=True, timeout=60)
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
def test_the_script_for_curl_tells_errors_in_one_line():
    script = ("bash", "scripts/infer_example.sh", "127.0.0.1")
    prompt = '{"points": [[200, 180]]}'
    assert "curl: (7)" in one_line_error(*script, "9", "test/images/shapes.jpg", prompt)
    assert "test/images/shape.jpg is neither a file" in one_line_error(*script, "9", "test/images/shape.jpg", prompt)
    statuses = {"/v2/models/sam2/infer": 501}
    with answering(("127.0.0.1", 0), statuses, b"<html>") as (port, _):  # a web server that is not Triton
        said = one_line_error(*script, str(port), "test/images/shapes.jpg", prompt)
    assert "this answer is not from Triton: <" in said


def test_the_command_that_installs_an_extra_names_the_checkout(monkeypatch, tmp_path):
    """No index has the package, so its extras are installed from the checkout, from any working directory."""
    monkeypatch.chdir(ROOT)
    assert extras.install("export,local") == 'pip install -c constraints.txt -e ".[export,local]"'
    monkeypatch.chdir(tmp_path)
    parts = shlex.split(extras.install("export"))
    assert parts[:3] == ["pip", "install", "-c"]
    assert Path(parts[3]).is_file()
    assert parts[4:] == ["-e", f"{ROOT}[export]"]
    monkeypatch.setattr(bundle, "checkout", lambda: None)
    assert extras.install("export") == f'pip install "triton-sam[export] @ {extras.REPOSITORY}"'


# --- the steps of the images, and the files that enter images and the wheel ------------------------------------------

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORE = (ROOT / ".dockerignore").read_text(encoding="utf-8")
LARGE = [
    "model_repository/sam1_encoder/1/model.onnx",
    "model_repository/sam2_encoder/2/model.onnx",
    "model_repository/sam2.1_large_encoder/1/model.onnx",
    "model_repository/sam2.1_large_encoder/config.pbtxt",
    "model_repository/sam3_decoder/10/model.onnx",
]
"""Files that exports and downloads leave beside the committed ones."""


def is_ignored(path: str, ignore_file: str) -> bool:
    """Return whether `docker build` ignores a file, by the rules of a .dockerignore.

    They are those of Git with every pattern at the root, for files and for folders.
    https://docs.docker.com/build/concepts/context/#dockerignore-files
    """
    lines = (line.strip() for line in ignore_file.splitlines())
    rooted = [re.sub("^(!?)/?", r"\1/", line.rstrip("/")) for line in lines if line and not line.startswith("#")]
    return PathSpec.from_lines("gitignore", [f"{each}{end}" for each in rooted for end in ("", "/**")]).match_file(path)


@pytest.fixture(scope="module")
def repository():
    """The committed files."""
    command = ["git", "ls-files", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git repository")
    return set(done.stdout.split("\0")) - {""}


def test_the_build_context_has_the_committed_models_and_no_others(repository):
    assert [path for path in LARGE if not is_ignored(path, IGNORE)] == []
    assert [path for path in repository if path.startswith("model_repository/") and is_ignored(path, IGNORE)] == []
    secrets = [".env", "deploy/nginx/tls/server.key", "deploy/nginx/tls-authority/ca.key", ".git/config"]
    assert [path for path in [*secrets, "checkpoints/sam2.1_hiera_large.pt"] if not is_ignored(path, IGNORE)] == []
    copied = {
        "pyproject.toml",
        "constraints.txt",
        "LICENSE",
        "README.md",
        "triton_sam/cli.py",
        "scripts/model_health.py",
    }
    assert [path for path in copied if is_ignored(path, IGNORE)] == []


def test_distributions_have_the_committed_models_and_no_others(repository, tmp_path):
    here, parts = tmp_path / "checkout", ("triton_sam/", "model_repository/", "test/images/")
    for path in [*repository, *LARGE]:
        if path.startswith(parts) or "/" not in path:
            target = here / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in repository and (ROOT / path).is_file():
                shutil.copy(ROOT / path, target)
            else:
                target.write_bytes(bytes(1000))
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=here, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = {
        name.removeprefix("triton_sam/_bundle/") for name in zipfile.ZipFile(wheel).namelist() if "_bundle/" in name
    }
    assert names == {path for path in repository if path.startswith(("model_repository/", "test/images/"))}
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert files & set(LARGE) == set()
    assert {path for path in repository if path.startswith("model_repository/")} <= files


def stage(name: str) -> str:
    return DOCKERFILE.partition(f" AS {name}\n")[2].partition("\nFROM ")[0]


def test_workflows_install_what_every_run_of_the_tests_needs():
    """The options in pyproject.toml are those of pytest-xdist, and test/conftest.py imports prometheus_client."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github/workflows").glob("*.yml")))
    installed = [set(words.split()) for words in re.findall("pip install (.*)", text.replace("\\\n", ""))]
    chosen = [words for words in installed if "pytest" in words]  # elsewhere an extra brings them
    assert len(chosen) == 2
    assert all({"pytest-xdist", "prometheus-client"} <= words for words in chosen)


def test_every_image_installs_the_versions_of_the_tests():
    for name in ("export", "service", "triton"):
        (install,) = re.findall(r"pip install (.*)", stage(name))
        assert install.startswith("--constraint "), name
    assert '".[service,video,remote]" s3fs' in stage("service")  # the jobs of annotate
    assert '--extra-index-url "$TORCH_INDEX"' in stage("export")  # PyTorch without CUDA
    assert re.search(r"(?m)^ARG TORCH_INDEX=https://\S+/cpu$", stage("export"))


def test_the_numpy_of_the_image_stays(tmp_path):
    """The step of the Dockerfile writes constraints that pip can use, with the version that the image has."""
    step = re.search(r"sed .*? >", stage("triton"))
    assert step is not None
    done = subprocess.run(
        ["bash", "-c", f"numpy=1.26.9; {step[0].rstrip(' >')}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    written = done.stdout.splitlines()
    assert [line for line in written if line.startswith("numpy")] == ["numpy==1.26.9"] * 2
    before = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in written if "numpy" not in line] == [
        line for line in before if not line.startswith("numpy")
    ]
