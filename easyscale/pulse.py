"""A page of memory that a worker shares with its agent: where it is, without a message.

The agent reads it to tell a slow worker from a hung one, and where in its output a rank begins
(printed.py). One writer; a count that is odd while it writes tells a reader what is torn.
"""

import mmap
import os
import struct
import time
from enum import IntEnum

import msgspec

from easyscale.printed import SHARED_BYTES, RankNotes

_SIZE = SHARED_BYTES
_BEAT = struct.Struct("7q")
#: Words that are also written alone: the last of a beat, and behind it a count, odd amid a beat.
_SINCE = 5
_POLLED = 6
_TURN = 7
#: A beat is written in a microsecond; a writer that was put aside amid one is not waited for.
_TRIES = 8


class Phase(IntEnum):
    """What the worker's main thread is doing."""

    STARTING = 0
    WAITING = 1
    FORMING = 2
    MICRO_STEP = 3
    EXCHANGE = 4
    OUTER_BODY = 5
    EVALUATION = 6
    BROKEN = 7
    FINISHED = 8
    SNAPSHOT = 9


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a pulse page."""

    phase: Phase
    position: int
    step: int
    #: The logical rank whose micro-step runs, or None outside the inner loop.
    rank: int | None
    micro_steps: int
    #: CLOCK_MONOTONIC of this host when the worker last changed the page, seconds.
    since_s: float
    #: The same clock when a wait that polls its exits last did so; None outside such a wait.
    polled_s: float | None = None
    #: Not on the page: a signal or a debugger holds the process, as the agent asked the kernel.
    is_stopped: bool = False


class Pulse:
    """Either end of the page; `create` in the agent, `attach` in the worker."""

    def __init__(self, page: mmap.mmap, notes: RankNotes | None = None) -> None:
        self._page = page
        #: For single words: one store each, which no reader sees half done.
        self._words = memoryview(page).cast("q")
        self._notes = notes
        self._micro_steps = 0
        self._turn = self._words[_TURN] | 1
        #: What the last whole reading said: a page that is torn has not moved.
        self._newest = Beat(
            phase=Phase.STARTING, position=0, step=0, rank=None, micro_steps=0,
            since_s=time.monotonic(),
        )  # fmt: skip

    @classmethod
    def allocate(cls) -> int:
        """A file descriptor of an anonymous page, to be handed to the worker and mapped here."""
        descriptor = os.memfd_create("easyscale-pulse", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        page = cls.attach(descriptor)
        page.beat(Phase.STARTING, position=0, step=0)  # a page is never read before it says so
        page.close()
        return descriptor

    @classmethod
    def attach(cls, descriptor: int, *, pipes: tuple[int, int] | None = None) -> "Pulse":
        """Map the page; `pipes` are the ends of stdout and stderr that a worker writes to."""
        page = mmap.mmap(descriptor, _SIZE)
        return cls(page, None if pipes is None else RankNotes(page, pipes))

    def beat(self, phase: Phase, *, position: int, step: int, rank: int | None = None) -> None:
        """Say where the main thread is now."""
        if self._notes is not None:
            self._notes.begin(rank)
        self._micro_steps += phase is Phase.MICRO_STEP
        now_ns = time.monotonic_ns()
        rank_word = -1 if rank is None else rank
        self._turn = turn = self._turn + 2
        self._words[_TURN] = turn
        _BEAT.pack_into(
            self._page, 0, phase, position, step, rank_word, self._micro_steps, now_ns, 0
        )
        self._words[_TURN] = turn + 1

    def poll(self) -> None:
        """Say that the main thread waits and is awake; a wait does so all the time it lasts."""
        self._words[_POLLED] = time.monotonic_ns()

    def end_wait(self) -> None:
        """Say that the main thread is in no such wait any more, which it has just done."""
        self._words[_SINCE] = time.monotonic_ns()
        self._words[_POLLED] = 0

    def read(self) -> Beat:
        """The newest beat; the one before it while the page is amid a change."""
        words = self._words
        for _ in range(_TRIES):
            turn = words[_TURN]
            beat = _BEAT.unpack_from(self._page, 0)
            if turn % 2 == 0 and words[_TURN] == turn:
                phase, position, step, rank, micro_steps, since_ns, polled_ns = beat
                self._newest = Beat(
                    phase=Phase(phase),
                    position=position,
                    step=step,
                    rank=None if rank < 0 else rank,
                    micro_steps=micro_steps,
                    since_s=since_ns / 1e9,
                    polled_s=polled_ns / 1e9 if polled_ns else None,
                )
                break
        return self._newest

    def close(self) -> None:
        self._words.release()
        self._page.close()
