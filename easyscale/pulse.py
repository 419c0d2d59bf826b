"""A page of memory that a worker shares with its agent: where it is, without a message.

The agent reads it to tell a slow worker from a hung one, and where in its output a rank begins
(printed.py). One writer, one reader, aligned 8-byte words; a torn read shows for one tick only.
"""

import mmap
import os
import struct
import time
from enum import IntEnum

import msgspec

from easyscale.printed import SHARED_BYTES, RankNotes

_WORDS = struct.Struct("=8q")
_WORD = struct.Struct("=q")
#: Where the seventh word lies.
_POLLED = 6 * _WORD.size
_SIZE = SHARED_BYTES


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


class Pulse:
    """Either end of the page; `create` in the agent, `attach` in the worker."""

    def __init__(self, page: mmap.mmap, notes: RankNotes | None = None) -> None:
        self._page = page
        self._notes = notes
        self._micro_steps = 0

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
        _WORDS.pack_into(
            self._page, 0, phase, position, step, rank_word, self._micro_steps, now_ns, 0, 0
        )

    def poll(self) -> None:
        """Say that the main thread waits and is awake; a wait does so all the time it lasts."""
        _WORD.pack_into(self._page, _POLLED, time.monotonic_ns())

    def end_wait(self) -> None:
        """Say that the main thread is in no such wait any more."""
        _WORD.pack_into(self._page, _POLLED, 0)

    def read(self) -> Beat:
        words = _WORDS.unpack_from(self._page, 0)
        phase, position, step, rank, micro_steps, since_ns, polled_ns, _ = words
        return Beat(
            phase=Phase(phase),
            position=position,
            step=step,
            rank=None if rank < 0 else rank,
            micro_steps=micro_steps,
            since_s=since_ns / 1e9,
            polled_s=polled_ns / 1e9 if polled_ns else None,
        )

    def close(self) -> None:
        self._page.close()
