"""What a launch shows on its two streams; synchronous: something happens at a time, bytes go out.

On a terminal two live lines stand under a scrollback that only grows: they are taken away before
any line is written and drawn again after it. A pipe gets one line per change and nothing else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Protocol

from easyscale.reports import (
    EventKind,
    Fact,
    FirstCause,
    JobEvent,
    Progress,
    Source,
    Stream,
    Summary,
)
from easyscale_cli.views import plain
from easyscale_cli.views.cells import width_of
from easyscale_cli.views.closing import first_cause_lines, summary_lines
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.launch import Page, event_lines, heading
from easyscale_cli.views.layout import GUTTER_LIMIT, in_gutter, width
from easyscale_cli.views.literal import literal_output
from easyscale_cli.views.progress import live_lines
from easyscale_cli.views.style import Line, Palette, Role, Span, paint
from easyscale_cli.views.worker_lines import FOR_PIPE, FOR_TERMINAL, WorkerLine, WorkerLines

REDRAW_EVERY_S = 0.5


class ProgressChoice(StrEnum):
    """The values of `--progress`."""

    AUTO = "auto"
    LIVE = "live"
    PLAIN = "plain"
    NONE = "none"


class Outlet(Protocol):
    """Where text goes; a reader that has gone away is no error."""

    def write(self, text: str) -> None: ...

    def cells(self) -> int:
        """The width of the terminal behind it, now."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one stream is written."""

    is_terminal: bool
    palette: Palette
    glyphs: Glyphs


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What the command line and the streams decide, once."""

    out: Look
    err: Look
    version: str
    progress: ProgressChoice = ProgressChoice.AUTO
    progress_every_s: float = 30.0
    json: bool = False
    #: Whether lines of workers carry their origin in a pipe: more than one worker writes there.
    tags: bool = True
    #: The job runs without logical workers: the tag is `[default0]:`, as torchrun's users know it.
    role: str = ""
    keys: tuple[str, ...] = ("ctrl-c drain",)

    @property
    def is_live(self) -> bool:
        """Whether two live lines are drawn."""
        wanted = self.progress in {ProgressChoice.AUTO, ProgressChoice.LIVE}
        return wanted and self.err.is_terminal and not self.json

    @property
    def draws_screens(self) -> bool:
        """Whether our own lines are for people at a terminal, not `key=value`."""
        return self.err.is_terminal and self.progress is not ProgressChoice.PLAIN


@dataclass(slots=True)
class Stage:
    """Owner of both streams; called by one thread only."""

    settings: StageSettings
    out: Outlet
    err: Outlet
    #: RFC 3339 UTC now, for lines that are not an event's.
    wall: Callable[[], str]
    _lines: WorkerLines = field(init=False)
    _gutter: int = 12
    _progress: Progress | None = None
    _waiting: JobEvent | None = None
    _shown: list[Line] = field(default_factory=list)
    _stale: bool = False
    _redraw_at: float = -math.inf
    _told_at: float | None = None
    _last_event: JobEvent | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self._lines = WorkerLines(
            {
                stream: FOR_TERMINAL if self._look_of(stream).is_terminal else FOR_PIPE
                for stream in Stream
            }
        )
        self._told_at = None if settings.progress is ProgressChoice.NONE else -math.inf

    # --- what happens --------------------------------------------------------------------------

    def open(self, job: str, facts: Mapping[str, Fact], now: float) -> None:
        """The heading."""
        self._told_at = now if self._told_at is not None else None
        if self.settings.draws_screens and not self.settings.json:
            self._say(heading(job, facts, version=self.settings.version, page=self._page()))
        else:
            version = self.settings.version
            self._say_text(plain.heading_line(self.wall(), job, facts, version=version))

    def event(self, event: JobEvent, now: float) -> None:
        """A change: one line, after everything that workers wrote before it."""
        if event.event is EventKind.WAITING:
            self._wait(event, now)
            return
        self._waiting = None
        self._write_workers(self._lines.take_held(now))
        self._tell(event)

    def _tell(self, event: JobEvent) -> None:
        if self._waits_for_its_ending(event):
            self._last_event = event
        elif self.settings.json:
            self.out.write(plain.event_json(event) + "\n")
        elif self.settings.draws_screens:
            self._say(event_lines(event, self._page()))
        else:
            self._say_text(plain.event_line(event))

    def _waits_for_its_ending(self, event: JobEvent) -> bool:
        """Whether the summary or the first cause, which follow at once, become part of it."""
        if self.settings.json:
            return event.event in {EventKind.FINISHED, EventKind.STOPPED, EventKind.FAILED}
        return event.event is EventKind.FINISHED and not self.settings.draws_screens

    def _wait(self, event: JobEvent, now: float) -> None:
        """A wait is news once; then it is a live line, or told again at each interval."""
        if self.settings.is_live:
            self._stale = True
        elif self._waiting is None or self._is_time_to_tell(now):
            self._told_at = now if self._told_at is not None else None
            self._tell(event)
        self._waiting = event

    def progress(self, progress: Progress, now: float) -> None:
        """Where training is now; drawn twice a second or told once per interval."""
        self._waiting = None
        self._progress, self._stale = progress, True
        if self.settings.is_live or not self._is_time_to_tell(now):
            return
        self._told_at = now
        if self.settings.json:
            self.out.write(plain.progress_json(progress) + "\n")
        else:
            self._say_text(plain.progress_line(progress))

    def _is_time_to_tell(self, now: float) -> bool:
        return self._told_at is not None and now >= self._told_at + self.settings.progress_every_s

    def output(
        self, source: Source, stream: Stream, data: bytes, *, rank: int | None, now: float
    ) -> None:
        """A piece of what a worker wrote."""
        self._lines.feed(source, stream, data, rank=rank, now=now)
        self._write_workers(self._lines.take_due(now))

    def skipped(self, source: Source, lines: int) -> None:
        """Lines that are not shown because the reader of our streams is slower than the worker."""
        glyph = self.settings.err.glyphs.cut
        text = f"{glyph} {lines:,} lines not shown, see log"
        self._write_workers([WorkerLine(Stream.STDERR, text, [source], None)])

    def fail(self, cause: FirstCause, now: float) -> None:
        """The first cause: the last thing said."""
        self._end(now)
        event = self._last_event
        if self.settings.json:
            event = event or _ending(cause, self.wall())
            further = plain.first_cause_fields(cause, event.facts)
            self.out.write(plain.event_json(event, further=further) + "\n")
            self._last_event = None
        else:
            self._say(first_cause_lines(cause, self._page()))

    def finish(self, summary: Summary, now: float) -> None:
        """The closing summary."""
        self._end(now)
        if self.settings.json:
            if self._last_event is not None:
                further = plain.summary_fields(summary)
                self.out.write(plain.event_json(self._last_event, further=further) + "\n")
        elif self.settings.draws_screens:
            self._say(summary_lines(summary, self._page()))
        else:
            self._say_text(plain.summary_line(self.wall(), summary, self._last_event))
        self._last_event = None

    def close(self, now: float) -> None:
        """Nothing more comes: show what is held and take the live lines away."""
        self._end(now)
        if self._last_event is None:
            return
        if self.settings.json:
            self.out.write(plain.event_json(self._last_event) + "\n")
        else:
            self._say_text(plain.event_line(self._last_event))
        self._last_event = None

    def _end(self, now: float) -> None:
        self._write_workers(self._lines.finish(now))
        self._take_away()
        self._progress = self._waiting = None

    # --- time ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Show what has become due."""
        self._write_workers(self._lines.take_due(now))
        if self._stale and now >= self._redraw_at:
            self._take_away()
        self._draw(now)

    def next_due(self, now: float) -> float | None:
        """When `tick` should be called next, at the latest."""
        times = [due for due in [self._lines.next_due()] if due is not None]
        if self.settings.is_live and (self._stale or self._is_wanting()):
            times.append(max(self._redraw_at, now))
        return min(times, default=None)

    # --- the live lines ------------------------------------------------------------------------

    def _is_wanting(self) -> bool:
        return not self._shown and (self._progress is not None or self._waiting is not None)

    def _draw(self, now: float) -> None:
        """Draw the live lines unless they stand there."""
        if not self.settings.is_live or self._shown or not self._is_wanting():
            return
        self._redraw_at, self._stale = now + REDRAW_EVERY_S, False
        self._shown = self._live()
        painted = [paint(row, self.settings.err.palette) for row in self._shown]
        self.err.write("\n".join(painted))

    def _live(self) -> list[Line]:
        page = self._page()
        if self._waiting is not None:
            return event_lines(self._waiting, page)
        if self._progress is None:
            return []
        keys = self.settings.keys
        return [(), *live_lines(self._progress, cells=page.cells, glyphs=page.glyphs, keys=keys)]

    def _take_away(self) -> None:
        """Erase the live lines; a window made narrower has folded them into more rows."""
        if not self._shown:
            return
        cells = max(self.err.cells(), 1)
        rows = sum(max(1, math.ceil(width(row) / cells)) for row in self._shown)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        self._shown = []
        self.err.write(f"\r{up}\x1b[J")

    # --- lines ---------------------------------------------------------------------------------

    def _page(self) -> Page:
        return Page(self.err.cells(), self.settings.err.glyphs, self._gutter)

    def _say(self, rows: list[Line]) -> None:
        if rows:
            palette = self.settings.err.palette
            self._say_text("\n".join(paint(row, palette) for row in rows))

    def _say_text(self, text: str) -> None:
        self._take_away()
        self.err.write(text + "\n")

    def _look_of(self, stream: Stream) -> Look:
        return self.settings.out if self._goes_out(stream) else self.settings.err

    def _goes_out(self, stream: Stream) -> bool:
        return stream is Stream.STDOUT and not self.settings.json

    def _write_workers(self, lines: list[WorkerLine]) -> None:
        for stream, group in groupby(lines, lambda each: each.stream):
            look = self._look_of(stream)
            if look.is_terminal:
                self._take_away()
            outlet = self.out if self._goes_out(stream) else self.err
            outlet.write("".join(self._worker_line(each, look) + "\n" for each in group))

    def _worker_line(self, worker_line: WorkerLine, look: Look) -> str:
        text = literal_output(worker_line.text, with_colours=look.is_terminal and _hues(look))
        if worker_line.flood:
            lines = f"{worker_line.flood:,} lines in the last second, see log"
            text = f"{look.glyphs.cut} {lines}"
        elif worker_line.is_partial:
            text += look.glyphs.cut
        if look.is_terminal:
            return self._in_gutter(worker_line, text, look)
        tag = self._pipe_tag(worker_line, look)
        return tag + text if self.settings.tags else text

    def _in_gutter(self, worker_line: WorkerLine, text: str, look: Look) -> str:
        """The line behind its tag; it is left to the terminal to fold, so that it can be copied."""
        tag = self._tag(worker_line, look)
        self._gutter = min(max(self._gutter, width_of(tag)), GUTTER_LIMIT)
        cell = in_gutter((Span(tag, Role.QUIET),), self._gutter, look.glyphs.cut)
        bar = (Span(f" {look.glyphs.source}", Role.QUIET),)
        return paint((*cell, *bar), look.palette) + (f" {text}" if text else "")

    def _tag(self, worker_line: WorkerLine, look: Look) -> str:
        first, *others = worker_line.sources
        if others:
            count = len(worker_line.sources)
            nodes = {source.node for source in worker_line.sources}
            who = look.glyphs.name(first.node) if len(nodes) == 1 else f"{len(nodes)} nodes"
            return f"{who} {look.glyphs.times}{count}"
        return self._place(first, worker_line.rank, look.glyphs)

    def _place(self, source: Source, rank: int | None, glyphs: Glyphs) -> str:
        if self.settings.role:
            return f"{self.settings.role}{glyphs.name(source.slot)}"
        place = f"{glyphs.name(source.node)}/{glyphs.name(source.slot)}"
        return place if rank is None else f"{place} r{rank}"

    def _pipe_tag(self, worker_line: WorkerLine, look: Look) -> str:
        place = self._place(worker_line.sources[0], worker_line.rank, look.glyphs)
        return f"[{place}]:" if self.settings.role else f"[{place}] "


def _hues(look: Look) -> bool:
    return look.palette is Palette.HUES


def _ending(cause: FirstCause, at: str) -> JobEvent:
    return JobEvent(
        at=at,
        job=cause.job,
        event=EventKind.FAILED,
        step=cause.step,
        era=cause.era,
        generation=cause.generation,
        reason=cause.why_ended,
    )
