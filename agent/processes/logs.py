"""Carries what workers print to their raw log files and to whoever watches, in order and whole."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from easyscale.agent.processes.log_files import MarkedLog
from easyscale.agent.processes.pipes import CHUNK_BYTES, PipeReader, PipeReading
from easyscale.printed import RankReader
from easyscale.reports import Source, Stream

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
    #: Called where a stream's log ends before its stream does, with the reason.
    lost: Callable[[Stream, str], None]
    #: Those that nobody reads yet.
    pipes: dict[Stream, int] = field(default_factory=dict)
    readings: dict[Stream, PipeReading] = field(default_factory=dict)
    _open: set[Stream] = field(default_factory=set)
    _logs: dict[Stream, MarkedLog] = field(default_factory=dict)
    _tail: bytes = b""

    def open_files(self, folder: Path) -> None:
        for stream in Stream:
            self._logs[stream] = MarkedLog(folder, stream)

    def attach(self, stream: Stream, pipe: int) -> None:
        self.pipes[stream] = pipe
        self._open.add(stream)

    def hand_over(self) -> dict[Stream, int]:
        """Give the pipes to who reads and closes them."""
        pipes, self.pipes = self.pipes, {}
        return pipes

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
        return not self._open

    def write(self, stream: Stream, data: bytes, rank: int | None = None) -> None:
        """Take what the worker has said."""
        if stream is Stream.STDERR:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self.keep(stream, data, rank)

    def keep(self, stream: Stream, data: bytes, rank: int | None = None) -> None:
        """Add to the log, whoever says it; a full disk costs the log, never the training."""
        if (kept := self._logs.get(stream)) is None:
            return
        try:
            kept.write(data, rank, wall_s=time.time())
        except OSError as error:
            self._logs.pop(stream).close()
            self.lost(stream, error.strerror or str(error))

    def end_stream(self, stream: Stream) -> None:
        """Nothing more comes of it."""
        self._open.discard(stream)
        self._close_log(stream)
        if self.is_over:
            self.ended()

    def _close_log(self, stream: Stream) -> None:
        if (kept := self._logs.pop(stream, None)) is not None:
            kept.close()

    def close(self) -> None:
        for pipe in self.hand_over().values():
            os.close(pipe)
        for stream in Stream:
            self._close_log(stream)


class Pump:
    """Carries the output of captures until they end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._reader = PipeReader()

    def add(self, capture: Capture) -> None:
        for stream, pipe in capture.hand_over().items():
            capture.readings[stream] = self._reader.add(
                pipe,
                take=partial(self._take, capture, stream),
                ended=partial(capture.end_stream, stream),
            )

    def cut(self, capture: Capture) -> None:
        """Read what lies in the pipes and end there, whoever still holds their other ends."""
        for reading in tuple(capture.readings.values()):
            self._reader.cut(reading)

    def note(self, capture: Capture, text: str) -> None:
        """Write the agent's word of a worker among what that one says itself."""
        data = text.encode()

        def act() -> None:
            capture.keep(Stream.STDERR, data)
            self._output(capture.source, Stream.STDERR, data, None)

        self._reader.between(act)

    def close(self, *, deadline_s: float) -> None:
        self._reader.close(deadline_s=deadline_s)

    def _take(self, capture: Capture, stream: Stream, pipe: int) -> bool:
        pieces = capture.read(stream, pipe)
        for data, rank in pieces:
            capture.write(stream, data, rank)
            self._output(capture.source, stream, data, rank)
        return bool(pieces)
