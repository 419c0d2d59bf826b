"""One thread that reads all pipes of a round's workers, in order and whole.

Where the watcher is slow it stops reading, the pipe fills and the worker waits in its `print`, so
memory stays bounded by one chunk a pipe.
"""

import contextlib
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable

CHUNK_BYTES = 65_536
#: More than a pipe holds: what was in it when its worker ended, not what others still add.
_CUT_CHUNKS = 16

#: Takes what was read; no bytes are the end of the pipe.
Sink = Callable[[bytes], None]


class PipeReader:
    """Reads pipes until they end or are cut; every sink is called from the reader's thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._orders: deque[Callable[[], bool]] = deque()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="easyscale-pipes", daemon=True)
        self._thread.start()

    def add(self, pipe: int, sink: Sink) -> None:
        """Read it from now on; the reader closes it."""
        os.set_blocking(pipe, False)
        self._order(lambda: self._begin(pipe, sink))

    def cut(self, pipe: int) -> None:
        """Read what lies in the pipe and end there, whoever still holds its other end."""
        self._order(lambda: self._cut(pipe))

    def close(self, *, deadline_s: float) -> None:
        """End the thread; a sink that does not return keeps it, as a daemon."""
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
                    self._read(key.fd, key.data)
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

    def _begin(self, pipe: int, sink: Sink) -> bool:
        self._selector.register(pipe, selectors.EVENT_READ, sink)
        return False

    def _cut(self, pipe: int) -> bool:
        key = self._selector.get_map().get(pipe)
        if key is not None:
            for _ in range(_CUT_CHUNKS):
                if not self._read(pipe, key.data):
                    break
            if pipe in self._selector.get_map():
                self._end(pipe, key.data)
        return False

    def _read(self, pipe: int, sink: Sink) -> bool:
        """Deliver one chunk; False when there is none now or will be none any more."""
        try:
            data = os.read(pipe, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end(pipe, sink)
            return False
        sink(data)
        return True

    def _end(self, pipe: int, sink: Sink) -> None:
        self._selector.unregister(pipe)
        os.close(pipe)
        sink(b"")
