"""Find out from Triton's log why it could not read a config.pbtxt.

Triton 2.51 leaves such a model out of its repository index. It logs the reason of its parser in one line, and the model
in the next one.
"""

from __future__ import annotations

import re
from pathlib import Path

from triton_sam._common.text import MAX_LINE
from triton_sam.repository.names import CONFIG_NAME

_PARSE_ERROR = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<line>\d+):\d+: (?P<reason>.*)")
_POLL_FAILURE = re.compile(r"\"?Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*?)\"?$")
_UNREADABLE = "failed to read text proto"


def unread_configs(log: str, repository: Path) -> dict[str, str]:
    """Return Triton's reason for each model whose config.pbtxt it refused before it loaded anything.

    Args:
        log: Triton's output since its start.
        repository: the folder with the models, whose files the reasons name and quote.

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
    """Return the reason with its place and the line of the file, both as Triton counts them: from 1 on."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    content = lines[line - 1].strip() if line <= len(lines) else ""
    quote = f" in `{content[:MAX_LINE]}`" if content else ""
    return f"{path}, line {line}: {reason}{quote}"
