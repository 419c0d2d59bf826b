"""Whether a file still is what it was: its size, its blake2b, and where it differs.

The writer of a snapshot and its readers share this; it needs neither torch nor the network.
"""

import hashlib
from pathlib import Path

from easyscale.errors import SnapshotDamaged
from easyscale.model import FileDigest

BLOCK_BYTES = 4 * 1024 * 1024
_FILE_DIGEST_BYTES = 32
_BLOCK_DIGEST_BYTES = 16


class Digester:
    """Takes a file's bytes in any pieces while they are written."""

    def __init__(self) -> None:
        self._whole = hashlib.blake2b(digest_size=_FILE_DIGEST_BYTES)
        self._block = _new_block()
        self._blocks: list[str] = []
        self._bytes = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._whole.update(view)
        while view:
            room = BLOCK_BYTES - self._bytes % BLOCK_BYTES
            piece, view = view[:room], view[room:]
            self._block.update(piece)
            self._bytes += len(piece)
            if self._bytes % BLOCK_BYTES == 0:
                self._end_block()

    def finish(self) -> FileDigest:
        """What was taken so far; an unfinished last block counts as one."""
        blocks = list(self._blocks)
        if self._bytes % BLOCK_BYTES:
            blocks.append(self._block.hexdigest())
        return FileDigest(bytes=self._bytes, blake2b=self._whole.hexdigest(), blocks=tuple(blocks))

    def _end_block(self) -> None:
        self._blocks.append(self._block.hexdigest())
        self._block = _new_block()


def digest_file(path: Path) -> FileDigest:
    digester = Digester()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digester.update(block)
    return digester.finish()


def check_file(path: Path, promised: FileDigest) -> None:
    """Read the file once; raises SnapshotDamaged that names it and what differs."""
    try:
        size = path.stat().st_size
        if size != promised.bytes:
            raise SnapshotDamaged(f"{path.name} has {size:,} bytes of {promised.bytes:,}")
        found = digest_file(path)
    except OSError as error:
        raise SnapshotDamaged(f"{path.name}: {error.strerror}") from error
    if found.blake2b != promised.blake2b:
        where = _first_difference(found, promised)
        raise SnapshotDamaged(f"{path.name}: blake2b{where} differs")


def _first_difference(found: FileDigest, promised: FileDigest) -> str:
    for index, (one, other) in enumerate(zip(found.blocks, promised.blocks, strict=False)):
        if one != other:
            start = index * BLOCK_BYTES
            return f" of bytes {start:,} to {min(start + BLOCK_BYTES, found.bytes):,}"
    return ""


def _new_block() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=_BLOCK_DIGEST_BYTES)
