"""The Dockerfile's image `export`, built and run with Podman as the compose file runs it.

The base image is a stand-in (see `support/containers.py`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import containers

yaml = pytest.importorskip("yaml")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(containers.missing()), reason=containers.missing() or "-"),
]

SETTINGS = ("--profile", "export", "run", "--rm", "-T")
CLOSED = "http://127.0.0.1:9"
"""A mirror that nobody serves."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[containers.Podman]:
    """Give a Podman that has built the image, with a checkout whose folders belong to the container's user."""
    with containers.podman(tmp_path_factory.mktemp("podman"), f"sam{uuid.uuid4().hex[:6]}") as podman:
        compose = containers.fit_to_machine(yaml.safe_load((podman.directory / "docker-compose.yml").read_text()))
        podman.compose_file.write_text(yaml.safe_dump(compose), encoding="utf-8")
        python = re.search(r"(?m)^ARG PYTHON_TAG=(\S+)", (podman.directory / "Dockerfile").read_text(encoding="utf-8"))
        assert python is not None
        try:
            podman.build_stand_ins({f"docker.io/library/python:{python[1]}": "python"})
        except containers.MachineError as error:
            pytest.skip(str(error))
        (podman.directory / "models").mkdir()
        containers.give_to_containers(podman.directory)
        podman.compose("--profile", "export", "build", "export", timeout=2400)
        yield podman


@pytest.fixture
def repository(engine: containers.Podman, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that the compose file mounts as the model repository."""
    monkeypatch.setitem(engine.environment, "MODEL_REPOSITORY", "./models")
    return engine.directory / "models"


def test_the_entry_point_fills_an_empty_volume_and_names_an_unreachable_mirror(
    engine: containers.Podman, repository: Path
) -> None:
    with pytest.raises(AssertionError) as caught:
        engine.compose(*SETTINGS, "-e", f"TRITON_SAM_MIRROR={CLOSED}", "export", "sam2", "tiny")
    assert "127.0.0.1:9" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert (repository / "sam2_encoder" / "1" / "model.onnx").is_file()
    assert (repository / "sam2" / "config.pbtxt").is_file()
    assert list(repository.rglob("*.onnx.*")) == []


def test_an_export_writes_models_that_work_here(engine: containers.Podman, repository: Path) -> None:
    words = (
        "--entrypoint",
        "triton-sam",
        "export",
        "export",
        "sam2",
        "--size",
        "tiny",
        "--random",
        "0",
        "--name",
        "sam2_seeded",
    )
    engine.compose(*SETTINGS, *words, timeout=1200)
    path = repository / "sam2_seeded_encoder" / "1" / "model.onnx"
    assert path.stat().st_uid == 1000
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image = np.zeros((1, 3, 1024, 1024), np.float32)
    (embeddings, *_) = session.run(None, {session.get_inputs()[0].name: image})
    assert np.isfinite(embeddings).all()
