"""Where in a worker's output each logical rank begins: noted by the worker, read by its agent.

What a worker has printed is what its agent took from the pipe and what still lies in it. So the
place where a rank begins is a number of bytes, exact however late the agent reads, and costs none.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import termios
import time
from array import array
from collections.abc import Iterator, Sequence

#: In the page of the pulse: a count that is odd while the agent reads, and the bytes it has read.
_TAKEN = struct.Struct("=3q")
_TAKEN_AT = 512
#: How many beginnings were noted, then the newest of them in a ring.
_COUNT = struct.Struct("=q")
_COUNT_AT = 640
#: Bytes printed on stdout and on stderr before it, and the rank; -1 outside the inner loop.
_NOTE = struct.Struct("=3q")
_RING_AT = 1024
#: Of what worker and agent share: the pulse in front, the ring behind it.
SHARED_BYTES = 4 * mmap.PAGESIZE
RING = (SHARED_BYTES - _RING_AT) // _NOTE.size
_TURN = struct.Struct("=q")
_COUNTS = struct.Struct("=2q")
_COUNTS_AT = _TAKEN_AT + _TURN.size
#: A read takes microseconds; one whose agent was put aside is waited for a little, once.
_TRIES = 16
_PATIENT_TRIES = 20
_PATIENCE_S = 50e-6
STREAMS = 2
_BUFFER_BYTES = 1 << 16

#: read(2) without giving the interpreter away, which os.read does.
_READ = ctypes.PyDLL(None, use_errno=True).read
_READ.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_READ.restype = ctypes.c_ssize_t

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
        #: The turn of a read that did not end while we waited for it.
        self._stuck = -1

    def begin(self, rank: int | None) -> None:
        """What is printed from now on is this rank's; None: nobody's."""
        if rank == self._rank:
            return
        self._rank = rank
        printed, is_sure = self._printed()
        if printed == self._newest:
            self._count -= 1  # nothing was printed meanwhile: the newest note may go
        place = _RING_AT + self._count % RING * _NOTE.size
        # No rank is better than a wrong one.
        _NOTE.pack_into(self._page, place, *printed, -1 if rank is None or not is_sure else rank)
        self._newest = printed
        self._count += 1
        _COUNT.pack_into(self._page, _COUNT_AT, self._count)

    def _printed(self) -> tuple[tuple[int, int], bool]:
        """Bytes printed on both streams, counted between two reads of the agent, or nearly so."""
        total = (0, 0)
        for number in range(_TRIES + _PATIENT_TRIES):
            before = _TAKEN.unpack_from(self._page, _TAKEN_AT)
            turn, out, err = before
            total = (out + self._lies_in(0), err + self._lies_in(1))
            if turn % 2 == 0 and _TAKEN.unpack_from(self._page, _TAKEN_AT) == before:
                return total, True
            if number >= _TRIES:
                if turn == self._stuck:
                    break  # it was stopped there, and was waited for before
                time.sleep(_PATIENCE_S)
        self._stuck = _TURN.unpack_from(self._page, _TAKEN_AT)[0]
        return total, False

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
        self._page = mmap.mmap(descriptor, SHARED_BYTES)
        self._turn = 0
        self._taken = [0] * STREAMS
        #: The note that holds for what is read next.
        self._first = [0] * STREAMS
        self._buffer = ctypes.create_string_buffer(_BUFFER_BYTES)

    def read(self, stream: int, pipe: int, most: int) -> bytes:
        """Take what lies in a pipe that does not block; raises BlockingIOError where nothing does.

        The interpreter is kept meanwhile: a thread that waits for it amid a read would keep the
        worker from counting.
        """
        buffer = self._buffer
        self._turn += 1
        _TURN.pack_into(self._page, _TAKEN_AT, self._turn)
        count = _READ(pipe, buffer, min(most, len(buffer)))
        error = ctypes.get_errno()
        if count > 0:
            self._taken[stream] += count
            _COUNTS.pack_into(self._page, _COUNTS_AT, *self._taken)
        self._turn += 1
        _TURN.pack_into(self._page, _TAKEN_AT, self._turn)
        if count < 0:
            raise OSError(error, os.strerror(error))
        return ctypes.string_at(buffer, count)

    def split(self, stream: int, data: bytes) -> Pieces:
        """The bytes that were read last, by the ranks that printed them."""
        end = self._taken[stream]
        begin = at = end - len(data)
        rank: int | None = None
        pieces: Pieces = []
        for number, start, of_rank in self._notes(stream):
            if start >= end:
                break
            if start > at:
                pieces.append((data[at - begin : start - begin], rank))
                at = start
            rank = of_rank
            # The next bytes are of this one too, until another begins.
            self._first[stream] = number
        if at < end:
            pieces.append((data[at - begin :], rank))
        return _joined(pieces)

    def _notes(self, stream: int) -> Iterator[tuple[int, int, int | None]]:
        """What is noted and still counts, oldest first; what is overwritten is left out."""
        first = max(self._first[stream], self._count() - RING)
        notes = [
            (number, _NOTE.unpack_from(self._page, _RING_AT + number % RING * _NOTE.size))
            for number in range(first, self._count())
        ]
        oldest = self._count() - RING
        for number, note in notes:
            if number >= oldest:
                yield number, note[stream], None if note[-1] < 0 else note[-1]

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
