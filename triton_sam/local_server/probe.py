"""Request the state of a starting server, and find the reason for a failure in its responses and its log.

Triton 2.51 leaves a model out of its repository index if it cannot read its config.pbtxt, or if the models of an
ensemble do not match. It logs its parser's reason in one line and the model in the next one; all other reasons in one
line. If the process of a model ended, the index says so, and the log has its last lines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam._common.text import MAX_LINE
from triton_sam.repository.config import CONFIG_NAME

from . import stubs

NOT_LOADED = "the server did not load it"
POLL_TIMEOUT = 2.0
"""Seconds for an answer that is asked for again. A longer wait would notice late that the server has ended."""
TIMEOUT = 30.0
"""Seconds for an answer that is asked for once. A server on a busy machine may need some."""
LOG_LINE = re.compile(r"^(?P<level>[EWIF])\d{4} \S+ +\d+ [\w.]+:\d+\] (?P<text>.*)$")
_FORMALITIES = re.compile(r"^(?:(?:Internal|Invalid argument|TritonModelException|UNAVAILABLE): )+")
_BIND_FAILURE = re.compile(r"(?i)already in use|address in use|failed to start (http|grpc|metrics) service")
# Triton logs these errors at every start on a machine without a GPU.
_NOISE = ("CudaDriverHelper", "NVML", "pinned memory", "DCGM", "CUDA memory pool")


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready on a server.

    Attributes:
        device: "CPU", "GPU 0", "GPU 0, 1" and so on; "" for an ensemble, which runs on no device.
    """

    name: str
    version: str
    device: str


class Probe:
    """Small synchronous HTTP requests to one server. A result of None means that the server does not answer (yet)."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._address, self._timeout = (host, port), timeout

    def about(self) -> dict[str, Any]:
        """Return facts of the answering server, such as "name" (its `--id`) and "version"; empty without an answer."""
        answer = self._ask("GET", "/v2")
        return answer if isinstance(answer, dict) else {}

    def index(self) -> list[dict[str, str]] | None:
        """Return the rows of the repository index, with the keys name, version, state and reason."""
        answer = self._ask("POST", "/v2/repository/index")
        return answer if isinstance(answer, list) else None

    def served_models(self) -> list[ServedModel]:
        """Return the models that are ready, sorted by name."""
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
        return stubs.ask(self._address, method, path, self._timeout)


def failed_models(index: list[dict[str, str]], wanted: Collection[str]) -> dict[str, str]:
    """Return the reason for each wanted model that is not ready; an empty dictionary if all are ready."""
    ready = {row["name"] for row in index if row.get("state") == "READY"}
    reasons = {row["name"]: tidy_reason(row["reason"]) for row in index if stubs.has_failed(row)}
    silent = {name: NOT_LOADED for name in wanted if name not in ready}
    return {**silent, **{name: reason for name, reason in reasons.items() if name in wanted}}


def tidy_reason(reason: str) -> str:
    """Return Triton's reason as one line, without its prefixes and the Python traceback."""
    text = reason.partition("\n\nAt:")[0]
    return _FORMALITIES.sub("", " ".join(text.split())).rstrip(";")


def last_errors(log: str) -> list[str]:
    """Return the last three errors of a log; without errors, its last lines that are not Triton's usual ones."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    lines = [line for line in lines if not any(noise in line for noise in _NOISE)]
    lines = list(
        itertools.takewhile(lambda line: not line.startswith("Usage:"), lines)
    )  # a list of all options follows
    matches = [(LOG_LINE.match(line), line) for line in lines]
    errors = [match["text"].strip('"') for match, _ in matches if match and match["level"] in "EF"]
    plain = [line for match, line in matches if match is None]
    return (errors or plain or lines)[-3:]


def taken_port(log: str, ports: dict[str, int]) -> str | None:
    """Return the service whose port another process took during the start; None if the log names none."""
    for line in log.splitlines():
        if _BIND_FAILURE.search(line):
            for service, port in ports.items():
                if re.search(rf"\b{port}\b", line) or f"{service} service" in line.lower():
                    return service
    return None


_PARSE_ERROR = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<line>\d+):\d+: (?P<reason>.*)")
_POLL_FAILURE = re.compile(r"\"?Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*?)\"?$")
_UNREADABLE = "failed to read text proto"
_ENDED = "is not healthy"


def explain(failures: Mapping[str, str], log: str, repository: Path) -> dict[str, str]:
    """Return the reasons why models failed to load, from the log if the index has none."""
    unread = unread_configs(log, repository)
    return {name: unread.get(name) or _explained(name, reason, log) for name, reason in failures.items()}


def _explained(name: str, reason: str, log: str) -> str:
    if reason == NOT_LOADED:
        return _last_error_about(name, log) or reason
    if _ENDED in reason and (words := " / ".join(_lines_of_processes(log))):
        return f"{reason.rstrip('.')}: {words}"
    return reason


def _last_error_about(name: str, log: str) -> str:
    """Return the last error in the log that names a model; an empty string if there is none."""
    named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
    lines = [match for match in map(LOG_LINE.match, log.splitlines()) if match and match["level"] in "EF"]
    texts = [match["text"].strip('"') for match in lines if named.search(match["text"])]
    return tidy_reason(texts[-1]) if texts else ""


def _lines_of_processes(log: str) -> list[str]:
    """Return the last lines of the models' processes, which are all lines that are not Triton's."""
    return last_errors("\n".join(line for line in log.splitlines() if not LOG_LINE.match(line)))


def unread_configs(log: str, repository: Path) -> dict[str, str]:
    """Return Triton's reason for each model whose config.pbtxt it refused before loading models.

    Returns:
        One line for each model, by name. A later reason for a model replaces an earlier one.
    """
    reasons: dict[str, str] = {}
    parse_error: re.Match[str] | None = None
    for line in log.splitlines():
        failure = _POLL_FAILURE.search(line)
        if failure is None:
            parse_error = _PARSE_ERROR.search(line) or parse_error
            continue
        path = repository / failure["model"] / CONFIG_NAME
        if _UNREADABLE in failure["reason"] and parse_error is not None:
            reasons[failure["model"]] = _located(path, int(parse_error["line"]), parse_error["reason"].strip())
        else:
            reasons[failure["model"]] = f"{path}: {failure['reason']}"
        parse_error = None
    return reasons


def _located(path: Path, line: int, reason: str) -> str:
    """Return the reason with the line of the file and its number, which Triton counts from 1."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    content = lines[line - 1].strip() if line <= len(lines) else ""
    quote = f" in `{content[:MAX_LINE]}`" if content else ""
    return f"{path}, line {line}: {reason}{quote}"
