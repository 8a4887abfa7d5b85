"""SAM3's tokenizer as a file for the session model, from the checkpoint's folder or from CLIP's vocabulary."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from ..._common.extras import find_package, missing
from ...errors import ExportError
from .checkpoints import checkpoint_folder

try:
    from transformers import CLIPTokenizer
except ImportError as error:
    raise missing("exporting and verifying SAM3 needs", "export", error) from error

VOCABULARY_FILE = "bpe_simple_vocab_16e6.txt.gz"
"""CLIP's vocabulary in the package open_clip_torch: one merge per line, the most frequent first."""
_FILES = ("tokenizer.json", "vocab.json")
_MERGES = 49152 - 256 - 2
"""CLIP has 49,408 tokens: 256 for bytes, 256 for bytes at the end of a word, the merges, and two special ones."""


def tokenizer_text(checkpoint: Path | None, length: int) -> str:
    """Return the content of the tokenizer's file, in the format of Hugging Face's tokenizers.

    Args:
        checkpoint: the checkpoint, whose tokenizer is used if its folder has one. SAM3's tokenizer is CLIP's.
    """
    tokenizer = open_tokenizer(checkpoint)
    backend: Any = tokenizer.backend_tokenizer
    backend.enable_padding(length=length, pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    text: str = backend.to_str()
    return text


def open_tokenizer(checkpoint: Path | None) -> Any:
    """Return transformers' CLIPTokenizer of a checkpoint, or with CLIP's vocabulary; see tokenizer_text()."""
    folder = None if checkpoint is None else checkpoint_folder(checkpoint)
    official: Any = CLIPTokenizer
    if folder is None or not any((folder / name).is_file() for name in _FILES):
        return official(**_vocabulary())
    try:
        return official.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers lists no errors
        raise ExportError(f"the tokenizer in {folder} is damaged: {error}") from error


def _vocabulary() -> dict[str, Any]:
    """Return vocabulary and merges of CLIP's tokenizer, as in clip.simple_tokenizer.SimpleTokenizer."""
    package = find_package("open_clip")
    if package is None or package.origin is None:
        raise ExportError(
            "there is no tokenizer: put tokenizer.json into the folder of the checkpoint, "
            "or run `pip install open_clip_torch`, which ships the same vocabulary"
        )
    content = (Path(package.origin).parent / VOCABULARY_FILE).read_bytes()
    lines = gzip.decompress(content).decode().split("\n")[1 : _MERGES + 1]
    merges = [tuple(line.split()) for line in lines]
    letters = _letters()
    words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {"vocab": {word: index for index, word in enumerate(words)}, "merges": merges}


def _letters() -> list[str]:
    """Return a letter for each byte, in the order of CLIP's vocabulary: printable bytes are their own letters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
