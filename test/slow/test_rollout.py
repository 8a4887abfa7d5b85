"""New weights on a running server, as docs/how-to/kubernetes.md describes it: canary, roll-out, roll-back, alias."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.commands import copy_committed

from triton_sam import SAM2TritonClient
from triton_sam.cli import main
from triton_sam.local_server import LocalServer
from triton_sam.transport.onnx import OnnxTransport

pytestmark = [pytest.mark.slow, pytest.mark.export]
ROLES = ("encoder", "decoder")


@pytest.fixture(scope="module")
def running(tmp_path_factory, images):
    """Yield a server with the demo model, a variant of other weights, and the alias `stable`; and their answers."""
    pytest.importorskip("sam2")
    repository = copy_committed(tmp_path_factory.mktemp("repository"), "sam2", "sam2_encoder", "sam2_decoder")
    given = ["--model-repository", str(repository), "--quiet"]
    assert main(["export", "sam2", "--random", "7", "--size", "micro", "--name", "sam2.1_next", *given]) == 0
    assert main(["alias", "stable", "--of", "sam2", *given]) == 0
    expected = [answer_of_files(repository, variant, images) for variant in ("sam2", "sam2.1_next")]
    assert np.abs(expected[0] - expected[1]).max() > 1  # otherwise this test could not tell them apart
    models = ["sam2", *(f"{variant}_{role}" for variant in ("sam2.1_next", "stable") for role in ROLES)]
    with LocalServer(repository, models=models, admin=True) as server:
        yield SimpleNamespace(url=server.http_url, repository=repository, expected=expected, options=given)


def answer_of_files(repository: Path, variant: str, images: Path) -> np.ndarray:
    """Return the logits of one click, computed from the files without a server."""
    files = {f"sam2_{role}": repository / f"{variant}_{role}" / "1" / "model.onnx" for role in ROLES}
    with SAM2TritonClient("localhost", embeddings="client", transport=OnnxTransport(files)) as client:
        client.set_image(images / "shapes.jpg")
        return click(client)


def click(client: SAM2TritonClient) -> np.ndarray:
    return client.predict([[200, 180]], [1])[0]


def model_of(answer: np.ndarray, running: SimpleNamespace) -> int:
    """Return 1 for an answer of the demo model, 2 for one of the other weights, 0 for neither."""
    close = [np.allclose(answer, expected, atol=1e-2) for expected in running.expected]
    return close.index(True) + 1 if any(close) else 0


def asked(running: SimpleNamespace, images: Path, name: str | None = None) -> int:
    """Return which model answers a new client."""
    with SAM2TritonClient(running.url, model_name=name, timeout=120) as client:
        client.set_image(images / "shapes.jpg")
        return model_of(click(client), running)


def reload(running: SimpleNamespace, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run `triton-sam reload`, and return the version of every loaded model."""
    capsys.readouterr()
    assert main(["reload", name, "--url", running.url]) == 0
    return dict(line.split(" version ") for line in capsys.readouterr().out.splitlines())


def promote(running: SimpleNamespace) -> None:
    """Copy the weights of the variant to version 2 of the default models."""
    for role in ROLES:
        source, folder = running.repository / f"sam2.1_next_{role}" / "1", running.repository / f"sam2_{role}"
        shutil.copytree(source, folder / "new")
        (folder / "new").rename(folder / "2")


def demote(running: SimpleNamespace) -> None:
    for role in ROLES:
        shutil.rmtree(running.repository / f"sam2_{role}" / "2")


@contextlib.contextmanager
def clicking(running: SimpleNamespace, images: Path) -> Iterator[list[int]]:
    """Click all the time; the list tells which model answered each click."""
    answered: list[int] = []
    done = threading.Event()

    def run() -> None:
        with SAM2TritonClient(running.url, timeout=120) as client:
            client.set_image(images / "shapes.jpg")
            while not done.is_set():
                answered.append(model_of(click(client), running))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield answered
    finally:
        done.set()
        thread.join(240)


def test_roll_out_and_roll_back(running, images, capsys):
    # A variant beside the default is the canary: clients that name it get it.
    assert [asked(running, images, name) for name in (None, "sam2.1_next")] == [1, 2]
    with SAM2TritonClient(running.url, timeout=120) as client:
        client.set_image(images / "shapes.jpg")
        assert model_of(click(client), running) == 1
        promote(running)
        assert model_of(click(client), running) == 1  # nothing changes before the reload
        with clicking(running, images) as answered:
            versions = reload(running, "sam2", capsys)
            before, count = list(answered), len(answered)
            assert model_of(click(client), running) == 2  # the client sent the image again
        assert versions == {"sam2_encoder": "2", "sam2_decoder": "2", "sam2": "1"}
        assert set(answered[count + 1 :]) <= {2}
        with capsys.disabled():
            print("answers during the reload:", before, "and after it:", answered[count:])
        demote(running)
        assert reload(running, "sam2", capsys)["sam2_decoder"] == "1"
        assert model_of(click(client), running) == 1
    assert asked(running, images) == 1


def test_an_alias_moves_between_variants(running, images, capsys):
    assert asked(running, images, "stable") == 1
    for variant, model in (("sam2.1_next", 2), ("sam2", 1)):
        assert main(["alias", "stable", "--of", variant, *running.options]) == 0
        assert reload(running, "stable", capsys) == {"stable_encoder": "1", "stable_decoder": "1", "stable": "1"}
        assert asked(running, images, "stable") == model
