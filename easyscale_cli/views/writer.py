"""The audience of a launch: a bounded queue before one thread that owns both streams.

The agent's loop never waits for a screen. A reader that stops reading costs lines on the screen,
never memory or training; the files hold everything.
"""

import errno
import os
import select
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, TextIO

from easyscale.reports import Fact, FirstCause, JobEvent, Progress, Source, Stream, Summary
from easyscale_cli.views.glyphs import choose_glyphs
from easyscale_cli.views.stage import Look, Outlet, Stage, StageSettings
from easyscale_cli.views.style import ColorChoice, decide_palette

#: How much worker output may wait to be shown, and how many changes.
_OUTPUT_LIMIT_BYTES: Final = 4 << 20
_CHANGES_LIMIT: Final = 10_000
#: How long `close` waits for a reader that takes nothing.
_CLOSE_S: Final = 2.0
_NARROWEST: Final = 40


def look_of(
    stream: TextIO, *, color: ColorChoice, ascii_asked: bool, environ: Mapping[str, str]
) -> Look:
    """Decide once how a stream is written."""
    is_terminal = stream.isatty()
    can_redraw = is_terminal and environ.get("TERM") != "dumb"
    return Look(
        is_terminal=can_redraw,
        palette=decide_palette(color, environ=environ, is_terminal=is_terminal),
        glyphs=choose_glyphs(encoding=stream.encoding, ascii_asked=ascii_asked, environ=environ),
    )


@dataclass(slots=True)
class FileOutlet:
    """Writes whole pieces to a file descriptor; goes on silently when nobody reads any more."""

    descriptor: int
    encoding: str
    is_closed: bool = False

    def write(self, text: str) -> None:
        """Write all of it, waiting while a full pipe drains."""
        rest = memoryview(text.encode(self.encoding, "backslashreplace"))
        while rest and not self.is_closed:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self.descriptor], [], 1.0)
            except OSError as error:
                # EPIPE: the reader of a pipe has gone; EIO: the terminal has.
                if error.errno not in {errno.EPIPE, errno.EIO, errno.EBADF}:
                    raise
                self.is_closed = True

    def cells(self) -> int:
        """The width of the terminal, or the design width of 80."""
        try:
            columns = os.get_terminal_size(self.descriptor).columns
        except OSError:
            columns = shutil.get_terminal_size((80, 24)).columns
        return max(columns or 80, _NARROWEST)


@dataclass(frozen=True, slots=True)
class _Output:
    source: Source
    stream: Stream
    data: bytes
    rank: int | None


_Act = Callable[[float], None]


class LaunchWriter:
    """Shows a launch to whoever watches it; implements `easyscale.reports.Audience`.

    Every call returns at once and none raises. Changes are shown in the order of the calls, each
    after the output that came before it.
    """

    def __init__(
        self,
        settings: StageSettings,
        *,
        out: Outlet | None = None,
        err: Outlet | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._stage = Stage(
            settings,
            out or FileOutlet(sys.stdout.fileno(), sys.stdout.encoding),
            err or FileOutlet(sys.stderr.fileno(), sys.stderr.encoding),
            _utc_now,
        )
        self._ready = threading.Condition()
        self._waiting: deque[_Output | _Act] = deque()
        self._waiting_bytes = 0
        self._waiting_acts = 0
        self._newest: Progress | None = None
        self._skipped: dict[Source, int] = {}
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="launch-writer", daemon=True)
        self._is_started = False

    # --- the agent's side ----------------------------------------------------------------------

    def open(self, *, job: str, facts: Mapping[str, Fact]) -> None:
        """The heading."""
        self._put(lambda now: self._stage.open(job, facts, now))

    def event(self, event: JobEvent) -> None:
        """A change."""
        self._put(lambda now: self._stage.event(event, now))

    def progress(self, progress: Progress) -> None:
        """Where training is; a newer value replaces one that was not shown yet."""
        with self._ready:
            self._newest = progress
            self._wake()

    def output(self, source: Source, stream: Stream, data: bytes, rank: int | None) -> None:
        """What a worker wrote; no bytes mean the end of that stream."""
        with self._ready:
            if self._waiting_bytes + len(data) > _OUTPUT_LIMIT_BYTES:
                lines = data.count(b"\n")
                self._skipped[source] = self._skipped.get(source, 0) + lines
            else:
                self._waiting_bytes += len(data)
                self._waiting.append(_Output(source, stream, data, rank))
            self._wake()

    def fail(self, cause: FirstCause) -> None:
        """The first cause."""
        self._put(lambda now: self._stage.fail(cause, now), always=True)

    def finish(self, summary: Summary) -> None:
        """The closing summary."""
        self._put(lambda now: self._stage.finish(summary, now), always=True)

    def close(self) -> None:
        """Write what is left; a reader that takes nothing for two seconds is given up."""
        with self._ready:
            self._is_closing = True
            self._wake()
        self.join(_CLOSE_S)

    def join(self, timeout_s: float = 10.0) -> None:
        """Wait until the writer's thread has ended, which it does after `close`."""
        self._thread.join(timeout_s)

    def _put(self, act: _Act, *, always: bool = False) -> None:
        with self._ready:
            if always or self._waiting_acts < _CHANGES_LIMIT:
                self._waiting_acts += 1
                self._waiting.append(act)
            self._wake()

    def _wake(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        self._ready.notify()

    # --- the writer's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while self._has_more():
            self._show(self._take())
        self._stage.close(self._clock())

    def _has_more(self) -> bool:
        """Wait until something is to be shown; False when all of it has been and none comes."""
        with self._ready:
            while not (self._waiting or self._newest or self._skipped):
                if self._is_closing:
                    return False
                now = self._clock()
                due = self._stage.next_due(now)
                if due is not None and due <= now:
                    return True
                self._ready.wait(None if due is None else due - now)
            return True

    def _take(self) -> list[_Output | _Act]:
        with self._ready:
            taken = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = self._waiting_acts = 0
            taken += [self._tell_skipped(*each) for each in self._skipped.items()]
            self._skipped.clear()
            if self._newest is not None:
                taken.append(partial(self._stage.progress, self._newest))
                self._newest = None
            return taken

    def _tell_skipped(self, source: Source, lines: int) -> _Act:
        return lambda _: self._stage.skipped(source, lines)

    def _show(self, taken: list[_Output | _Act]) -> None:
        now = self._clock()
        for item in taken:
            if isinstance(item, _Output):
                self._stage.output(item.source, item.stream, item.data, rank=item.rank, now=now)
            else:
                item(now)
        self._stage.tick(self._clock())


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
