"""The fine-tunes of micro-sam. Reference: micro_sam.util.models(), which states the URLs and hashes."""

from __future__ import annotations

from collections.abc import Mapping

from .tables import Checkpoint

LIGHT_MICROSCOPY = "cells and nuclei in light microscopy"
ELECTRON_MICROSCOPY = "mitochondria, nuclei and other organelles in electron microscopy"

_STORE = "https://uk1s3.embassy.ebi.ac.uk/public-datasets/bioimage.io"
_CLOUD = "https://owncloud.gwdg.de/index.php/s"


def micro_sam(family: str, purpose: str, files: Mapping[str, tuple[str, str]]) -> tuple[Checkpoint, ...]:
    """Return the rows of one kind of models.

    Args:
        family: name of the family.
        purpose: see Checkpoint.
        files: for each name, which begins with the size, the XXH128 of the file, and its folder in the store of
            bioimage.io ("diplomatic-bug/1.2") or its key in the authors' cloud.
    """
    return tuple(
        Checkpoint(
            family,
            name[:5],
            f"{_STORE}/{place}/files/{name[:5]}.pt" if "/" in place else f"{_CLOUD}/{place}/download",
            None,
            "",
            name,
            f"xxh128:{digest}",
            licence="CC-BY-4.0" if "/" in place else "see its page",
            purpose=purpose,
        )
        for name, (digest, place) in files.items()
    )
