"""Where in a worker's output each logical rank begins: noted by the worker, read by its agent.

What a worker has printed is what its agent took from the pipe and what still lies in it. So the
place where a rank begins is a number of bytes, exact however late the agent reads, and costs none.
"""

import fcntl
import mmap
import struct
import termios
from array import array
from collections.abc import Sequence

#: In the page of the pulse: a count that is odd while the agent reads, and the bytes it has read.
_TAKEN = struct.Struct("=3q")
_TAKEN_AT = 512
#: How many beginnings were noted, then the newest of them in a ring.
_COUNT = struct.Struct("=q")
_COUNT_AT = 640
#: Bytes printed on stdout and on stderr before it, and the rank; -1 outside the inner loop.
_NOTE = struct.Struct("=3q")
_RING_AT = 1024
RING = (mmap.PAGESIZE - _RING_AT) // _NOTE.size
#: A reader that was stopped amid a read must not stop the training.
_TRIES = 16
STREAMS = 2

Pieces = list[tuple[bytes, int | None]]


class RankNotes:
    """The worker's side: one writer, its main thread."""

    def __init__(self, page: mmap.mmap, pipes: Sequence[int]) -> None:
        self._page = page
        self._pipes = tuple(pipes)
        self._lying = array("i", [0])
        self._count = 0
        self._rank: int | None = None
        self._newest = (-1, -1)

    def begin(self, rank: int | None) -> None:
        """What is printed from now on is this rank's; None: nobody's."""
        if rank == self._rank:
            return
        self._rank = rank
        printed = self._printed()
        if printed == self._newest:
            self._count -= 1  # nothing was printed meanwhile: the newest note may go
        place = _RING_AT + self._count % RING * _NOTE.size
        _NOTE.pack_into(self._page, place, *printed, -1 if rank is None else rank)
        self._newest = printed
        self._count += 1
        _COUNT.pack_into(self._page, _COUNT_AT, self._count)

    def _printed(self) -> tuple[int, int]:
        """Bytes printed on both streams, as they were between two reads of the agent."""
        total = (0, 0)
        for _ in range(_TRIES):
            before = _TAKEN.unpack_from(self._page, _TAKEN_AT)
            turn, out, err = before
            total = (out + self._lies_in(0), err + self._lies_in(1))
            if turn % 2 == 0 and _TAKEN.unpack_from(self._page, _TAKEN_AT) == before:
                break
        return total

    def _lies_in(self, stream: int) -> int:
        try:
            fcntl.ioctl(self._pipes[stream], termios.FIONREAD, self._lying)
        except OSError:
            return 0
        return self._lying[0]


class RankReader:
    """The agent's side: one reader of both streams."""

    def __init__(self, descriptor: int) -> None:
        #: A mapping of its own: the last output comes after the pulse was closed.
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._turn = 0
        self._taken = [0] * STREAMS

    def begin_read(self) -> None:
        """Say that bytes are about to leave a pipe."""
        self._turn += 1
        self._say()

    def end_read(self, stream: int, count: int) -> None:
        """Say how many have."""
        self._taken[stream] += count
        self._turn += 1
        self._say()

    def _say(self) -> None:
        _TAKEN.pack_into(self._page, _TAKEN_AT, self._turn, *self._taken)

    def split(self, stream: int, data: bytes) -> Pieces:
        """The bytes that were read last, by the ranks that printed them."""
        end = self._taken[stream]
        begin = at = end - len(data)
        rank: int | None = None
        pieces: Pieces = []
        for start, of_rank in self._notes(stream):
            if start >= end:
                break
            if start > at:
                pieces.append((data[at - begin : start - begin], rank))
                at = start
            rank = of_rank
        if at < end:
            pieces.append((data[at - begin :], rank))
        return _joined(pieces)

    def _notes(self, stream: int) -> list[tuple[int, int | None]]:
        """What is noted, oldest first; those that are overwritten meanwhile are left out."""
        count = self._count()
        ring = self._page[_RING_AT : _RING_AT + RING * _NOTE.size]
        oldest = self._count() - RING
        notes = [
            _NOTE.unpack_from(ring, number % RING * _NOTE.size)
            for number in range(max(0, oldest, count - RING), count)
        ]
        return [(note[stream], None if note[-1] < 0 else note[-1]) for note in notes]

    def _count(self) -> int:
        count: int = _COUNT.unpack_from(self._page, _COUNT_AT)[0]
        return count


def _joined(pieces: Pieces) -> Pieces:
    """Neighbours of one rank as one piece."""
    joined: Pieces = []
    for data, rank in pieces:
        if joined and joined[-1][1] == rank:
            joined[-1] = (joined[-1][0] + data, rank)
        else:
            joined.append((data, rank))
    return joined
