"""The local Triton of most tests, one per process for the whole run. It serves the toy pair in all settings.

Its session models use the same pair. ``sam2`` caches three images and calls the decoder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from support.session_requests import IMAGE_BYTES, IMAGES_IN_CACHE, add_session_model
from support.toy_decoder import toy_repository
from support.toy_video import FAMILY, toy_video_models

from triton_sam.repository.accelerators import Tuning, tune

if TYPE_CHECKING:
    from triton_sam.local_server import LocalServer

CALLS, CONFIGURED, CHOSEN = "sam2", "sam2_configured", "sam2_chosen"
"""Session models: one calls the decoder, one decodes by its config.pbtxt, one by the server's default."""
NARROW, MAX_PENDING = "sam2_narrow", 2
"""A session model with a short queue, and the queue's length."""
BATCHED, OLD = "sam2_batched", "old"
"""A session model whose bodies have a batch dimension, and one of the project's first version."""
CACHED = "sam2_cached_jpeg"
"""The encoder of image files with Triton's response cache."""
VIDEO = "sam2_video"


def toy_server(folder: Path) -> LocalServer:
    """Fill a model repository and return the server, not started."""
    from triton_sam.local_server import LocalServer

    repository = toy_repository(folder)
    plain = (repository / CALLS / "config.pbtxt").read_text()
    own = tune(plain, Tuning(decoder_in_session=True))
    add_session_model(repository, CONFIGURED, own)
    add_session_model(repository, CHOSEN, plain)
    add_session_model(repository, NARROW, plain.replace('"24"', f'"{MAX_PENDING}"'))
    add_session_model(repository, BATCHED, batched(plain))
    calls = own.replace('string_value: "true"', 'string_value: "false"')
    add_session_model(repository, CALLS, calls.replace("536870912", str(IMAGES_IN_CACHE * IMAGE_BYTES + 1)))
    _write_old_model(repository / OLD)
    _add_cached_encoder(repository)
    for role, graph in toy_video_models().items():
        file = repository / FAMILY.model_name(role) / "1" / "model.onnx"
        file.parent.mkdir()
        onnx.save(graph, file)
    models = [CALLS, CONFIGURED, CHOSEN, NARROW, BATCHED, OLD, "sam2_encoder_jpeg", CACHED, VIDEO]
    options = ["--cache-config=local,size=268435456"]
    return LocalServer(repository, models=models, extra_args=options)


def batched(config: str) -> str:
    """Change the two lines of config.pbtxt that docs/reference/session-models.md gives."""
    for name in ("image_b64", "prompt_json"):
        line = f'{{ name: "{name}", data_type: TYPE_STRING, dims: [1], optional: true }}'
        assert line in config
        config = config.replace(line, line.replace("[1]", "[1, 1]"))
    return config


def _write_old_model(folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    tensors = ", ".join(
        f'{{ name: "{name}", data_type: TYPE_STRING, dims: [1] }}' for name in ("image_b64", "prompt_json")
    )
    (folder / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 16\ninput [{tensors}]\n'
        'output [{ name: "result_json", data_type: TYPE_STRING, dims: [1] }]\ninstance_group [{ kind: KIND_CPU }]\n'
    )
    (folder / "1" / "model.py").write_text(
        "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        result = np.array([[b'{\"mask\": null}']], np.object_)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('result_json', result)]) for _ in requests]\n"
    )


def _add_cached_encoder(repository: Path) -> None:
    encoder = repository / "sam2_encoder_jpeg"
    shutil.copytree(encoder, repository / CACHED)
    config = (encoder / "config.pbtxt").read_text().replace(f'"{encoder.name}"', f'"{CACHED}"')
    (repository / CACHED / "config.pbtxt").write_text(f"{config}response_cache {{ enable: true }}\n")
