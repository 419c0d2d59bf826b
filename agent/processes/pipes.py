"""One thread that reads all pipes of an agent's workers, in order and whole.

Where who takes the bytes is slow it stops reading, the pipe fills and the worker waits in its
`print`, so memory stays bounded by one chunk a pipe.
"""

import contextlib
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

CHUNK_BYTES = 65_536
#: More than a pipe holds: what was in it when its worker ended, not what others still add.
_CUT_CHUNKS = 16


@dataclass(slots=True, eq=False)
class PipeReading:
    """A pipe that is read. Both are called from the reader's thread."""

    pipe: int
    #: Reads a chunk and passes it on; False at the end of the pipe; may raise BlockingIOError.
    take: Callable[[int], bool]
    #: Called once, when the pipe has ended or was cut, and is closed.
    ended: Callable[[], None]
    is_over: bool = False


class PipeReader:
    """Reads pipes until they end or are cut."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._waker = socket.socketpair()
        # A wake-up that finds no room is one of many that wait there already.
        self._waker.setblocking(False)
        self._orders: deque[Callable[[], bool]] = deque()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="easyscale-pipes", daemon=True)
        self._thread.start()

    def add(
        self, pipe: int, *, take: Callable[[int], bool], ended: Callable[[], None]
    ) -> PipeReading:
        """Read it from now on; the reader closes it."""
        os.set_blocking(pipe, False)
        reading = PipeReading(pipe, take, ended)
        self._order(lambda: self._begin(reading))
        return reading

    def cut(self, reading: PipeReading) -> None:
        """Read what lies in the pipe and end there, whoever still holds its other end."""
        self._order(lambda: self._cut(reading))

    def between(self, act: Callable[[], None]) -> None:
        """Do this on the thread, before it reads on."""

        def order() -> bool:
            act()
            return False

        self._order(order)

    def close(self, *, deadline_s: float) -> None:
        """End the thread; who does not take what was read keeps it, as a daemon."""
        self._order(lambda: True)
        self._thread.join(deadline_s)

    def _order(self, order: Callable[[], bool]) -> None:
        self._orders.append(order)
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def _run(self) -> None:
        while not self._obey():
            for key, _ in self._selector.select():
                if key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                else:
                    self._read(key.data)
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._wakeup:
                os.close(key.fd)
        self._selector.close()
        self._wakeup.close()
        self._waker.close()

    def _obey(self) -> bool:
        while self._orders:
            if self._orders.popleft()():
                return True
        return False

    def _begin(self, reading: PipeReading) -> bool:
        self._selector.register(reading.pipe, selectors.EVENT_READ, reading)
        return False

    def _cut(self, reading: PipeReading) -> bool:
        for _ in range(_CUT_CHUNKS):
            if reading.is_over or not self._read(reading):
                break
        self._end(reading)
        return False

    def _read(self, reading: PipeReading) -> bool:
        """Deliver one chunk; False when there is none now or will be none any more."""
        try:
            if reading.take(reading.pipe):
                return True
        except BlockingIOError:
            return False
        self._end(reading)
        return False

    def _end(self, reading: PipeReading) -> None:
        if reading.is_over:
            return
        reading.is_over = True
        self._selector.unregister(reading.pipe)
        os.close(reading.pipe)
        reading.ended()
