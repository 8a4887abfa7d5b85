"""`triton-sam service` as a program, which tests can kill and start again at its address."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
from support.conditions import wait_until

from triton_sam.local_server.ports import choose_ports


class ServiceProgram:
    """A service over a Triton, which runs until the end of the `with` block.

    Args:
        triton_url: the Triton.
        folder: the folder of its log, in which it works.
        options: further options of the command.
        variables: environment variables.
    """

    def __init__(self, triton_url: str, folder: Path, *options: str, **variables: str) -> None:
        port = choose_ports("127.0.0.1", {"service": 0})["service"]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "service.log"
        self._command = [sys.executable, "-m", "triton_sam", "service", "--port", str(port), "--url", triton_url]
        self._command += options
        self._variables = variables

    def __enter__(self) -> ServiceProgram:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it is healthy."""
        environment = {**os.environ, **self._variables}
        with self.log.open("a") as stream:
            self.process = subprocess.Popen(self._command, stderr=stream, cwd=self.log.parent, env=environment)
        wait_until(lambda: self._is_up() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def _is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False
