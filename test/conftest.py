"""Shared fixtures: local Tritons for the whole run, the service, a browser."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.two_workers import PeakMemory, check_groups, end_unused, forbidden_skips, group_by_use, shared, turn

from triton_sam._common.bundle import bundled

IMAGES = bundled("test/images")
PEAK_MEMORY = pytest.StashKey[PeakMemory]()
NEEDED = {
    "served": ("pytriton",),
    "slow": ("pytriton", "yaml"),
    "deploy": ("pytriton", "yaml"),
    "tiles": ("tifffile", "zarr"),
    "verify": ("onnx", "onnxruntime", "torch", "sam2"),
    "service": ("fastapi", "av", "hypothesis", "playwright", "schemathesis", "tifffile", "zarr"),
}
"""Packages of extras without which the tests of a folder are skipped."""

# Some virtual machines announce AMX and end a program that uses it. torch uses it for products of bfloat16 matrices,
# which one test computes; oneDNN reads the variable before its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The tests start hundreds of processes with the same packages. Without stored bytecode, each would compile them again,
# and the collection of the tests alone takes twice as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# With `pytest -n 2`, threads of torch in one process would wait for those of the other: with one thread each, the tests
# of videos took 414 s instead of 551 on two cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--url", help="server for test_basic.py (default: one that runs at $TRITON_URL, else a local one)")
    parser.addoption(
        "--only-allowed-skips",
        action="store_true",
        help="fail if a test is skipped for another reason than those listed",
    )
    parser.addoption("--peak-memory", type=Path, metavar="FILE", help="write how much memory the run takes")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--peak-memory") is not None and not hasattr(config, "workerinput"):
        config.stash[PEAK_MEMORY] = PeakMemory()


class _Module(pytest.Module):
    """A file of tests, which is skipped if the packages of its folder are missing."""

    def collect(self):
        if self.path.name != "test_basic.py":  # its server may run elsewhere
            for package in NEEDED.get(self.path.parent.name, ()):
                if importlib.util.find_spec(package) is None:
                    pytest.skip(f"{package} is not installed")
        return super().collect()


def pytest_pycollect_makemodule(module_path, parent):
    return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks next
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_by_use(items)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the time limit of the test begins
def pytest_runtest_protocol(item: pytest.Item):
    with turn(item):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _forbidden_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if PEAK_MEMORY in config.stash:
        terminalreporter.write_line(config.stash[PEAK_MEMORY].write(config.getoption("--peak-memory")))
    if skips := _forbidden_skips(config):
        terminalreporter.section("skipped, although test/support/two_workers.py does not allow it", red=True)
        terminalreporter.write("".join(f"{line}\n" for line in skips))


def _forbidden_skips(config: pytest.Config) -> list[str]:
    """Return the skips that fail a run with --only-allowed-skips, in the process that has all reports."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not config.getoption("--only-allowed-skips"):
        return []
    return forbidden_skips(reporter.stats)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    check_groups(ids)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
    try:
        return (yield)
    finally:
        end_unused(item, nextitem)


@pytest.fixture(scope="session", autouse=True)
def _children_can_be_interrupted():
    """Restore the handler of SIGINT, which a shell ignores in background jobs.

    Programs that the tests start and interrupt would inherit this.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def scale_only(tmp_path):
    """Return a repository with one model, which starts in a fraction of a second."""
    from support.tiny_models import SCALE_CONFIG, scale_graph, write_model

    write_model(tmp_path / "models", "scale", scale_graph(), SCALE_CONFIG)
    return tmp_path / "models"


@pytest.fixture
def anyio_backend():
    """The event loop of tests that are coroutines, which have the mark `anyio`."""
    return "asyncio"


@pytest.fixture(scope="session")
def images():
    """Folder of the project's test images."""
    return IMAGES


@pytest.fixture(scope="session")
def server(request, tmp_path_factory):
    """Yield the local Triton of all tests that need no good masks: see support.toy_server."""
    pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from support.toy_server import toy_server

    yield from shared(request, toy_server(tmp_path_factory.mktemp("toy_server") / "models"))


@pytest.fixture(scope="session", params=["http", "grpc"])
def url(request, server):
    """URL of the shared server, for each protocol."""
    return server.http_url if request.param == "http" else server.grpc_url


@pytest.fixture(scope="session")
def video_models(tmp_path_factory):
    """The models for videos in the micro size at 512 pixels, with random weights."""
    for package in ("torch", "sam2", "onnxruntime"):
        pytest.importorskip(package)
    from support.video_graphs import write_video_models

    return write_video_models(tmp_path_factory.mktemp("video") / "models")


@pytest.fixture(scope="session")
def families_server(request, tmp_path_factory):
    """A local Triton with all families, small ones but for SAM2, under their own names and under aliases."""
    for package in ("segment_anything", "transformers", "onnxruntime"):
        pytest.importorskip(package)
    local_server = pytest.importorskip("triton_sam.local_server")
    from support.family_exports import SERVED, all_families

    from triton_sam.cli import main

    repository = all_families(tmp_path_factory.mktemp("families"))
    options = ["--model-repository", str(repository), "-q"]
    assert main(["alias", "paintera", *options]) == 0
    assert main(["alias", "my_sam", "--of", "sam2", *options]) == 0
    if "mobilesam" in SERVED:
        assert main(["alias", "my_mobile", "--of", "mobilesam", *options]) == 0
    yield from shared(request, local_server.LocalServer(repository))


@pytest.fixture(scope="session")
def toy_repository(tmp_path_factory):
    """A model repository with the toy pair of SAM2, for tests with a Triton of their own. Copy it to write into it."""
    pytest.importorskip("onnx")
    from support.toy_decoder import toy_repository

    return toy_repository(tmp_path_factory.mktemp("toy") / "models")


@pytest.fixture(scope="session")
def service_triton(request):
    """A local Triton with the session model, as the service's tests need it."""
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    yield from shared(request, local_server.LocalServer(bundled("model_repository"), models=["sam2"]))


@pytest.fixture(scope="module")
def triton_client(service_triton, images):
    """A client of that Triton with the image shapes.jpg."""
    from triton_sam import SAM2TritonClient

    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(images / "shapes.jpg")
        yield client


@pytest.fixture(scope="module")
def own_triton():
    """A local Triton with the session model for one file, which ends before the large servers of the process start."""
    local_server = pytest.importorskip("triton_sam.local_server")
    with local_server.LocalServer(bundled("model_repository"), models=["sam2"]) as running:
        yield running


@pytest.fixture(scope="session")
def service(request, service_triton):
    """A running SAM service over ``service_triton``."""
    pytest.importorskip("fastapi")
    from support.running_service import running_service

    yield from shared(request, running_service(service_triton.grpc_url))


@pytest.fixture(scope="session")
def chromium(request):
    """A headless Chromium for all tests of this process; skips where there is none."""
    from support.running_browser import running_browser

    yield from shared(request, running_browser())


@pytest.fixture
def browser(chromium):
    """That Chromium, while a test uses it."""
    with chromium.in_use() as browser:
        yield browser


@pytest.fixture
def page(browser, service):
    """The service's page in a tab of its own."""
    from support.running_browser import open_page

    with open_page(browser, service.url) as page:
        yield page


@pytest.fixture
def shapes(page, images):
    """That page with the demo image open."""
    page.open(images / "shapes.jpg")
    return page


@pytest.fixture(scope="session")
def helm_program():
    """Return the path of helm; skip the tests that need it where it is missing."""
    from support import helm

    try:
        return helm.program("helm")
    except helm.MissingProgramError as reason:
        pytest.skip(str(reason))
