"""The files in a Qt resource archive (.rcc), in which some packages carry their images.

Format: Qt's tools/rcc/rcc.cpp. All numbers are big-endian. A header names the offsets of a tree of nodes, of the files'
contents and of the names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..errors import ConfigurationError

_MAGIC = b"qres"
_HEADER = struct.Struct(">4s4I")  # magic, version, offsets of the tree, of the contents and of the names
_NODE = struct.Struct(">IHII")  # offset of the name, flags, two numbers
_NODE_BYTES = {1: 14, 2: 22, 3: 22}  # by version: from 2 on, a time follows
_COMPRESSED, _FOLDER = 1 | 4, 2  # flags; bit 0 is zlib, bit 2 is Zstandard
_DEEPEST = 32  # folders inside each other; more would be a circle


def stored_files(name: str, archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the files that are stored without compression, as images are.

    Args:
        name: name of the archive, for errors.
        archive: its bytes.

    Raises:
        ConfigurationError: the archive is damaged, or of an unknown version.
    """
    try:
        magic, version, *offsets = _HEADER.unpack_from(archive)
        if magic != _MAGIC or version not in _NODE_BYTES:
            raise ConfigurationError(f"{name} is not a Qt resource archive of a known version")
        yield from _Reader(archive, _NODE_BYTES[version], *offsets).files(0, "", 0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the Qt resource archive {name} is damaged: {error}") from error


class _Reader:
    """Reads an archive; the arguments are its bytes, the size of a node, and the offsets of its header."""

    def __init__(self, archive: bytes, node_bytes: int, tree: int, contents: int, names: int) -> None:
        self._archive, self._node_bytes = archive, node_bytes
        self._tree, self._contents, self._names = tree, contents, names

    def files(self, index: int, folder: str, depth: int) -> Iterator[tuple[str, bytes]]:
        """Yield the files below a node; node 0 is the root, whose name does not count."""
        if depth > _DEEPEST:
            raise IndexError("folders form a circle")
        name, flags, first, second = _NODE.unpack_from(self._archive, self._tree + index * self._node_bytes)
        path = f"{folder}/{self._name(name)}" if index else ""
        if flags & _FOLDER:  # `first` nodes, from number `second` on
            for child in range(second, second + first):
                yield from self.files(child, path, depth + 1)
        elif not flags & _COMPRESSED:
            yield path.lstrip("/"), self._content(second)

    def _name(self, offset: int) -> str:
        start = self._names + offset  # length in UTF-16 units, a hash of four bytes, the name
        (units,) = struct.unpack_from(">H", self._archive, start)
        return self._archive[start + 6 : start + 6 + 2 * units].decode("utf-16-be")

    def _content(self, offset: int) -> bytes:
        start = self._contents + offset
        (length,) = struct.unpack_from(">I", self._archive, start)
        content = self._archive[start + 4 : start + 4 + length]
        if len(content) < length:
            raise IndexError("a file is cut off")
        return content
