"""Find the reason in Triton's log why a model failed to load.

Triton 2.51 leaves a model out of its repository index if it cannot read its config.pbtxt, or if the models of an
ensemble do not match. It logs its parser's reason in one line and the model in the next one; all other reasons in one
line. If the process of a model ended, the index says so, and the log has its last lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from triton_sam._common.text import MAX_LINE
from triton_sam.local_server.probe import LOG_LINE, NOT_LOADED, last_errors, tidy_reason
from triton_sam.repository.names import CONFIG_NAME

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
