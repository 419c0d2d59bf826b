"""What `easyscale logs` can read of a plain job's workers: the newest of what each has printed.

A stream that goes to a file is read there, whole. Of one that is only shown the newest bytes stay
here, so that a launch that was asked for no files leaves none.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from easyscale.agent.processes.log_files import MOST_BYTES, LogFile, Mark, Piece
from easyscale.errors import UsageError
from easyscale.reports import Stream

#: Of one stream, in memory; less where a node has so many workers that all would be too much.
KEPT_BYTES = 1 << 18
_ALL_BYTES = 1 << 24
_LEAST_BYTES = 1 << 14
#: A failure's words are those of the round before.
_ROUNDS = 3
_MARK_EVERY_S = 0.2
_MOST_MARKS = 4096


class Who(NamedTuple):
    """One worker of one round."""

    round: int
    local_rank: int
    rank: int
    slot: str
    #: How many there are on this node.
    workers: int


@dataclass(slots=True)
class KeptStream:
    """One stream of one worker; written by one thread, read by any."""

    rank: int
    #: The file that holds all of it, if there is one.
    path: Path | None = None
    most_bytes: int = KEPT_BYTES
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _chunks: deque[bytes] = field(default_factory=deque)
    #: Of the bytes that are kept, and of the end of all that was printed.
    _begin: int = 0
    _end: int = 0
    _marks: list[Mark] = field(default_factory=list)

    def add(self, data: bytes, *, wall_s: float) -> None:
        with self._lock:
            last = self._marks[-1].at_s if self._marks else None
            if last is None or wall_s - last >= _MARK_EVERY_S:
                self._marks.append(Mark(offset=self._end, at_s=wall_s, rank=self.rank))
            self._end += len(data)
            if self.path is None:
                self._chunks.append(data)
                while self._end - self._begin > self.most_bytes + len(self._chunks[0]):
                    self._begin += len(self._chunks.popleft())
            self._thin()

    def _thin(self) -> None:
        if len(self._marks) > _MOST_MARKS:
            self._marks = self._marks[::2]

    @property
    def size(self) -> int:
        if self.path is None:
            return self._end
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def piece(self, *, offset: int, since_s: float | None) -> Piece:
        """From some byte on, or from where it was at some time, as far as it is kept."""
        with self._lock:
            if since_s is not None:
                offset = max(offset, self._offset_at(since_s))
            offset = max(offset, self._begin)
            data = self._read(offset)
            return Piece(offset=offset, data=data, marks=self._within(offset, offset + len(data)))

    def _read(self, offset: int) -> bytes:
        if self.path is None:
            return b"".join(self._chunks)[offset - self._begin :][:MOST_BYTES]
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(MOST_BYTES)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}") from error

    def _offset_at(self, since_s: float) -> int:
        """The byte that was printed then or next."""
        # What the last mark tells of may still be going on.
        index = bisect_left(self._marks, since_s, key=lambda mark: mark.at_s or 0.0)
        index = min(index, len(self._marks) - 1)
        return self._marks[index].offset if index >= 0 else 0

    def _within(self, begin: int, end: int) -> tuple[Mark, ...]:
        """Those of the bytes from `begin` to `end`: the last before them, and those inside."""
        if not self._marks:  # nobody saw when it was printed, but whose it is
            return (Mark(offset=0, at_s=None, rank=self.rank),)
        first = max(0, bisect_right(self._marks, begin, key=lambda mark: mark.offset) - 1)
        return tuple(mark for mark in self._marks[first:] if mark.offset < max(end, begin + 1))


class KeptLogs:
    """The streams of a node's workers, of the newest rounds."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[Who, Stream, KeptStream]] = {}

    def open(self, who: Who, files: Mapping[Stream, Path]) -> dict[Stream, KeptStream]:
        """Keep what a worker is about to print; `files` hold all of some streams."""
        share = _ALL_BYTES // (len(Stream) * _ROUNDS * who.workers)
        most = max(_LEAST_BYTES, min(KEPT_BYTES, share))
        made = {stream: KeptStream(who.rank, files.get(stream), most) for stream in Stream}
        with self._lock:
            self._streams = {
                name: kept
                for name, kept in self._streams.items()
                if kept[0].round > who.round - _ROUNDS
            }
            for stream, kept in made.items():
                self._streams[f"{who.round}/{who.local_rank}/{stream}"] = (who, stream, kept)
        return made

    def files(self) -> list[LogFile]:
        with self._lock:
            streams = sorted(self._streams.items())
        return [
            LogFile(
                node=self._node,
                slot=who.slot,
                spawn=who.round,
                stream=stream,
                name=name,
                size=kept.size,
            )
            for name, (who, stream, kept) in streams
        ]

    def piece(self, node: str, name: str, *, offset: int, since_s: float | None) -> Piece:
        """A part of one; raises UsageError where there is none of that name."""
        with self._lock:
            found = self._streams.get(name)
        if found is None or node != self._node:
            raise UsageError(f"no log {name!r} of node {node!r} is here")
        return found[2].piece(offset=offset, since_s=since_s)
