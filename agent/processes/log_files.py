"""The raw logs of a node's workers as they lie on its disk, and who printed what of them when.

<log_dir>/<node>/<slot>.<n>/stdout.log      every byte, nothing else
                            stdout.marks    where in it another rank or moment begins, 24 bytes each

Marks only help to read a log: what is torn or missing of them costs tags and times, never a line.
"""

import contextlib
import itertools
import os
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from easyscale.errors import UsageError
from easyscale.model import WorkerId
from easyscale.reports import Stream

#: Where it begins, when that was (milliseconds since 1970), the logical rank or -1.
_MARK = struct.Struct("=3q")
#: The same rank goes on: a new mark tells the time again after so long.
_MARK_EVERY_MS = 200
#: One answer brings at most so much of a log.
MOST_BYTES = 1 << 20
_MOST_MARKS = 20_000
_NAME = re.compile(r"([A-Za-z0-9_-]+)\.([0-9]{1,9})/(stdout|stderr)")


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """From this byte on it is of this rank, printed at that time or soon after."""

    offset: int
    #: None where nobody saw when.
    at_s: float | None
    rank: int | None


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of one worker process."""

    node: str
    slot: str
    #: Which process of that slot it was, counted from 1.
    spawn: int
    stream: Stream
    #: Below the node's folder, without its ending.
    name: str
    size: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a log, with the marks that tell of it: the last before it and those inside."""

    offset: int
    data: bytes
    marks: tuple[Mark, ...]

    @property
    def next(self) -> int:
        return self.offset + len(self.data)


def worker_folder(log_dir: Path, worker: WorkerId) -> Path:
    """Where the raw output of one process lies: `<log_dir>/<node>/<slot>.<n>`."""
    slot = worker.slot.replace(":", "-").replace("/", "-")
    return log_dir / worker.node / f"{slot}.{worker.spawn}"


def open_private(path: Path) -> int:
    """A file of this user's alone, to be appended to."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class MarkedLog:
    """A log that is written, and its marks; raises OSError where the log itself cannot be."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self._log = open_private(folder / f"{stream.value}.log")
        self._size = os.fstat(self._log).st_size
        self._marks: int | None = None
        self._marked_ms = -_MARK_EVERY_MS
        self._rank: int | None = None
        try:
            self._marks = open_private(folder / f"{stream.value}.marks")
            whole = os.fstat(self._marks).st_size // _MARK.size * _MARK.size
            os.ftruncate(self._marks, whole)  # the end of one that was torn
        except OSError:
            self._give_up_marks()

    def write(self, data: bytes, rank: int | None, *, wall_s: float) -> None:
        at_ms = int(wall_s * 1000)
        if rank != self._rank or at_ms - self._marked_ms >= _MARK_EVERY_MS:
            self._mark(at_ms, rank)
        view = memoryview(data)
        while view:
            written = os.write(self._log, view)
            self._size += written
            view = view[written:]

    def _mark(self, at_ms: int, rank: int | None) -> None:
        self._rank, self._marked_ms = rank, at_ms
        if self._marks is None:
            return
        mark = _MARK.pack(self._size, at_ms, -1 if rank is None else rank)
        try:
            if os.write(self._marks, mark) != len(mark):
                self._give_up_marks()
        except OSError:
            self._give_up_marks()

    def _give_up_marks(self) -> None:
        if self._marks is not None:
            os.close(self._marks)
            self._marks = None

    def close(self) -> None:
        self._give_up_marks()
        os.close(self._log)


def log_files(log_dir: Path, node: str) -> list[LogFile]:
    """What this node's workers have written here."""
    return list(_log_files(log_dir / node, node))


def nodes_with_logs(log_dir: Path) -> list[str]:
    """The nodes of which there are logs in a folder."""
    try:
        return sorted(each.name for each in log_dir.iterdir() if each.is_dir())
    except OSError:
        return []


def _log_files(folder: Path, node: str) -> Iterator[LogFile]:
    for path in sorted(folder.glob("*.*/*.log")):
        name = f"{path.parent.name}/{path.stem}"
        if (parts := _NAME.fullmatch(name)) is None:
            continue
        try:
            size = path.stat().st_size
        except OSError:
            continue  # removed since
        slot = parts[1].replace("-", ":", 1).replace("-", "/")
        yield LogFile(
            node=node, slot=slot, spawn=int(parts[2]), stream=Stream(parts[3]), name=name, size=size
        )


def read_piece(
    folder: Path, name: str, *, offset: int, since_s: float | None = None, most: int = MOST_BYTES
) -> Piece:
    """A log from some byte on, or from where it was at some time; `folder` is the node's."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} is no log of a worker")
    with (folder / f"{name}.log").open("rb") as file, _Marks(folder / f"{name}.marks") as marks:
        if since_s is not None:
            offset = max(offset, marks.offset_at(since_s))
        file.seek(offset)
        data = file.read(min(most, MOST_BYTES))
        told = marks.within(offset, offset + len(data))
    if len(told) > _MOST_MARKS:
        data, told = data[: told[_MOST_MARKS].offset - offset], told[:_MOST_MARKS]
    return Piece(offset=offset, data=data, marks=told)


class _Marks:
    """A file of marks, searched where it lies; one that is not there has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.count = 0

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self.count = os.fstat(self._file).st_size // _MARK.size
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def at(self, index: int) -> tuple[int, int, int]:
        return next(self._from(index, 1))

    def _from(self, index: int, block: int = 512) -> Iterator[tuple[int, int, int]]:
        assert self._file is not None, "a file without marks is not asked for them"
        while raw := os.pread(self._file, block * _MARK.size, index * _MARK.size):
            whole = raw[: len(raw) // _MARK.size * _MARK.size]
            yield from _MARK.iter_unpack(whole)
            index += block

    def _first(self, field: int, least: int) -> int:
        """The first mark of which a field is at least so much; both grow along the file."""
        return bisect_left(range(self.count), least, key=lambda index: self.at(index)[field])

    def offset_at(self, since_s: float) -> int:
        """The byte that was printed then or next."""
        # What the last mark tells of may still be going on.
        index = min(self._first(1, int(since_s * 1000)), self.count - 1)
        return max(0, self.at(index)[0]) if index >= 0 else 0

    def within(self, begin: int, end: int) -> tuple[Mark, ...]:
        """Those of the bytes from `begin` to `end`: the last before them, and those inside."""
        if not self.count:
            return ()
        first = max(0, self._first(0, begin + 1) - 1)
        marks = itertools.takewhile(lambda mark: mark[0] < max(end, begin + 1), self._from(first))
        told = itertools.islice(marks, _MOST_MARKS + 1)
        return tuple(
            Mark(offset=offset, at_s=at_ms / 1000, rank=rank if rank >= 0 else None)
            for offset, at_ms, rank in told
        )
