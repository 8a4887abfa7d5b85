"""Run a real Triton server without Docker: `with LocalServer("model_repository") as server: ...`."""

from __future__ import annotations

from triton_sam.local_server.launcher import LocalServer
from triton_sam.local_server.probe import ServedModel
from triton_sam.local_server.serve import serve
from triton_sam.local_server.settings import ServerSettings

__all__ = ["LocalServer", "ServedModel", "ServerSettings", "serve"]
