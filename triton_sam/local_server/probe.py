"""Ask a starting server how far it is, and find in its answers and its log why it failed."""

from __future__ import annotations

import http.client
import itertools
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_LOG_LINE = re.compile(r"^(?P<level>[EWIF])\d{4} \S+ +\d+ [\w.]+:\d+\] (?P<text>.*)$")
_FORMALITIES = re.compile(r"^(?:(?:Internal|Invalid argument|TritonModelException|UNAVAILABLE): )+")
_BIND_FAILURE = re.compile(r"(?i)already in use|address in use|failed to start (http|grpc|metrics) service")
# Written at every start on a machine without a GPU.
_NOISE = ("CudaDriverHelper", "NVML", "pinned memory", "DCGM", "CUDA memory pool")


@dataclass(frozen=True)
class ServedModel:
    """One model that a server has ready.

    Attributes:
        name: the model's name.
        version: the served version.
        device: "CPU", "GPU 0", "GPU 0, 1"; "" for an ensemble, which runs on none.
    """

    name: str
    version: str
    device: str


class Probe:
    """Small synchronous questions to one server over HTTP. None means that it does not answer (yet)."""

    def __init__(self, host: str, port: int, timeout: float = 2.0) -> None:
        self._address = (host, port)
        self._timeout = timeout

    def server_name(self) -> str | None:
        """The `--id` that the answering server was started with."""
        answer = self._ask("GET", "/v2")
        return str(answer.get("name")) if isinstance(answer, dict) else None

    def server_version(self) -> str:
        """The version of Triton, "" when it does not answer."""
        answer = self._ask("GET", "/v2")
        return str(answer.get("version", "")) if isinstance(answer, dict) else ""

    def index(self) -> list[dict[str, str]] | None:
        """The rows of the repository index: name, version, state, reason."""
        answer = self._ask("POST", "/v2/repository/index")
        return answer if isinstance(answer, list) else None

    def served_models(self) -> list[ServedModel]:
        """The models that are ready, by name."""
        rows = [row for row in self.index() or [] if row.get("state") == "READY"]
        rows.sort(key=lambda row: (row["name"], row["version"]))
        return [ServedModel(row["name"], row["version"], self._device(row["name"])) for row in rows]

    def _device(self, name: str) -> str:
        config = self._ask("GET", f"/v2/models/{name}/config")
        groups = config.get("instance_group", []) if isinstance(config, dict) else []
        gpus = sorted({gpu for group in groups if group["kind"] == "KIND_GPU" for gpu in group.get("gpus", [])})
        if gpus:
            return "GPU " + ", ".join(map(str, gpus))
        return "CPU" if groups else ""

    def _ask(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout)
        try:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


def failed_models(index: list[dict[str, str]], wanted: Collection[str]) -> dict[str, str]:
    """Return why each wanted model is not ready; an empty dict when all are."""
    ready = {row["name"] for row in index if row.get("state") == "READY"}
    reasons = {
        row["name"]: tidy_reason(row["reason"])
        for row in index
        if row.get("state") == "UNAVAILABLE" and row.get("reason") not in (None, "", "unloaded")
    }
    silent = {name: "the server did not load it" for name in wanted if name not in ready}
    return {**silent, **{name: reason for name, reason in reasons.items() if name in wanted}}


def tidy_reason(reason: str) -> str:
    """Cut Triton's wrapping and the Python traceback off a reason, and make it one line."""
    text = reason.partition("\n\nAt:")[0]
    return _FORMALITIES.sub("", " ".join(text.split())).rstrip(";")


def last_errors(log: str, count: int = 3) -> list[str]:
    """Return the last lines of a log that tell what went wrong, errors before anything else."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    lines = [line for line in lines if not any(noise in line for noise in _NOISE)]
    lines = list(itertools.takewhile(lambda line: not line.startswith("Usage:"), lines))  # pages of options
    matches = [(_LOG_LINE.match(line), line) for line in lines]
    errors = [match["text"].strip('"') for match, _ in matches if match and match["level"] in "EF"]
    plain = [line for match, line in matches if match is None]
    return (errors or plain or lines)[-count:]


def taken_port(log: str, ports: dict[str, int]) -> str | None:
    """Return the service whose port was taken from under the server while it started."""
    for line in log.splitlines():
        if _BIND_FAILURE.search(line):
            for service, port in ports.items():
                if re.search(rf"\b{port}\b", line) or f"{service} service" in line.lower():
                    return service
    return None
