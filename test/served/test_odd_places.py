"""The real Triton where names are not plain: home folders, virtual environments, model repositories, versions."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.conditions import PATIENCE
from support.nginx_proxy import free_ports
from support.programs import answers, running_program
from support.tiny_models import SCALE_CONFIG, scale_graph, write_model

from triton_sam._common.bundle import bundled
from triton_sam.errors import LocalServerError
from triton_sam.local_server import LocalServer, stub_path
from triton_sam.local_server.installation import PACKAGE_ROOT
from triton_sam.repository.folder import list_models

MODELS = ("sam2", "sam2_encoder", "sam2_decoder")


@dataclass(frozen=True)
class Installation:
    """The home folder, the interpreter, the checkout or the wheel's files, and the environment of commands."""

    home: Path
    python: Path
    checkout: Path
    environment: dict[str, str]

    @property
    def repository(self) -> Path:
        return self.checkout / "model_repository"


def install(folder: Path) -> Installation:
    """Create a user's home folder with an installation. The packages are links to this environment's packages."""
    checkout = folder / "checkout"
    shutil.copytree(PACKAGE_ROOT, checkout / "triton_sam", ignore=shutil.ignore_patterns("__pycache__"))
    _copy_files(checkout)
    (checkout / "pyproject.toml").touch()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not _is_utf8(folder):  # Python does not start from this virtual environment
        environment["PYTHONPATH"] = str(checkout)
        return Installation(folder, Path(sys.executable), checkout, environment)
    return Installation(folder, _environment(folder, _base(folder), checkout), checkout, environment)


def install_wheel(folder: Path) -> Installation:
    """Create a virtual environment with the wheel's files, without a checkout."""
    python = _environment(folder, _base(folder), None)
    (package,) = (folder / ".venv" / "lib").glob("*/site-packages/triton_sam")
    _copy_files(package / "_bundle")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return Installation(folder, python, package / "_bundle", {**environment, "XDG_DATA_HOME": str(folder / "data")})


def _copy_files(folder: Path) -> None:
    for name in MODELS:
        shutil.copytree(bundled("model_repository") / name, folder / "model_repository" / name)
    shutil.copytree(bundled("test/images"), folder / "test" / "images")


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _base(folder: Path) -> Path:
    """Create an interpreter in the folder, as uv and pyenv do; return its path."""
    name = f"python{sysconfig.get_python_version()}"
    prefix = Path(sys.base_prefix)
    base = folder / "python"
    for part in ("bin", "lib"):
        (base / part).mkdir(parents=True)
    shutil.copy2(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), base / "bin" / name)
    for library in [prefix / "lib" / name, *(prefix / "lib").glob("libpython*.so*")]:
        (base / "lib" / library.name).symlink_to(library)
    return base / "bin" / name


