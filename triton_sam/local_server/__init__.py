"""Run a real Triton server without Docker: `with LocalServer("model_repository") as server: ...`.

`launcher` starts a server, `installation` prepares the Triton of the nvidia-pytriton wheel, and
`backends/onnxruntime` is its backend for ONNX. `supervisor` is the parent of every tritonserver, including those in
containers (`contained`): it restarts Triton after a crash (`stubs`) or on request (`control`). `settings` has the
options of every deployment.
"""

from __future__ import annotations

from triton_sam.local_server.launcher import LocalServer
from triton_sam.local_server.probe import ServedModel
from triton_sam.local_server.serve import serve
from triton_sam.local_server.settings import ServerSettings

__all__ = ["LocalServer", "ServedModel", "ServerSettings", "serve"]
