"""The widget for notebooks in a real JupyterLab, in Chromium: a person clicks, and the next cell has the object."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import answers, running_program
from support.tools import CLICK
from support.uv_environment import make_environment

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.local_server.ports import choose_ports

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

CELLS = (
    """from triton_sam import SAM2TritonClient
from triton_sam.integrations.notebook import Clicker

clicker = Clicker({image!r}, SAM2TritonClient({url!r}))
clicker""",
    """print("area", [each.area for each in clicker.segments])""",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    project = str(bundled("pyproject.toml").parent)
    return make_environment(tmp_path_factory.mktemp("lab") / "venv", ["jupyterlab", "-e", f"{project}[notebook]"])


def write_notebook(path: Path, **values: str) -> None:
    """Write a notebook with the cells."""
    cells = [
        {"id": f"cell-{number}", "cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
        | {"source": source.format(**values) if "{image" in source else source}
        for number, source in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book))


@contextlib.contextmanager
def jupyter(python: Path, folder: Path) -> Iterator[str]:
    """Run JupyterLab over a folder; yields its address."""
    port = choose_ports("127.0.0.1", {"jupyter": 0})["jupyter"]
    options = {"port": port, "ServerApp.root_dir": folder, "IdentityProvider.token": "", "ServerApp.allow_root": True}
    words = [f"--{name}={value}" for name, value in options.items()]
    command = [str(python), "-m", "jupyterlab", "--no-browser", *words]
    home = {"HOME": str(folder), "JUPYTER_CONFIG_DIR": str(folder / "config"), "PATH": str(python.parent)}
    url = f"http://127.0.0.1:{port}"
    with running_program(command, folder / "log", lambda: answers(f"{url}/api/status"), env=home):
        yield url


def test_a_click_in_jupyterlab(python, service_triton, images, tmp_path, browser):
    write_notebook(tmp_path / "book.ipynb", image=str(images / "shapes.jpg"), url=service_triton.grpc_url)
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(images / "shapes.jpg")
        expected = client.segment([CLICK], [1])[0]
    with jupyter(python, tmp_path) as url, contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{url}/doc/tree/book.ipynb")
        cells = page.locator(".jp-CodeCell")
        cells.nth(0).locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        image = page.get_by_alt_text("the image to click in")
        image.wait_for()
        page.wait_for_function("document.querySelector('img[alt=\"the image to click in\"]').naturalWidth > 1")
        place = image.bounding_box()
        scale = place["width"] / 800
        image.click(position={"x": CLICK[0] * scale, "y": CLICK[1] * scale})
        page.get_by_text("object 1: score").wait_for()
        cells.nth(1).locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        output = cells.nth(1).locator(".jp-OutputArea-output").first
        output.wait_for()
        text = output.inner_text()
    assert text.startswith("area [")
    assert abs(json.loads(text.removeprefix("area "))[0] - expected.area) <= expected.area / 100
