"""Entries of a file of prompts that cannot be used: each is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam.errors import PromptError
from triton_sam.tracks.prompts import read_prompts


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('{"frame": 0, "points": [[1, 1]]}', "entry 0 is not a prompt: it has no object_id"),
        ('{"object_id": 1, "points": [[1, 1]]}', "entry 0 is not a prompt: it has no frame"),
        ('{"object_id": 1, "frame": 0, "points": [1, 1]}', "entry 0 is not a prompt: object_id, frame and labels"),
        ('{"object_id": Infinity, "frame": 0, "points": [[1, 1]]}', "entry 0 is not a prompt: object_id"),
    ],
)
def test_a_wrong_entry_is_named_in_plain_words(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(f"[{entry}]")
    with pytest.raises(PromptError, match=message):
        read_prompts(path)
