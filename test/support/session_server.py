"""A local server with the session model."""

import shutil
from pathlib import Path

import pytest
from support.conditions import settled

IMAGES_IN_CACHE = 3


def serve(repository, **options):
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    return local_server.LocalServer(repository, models=["sam2"], **options)


def add_session_model(repository: Path, name: str, config: str) -> None:
    """Add a session model of the default pair under another name, or write the config of the pair's own."""
    if name != "sam2":
        shutil.copytree(repository / "sam2", repository / name)
    (repository / name / "config.pbtxt").write_text(config.replace('name: "sam2"\n', f'name: "{name}"\n', 1))


def encoded(transport):
    """Return the number of images that the encoder has computed."""
    return settled(lambda: int(transport.statistics("sam2_encoder")["inference_count"]))
