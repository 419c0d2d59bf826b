"""Carries what workers print to their raw log files and to whoever watches, in order and whole.

One thread reads all pipes. Where the watcher is slow it stops reading, the pipe fills and the
worker waits in its `print`, so memory stays bounded by one chunk a stream.
"""

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from easyscale.agent.processes.log_files import MarkedLog
from easyscale.printed import RankReader
from easyscale.reports import Source, Stream

log = logging.getLogger(__name__)

CHUNK_BYTES = 65536
#: More than a pipe holds: what was in it when its worker ended, not what others still add.
_CUT_CHUNKS = 16
#: Enough for the last line of a stream, whatever was printed before it.
_TAIL_BYTES = 4096

Output = Callable[[Source, Stream, bytes, int | None], None]


@dataclass(slots=True, kw_only=True)
class Capture:
    """The two pipes of one worker and where their bytes go; made before the worker is."""

    source: Source
    #: Knows which rank printed what; None where nobody notes it.
    ranks: RankReader | None
    #: Called once from the pump's thread, after the last byte was delivered.
    ended: Callable[[], None]
    pipes: dict[Stream, int] = field(default_factory=dict)
    _logs: dict[Stream, MarkedLog] = field(default_factory=dict)
    _tail: bytes = b""

    def open_files(self, folder: Path) -> None:
        for stream in Stream:
            self._logs[stream] = MarkedLog(folder, stream)

    def attach(self, stream: Stream, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self.pipes[stream] = pipe

    def read(self, stream: Stream, pipe: int) -> list[tuple[bytes, int | None]]:
        """Take what lies in a pipe, by the ranks that printed it; raises BlockingIOError."""
        if self.ranks is None:
            data = os.read(pipe, CHUNK_BYTES)
            return [(data, None)] if data else []
        number = list(Stream).index(stream)
        data = self.ranks.read(number, pipe, CHUNK_BYTES)
        return self.ranks.split(number, data)

    @property
    def last_words(self) -> str:
        """Its last line on stderr that says anything."""
        lines = self._tail.decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def is_over(self) -> bool:
        return not self.pipes

    def write(self, stream: Stream, data: bytes, rank: int | None = None) -> None:
        """Keep the bytes; a full disk costs the log, never the training."""
        if stream is Stream.STDERR:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if (kept := self._logs.get(stream)) is None:
            return
        try:
            kept.write(data, rank, wall_s=time.time())
        except OSError as error:
            self._logs.pop(stream).close()
            log.warning("log of %s ends here: %s", self.source, error.strerror)

    def close_stream(self, stream: Stream) -> None:
        if (pipe := self.pipes.pop(stream, None)) is not None:
            os.close(pipe)
        if (kept := self._logs.pop(stream, None)) is not None:
            kept.close()

    def close(self) -> None:
        for stream in Stream:
            self.close_stream(stream)


class Pump:
    """The thread that reads all captures until they end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._waker = socket.socketpair()
        self._orders: deque[Callable[[], bool]] = deque()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="easyscale-output", daemon=True)
        self._thread.start()

    def add(self, capture: Capture) -> None:
        self._order(lambda: self._begin(capture))

    def cut(self, capture: Capture) -> None:
        """Read what lies in the pipes and end there, whoever still holds their other ends."""
        self._order(lambda: self._cut(capture))

    def close(self, *, deadline_s: float) -> None:
        """End the thread; a watcher that does not return keeps it, as a daemon."""
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
                    continue
                capture, stream = key.data
                self._read(capture, stream, key.fd)
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._wakeup:
                key.data[0].close()
        self._selector.close()
        self._wakeup.close()
        self._waker.close()

    def _obey(self) -> bool:
        while self._orders:
            if self._orders.popleft()():
                return True
        return False

    def _begin(self, capture: Capture) -> bool:
        for stream, pipe in capture.pipes.items():
            self._selector.register(pipe, selectors.EVENT_READ, (capture, stream))
        return False

    def _cut(self, capture: Capture) -> bool:
        for stream, pipe in list(capture.pipes.items()):
            for _ in range(_CUT_CHUNKS):
                if not self._read(capture, stream, pipe):
                    break
            self._end(capture, stream)
        return False

    def _read(self, capture: Capture, stream: Stream, pipe: int) -> bool:
        """Deliver one chunk; False when there is none now or will be none any more."""
        try:
            pieces = capture.read(stream, pipe)
        except BlockingIOError:
            return False
        if not pieces:
            self._end(capture, stream)
            return False
        for data, rank in pieces:
            capture.write(stream, data, rank)
            self._output(capture.source, stream, data, rank)
        return True

    def _end(self, capture: Capture, stream: Stream) -> None:
        pipe = capture.pipes.get(stream)
        if pipe is None:
            return
        self._selector.unregister(pipe)
        capture.close_stream(stream)
        if capture.is_over:
            capture.ended()