def _environment(folder: Path, base: Path, checkout: Path | None) -> Path:
    """Create a virtual environment in the folder with an editable installation of a checkout; return its Python."""
    packages = folder / ".venv" / "lib" / base.name / "site-packages"
    packages.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith("triton_sam"):
            (packages / entry.name).symlink_to(entry)
    if checkout is None:
        shutil.copytree(PACKAGE_ROOT, packages / "triton_sam", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (packages / "_editable_impl_triton_sam.pth").write_text(f"{checkout}\n", encoding="utf-8")
    (folder / ".venv" / "bin").mkdir()
    python = folder / ".venv" / "bin" / "python"
    python.symlink_to(base)
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n", encoding="utf-8")
    return python


ACCENTS = "józef ü"
SHELL = """a b [x] (y) {z} $HOME `id` '" ; & | * ? ~ # % \\n !"""
NOT_UTF8 = os.fsdecode(b"caf\xe9 \xc5\xbc")
LOCALE_C = {"LC_ALL": "C", "PYTHONUTF8": "0"}
STRICT = {"PYTHONIOENCODING": "utf-8:strict"}
"""As in a locale such as en_US.UTF-8. In C.UTF-8, which containers have, Python prints any name."""


def run(installed: Installation, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the folder of the installation; it succeeds without a traceback."""
    command = [str(installed.python), "-m", "triton_sam", *map(str, arguments)]
    environment = {**installed.environment, **variables}
    done = subprocess.run(command, cwd=installed.home, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:])
    assert b"Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_the_demo_runs_in_the_home_of_a_user_with_an_accent(tmp_path):
    """Python, the virtual environment, the checkout and TMPDIR are in that home."""
    installed = install(tmp_path / ACCENTS)
    out = tmp_path / ACCENTS / "out"
    run(installed, "demo", "--out", out, TMPDIR=str(tmp_path / ACCENTS), TRITON_URL="")
    assert [path.name for path in sorted(out.iterdir())] == ["coffee_overlay.png", "shapes_overlay.png"]


@pytest.mark.slow
def test_a_wheel_writes_nothing_into_its_package(tmp_path):
    """Exports, aliases and settings go to the user's own repository, and the demo's overlays to the current folder."""
    installed = install_wheel(tmp_path)
    packages = installed.checkout.parents[1]
    own = tmp_path / "data" / "triton-sam" / "model_repository"

    def listing() -> list[Path]:
        return sorted(path for path in packages.rglob("triton_sam/**/*") if "__pycache__" not in path.parts)

    before = listing()
    report = run(installed, "doctor").stdout.decode()
    assert f"go to {own}" in report
    assert f"sam2_encoder in {installed.repository}" in report
    assert not own.exists()
    run(installed, "alias", "mine", "--of", "sam2")
    assert {path.name for path in own.iterdir()} == {
        "sam2", "sam2_encoder", "sam2_decoder", "mine", "mine_encoder", "mine_decoder",
    }  # fmt: skip
    assert f"sam2_encoder in {own}" in run(installed, "doctor").stdout.decode()
    run(installed, "demo", TRITON_URL="")
    assert len(list((tmp_path / "triton-sam-demo").iterdir())) == 2
    assert listing() == before


@contextmanager
def serving(installed: Installation, command: Sequence[str], url: str, **variables: str) -> Iterator[None]:
    """Run a server until the end of the block, when SIGTERM must end it."""
    words = [str(installed.python), "-m", "triton_sam", *command, "--model-repository", str(installed.repository)]
    environment = {**installed.environment, **variables}
    log = installed.home / "log"
    with running_program(words, log, lambda: answers(url), env=environment) as process:
        yield
        process.terminate()
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM), log.read_bytes()


PLACES = [
    pytest.param(SHELL, {}, [], id="shell"),
    pytest.param(NOT_UTF8, STRICT, [], id="not UTF-8"),
    pytest.param(NOT_UTF8, LOCALE_C, ["--admin"], id="not UTF-8 in C, admin"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variables", "admin"), PLACES)
def test_commands_work_in_an_odd_place(tmp_path, name, variables, admin):
    installed = install(tmp_path / name)
    here = installed.home
    shutil.copytree(installed.checkout / "test" / "images", here / "ż")
    ports = free_ports(4)
    url = f"http://localhost:{ports[0]}"
    options = ["--http-port", str(ports[0]), "--grpc-port", str(ports[1]), "--metrics-port", str(ports[2])]
    with serving(installed, ["serve", *options, *admin], f"{url}/v2/health/ready", **variables):
        image = here / "ż" / "shapes.jpg"
        run(installed, "predict", image, "--url", url, "--point", "200,180", "--out", here / "m ż.png", **variables)
        search = ["--points-per-side", "2", "--url", url]
        run(installed, "everything", image, *search, "--out", here / "found ż", **variables)
        written = here / "data ż"
        run(
            installed, "annotate", here / "ż", "--with", "everything", *search, "--out", written, "--format", "coco",
            **variables,
        )  # fmt: skip
        for words in (["models"], ["doctor", "--url", url], ["alias", "other", "--of", "sam2"]):
            run(installed, *words, "--model-repository", installed.repository, **variables)
        run(installed, "reload", "sam2", "--url", url, **variables)
        run(installed, "health", "--url", url, **variables)
        assert (here / "m ż.png").is_file()
        assert any(written.iterdir())
    service = ["service", "--local", "--port", str(ports[3])]
    with serving(installed, service, f"http://localhost:{ports[3]}/health", **variables):
        pass


@pytest.mark.slow
def test_a_process_that_python_cannot_start_in_ends_the_start_soon(scale_only, tmp_path, monkeypatch):
    """Triton itself waits for minutes for such a process."""
    broken = tmp_path / "broken.py"
    broken.write_text("import os, sys\nsys.stderr.write('no such luck\\n')\nos._exit(7)\n")
    monkeypatch.setattr(stub_path, "__file__", str(broken))
    began = time.monotonic()
    with pytest.raises(LocalServerError, match=r"no such luck.*the process of a model ended while it started"):
        LocalServer(scale_only).start()
    assert time.monotonic() - began < 100


def test_only_whole_numbers_are_versions(scale_only):
    """Triton itself takes whatever begins with digits for a version."""
    for name in ("2.bak", "03", "٤", "+5", "6 "):
        write_model(scale_only, "scale", scale_graph(5), SCALE_CONFIG, f"{name}/other.onnx")
    assert list_models(scale_only)[0].versions == (1,)
    with LocalServer(scale_only) as server:
        (model,) = server.served_models()
        assert model.version == "1"


def test_an_open_server_names_a_folder_that_triton_takes_for_a_version(scale_only, caplog):
    write_model(scale_only, "scale", scale_graph(5), SCALE_CONFIG, "2.bak/model.onnx")
    with pytest.raises(LocalServerError):
        LocalServer(scale_only, admin=True).start()
    assert f"{scale_only}/scale/2.bak: Triton takes this folder for a version of the model" in caplog.text


def test_models_with_names_that_no_server_can_start_are_left_out(scale_only, caplog):
    names = ("my model", "mödel", "a$(id)b")
    for name in names:
        write_model(scale_only, name, scale_graph(), SCALE_CONFIG.replace('"scale"', f'"{name}"'))
    with caplog.at_level(logging.WARNING, "triton_sam"), LocalServer(scale_only) as server:
        assert [model.name for model in server.served_models()] == ["scale"]
    assert all(f"{name!r} is not a valid model name" in caplog.text for name in names)


def test_errors_of_a_model_in_an_odd_repository_name_its_file(tmp_path):
    repository = tmp_path / NOT_UTF8
    write_model(repository, "scale", b"not a model", SCALE_CONFIG)
    with pytest.raises(LocalServerError, match=r"caf\ufffd ż/scale/1/model.onnx: .*(?i:protobuf)"):
        LocalServer(repository).start()
