"""What workers print, as whole lines with their origin; pure: bytes and the time in, lines out.

    bytes of (worker, stream) -> whole lines -> at most 200 a second -> same line of many, once

Files keep everything, raw; this is only what the screen shows.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from easyscale.reports import Source, Stream

#: An unfinished line longer than this is shown as it is; a worker cannot make us hold more.
LONGEST_PARTIAL = 65_536
BAR_EVERY_S = 10.0
_MOVEMENT = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTfhl]")


@dataclass(frozen=True, slots=True)
class Rules:
    """How the lines of one stream are thinned; a pipe gets every line as it was written."""

    #: How long a line waits for the same one from other workers.
    hold_s: float | None
    #: After which silence an unfinished line is shown with a mark.
    partial_s: float | None
    lines_per_s: int | None


FOR_TERMINAL = Rules(hold_s=0.2, partial_s=0.5, lines_per_s=200)
FOR_PIPE = Rules(hold_s=None, partial_s=None, lines_per_s=None)


@dataclass(slots=True)
class WorkerLine:
    """A line ready to be shown."""

    stream: Stream
    text: str
    #: The workers that wrote it, in the order in which they did.
    sources: list[Source]
    #: The logical rank whose micro-step ran; None for several workers or outside the inner loop.
    rank: int | None
    is_partial: bool = False
    #: Set on the line that stands for a flood of so many lines.
    flood: int = 0


@dataclass(slots=True)
class _Pending:
    line: WorkerLine
    due: float


@dataclass(slots=True)
class _Tail:
    """The unfinished end of one stream of one worker."""

    data: bytes = b""
    since: float = 0.0
    rank: int | None = None
    #: The line's beginning has been shown already; an empty rest is then nothing to show.
    begun: bool = False
    is_bar: bool = False
    bar_due: float = 0.0


@dataclass(slots=True)
class _Second:
    """The current second of a worker: how many lines it wrote in it."""

    began: float
    lines: int = 0


@dataclass(slots=True)
class WorkerLines:
    """Turns the output of all workers of a node into lines; the caller brings the time."""

    rules: dict[Stream, Rules]
    _tails: dict[tuple[Source, Stream], _Tail] = field(default_factory=dict)
    _seconds: dict[Source, _Second] = field(default_factory=dict)
    _held: deque[_Pending] = field(default_factory=deque)

    def feed(
        self, source: Source, stream: Stream, data: bytes, *, rank: int | None, now: float
    ) -> None:
        """Take a piece of output; no bytes at all mean that the stream has ended."""
        tail = self._tails.setdefault((source, stream), _Tail(since=now, rank=rank))
        if not data:
            self._finish(source, stream, tail, now)
            del self._tails[source, stream]
            return
        if not tail.data:
            tail.since, tail.rank = now, rank
        *whole, rest = (tail.data + data).split(b"\n")
        for number, piece in enumerate(whole):
            self._complete(source, stream, tail, piece, now)
            tail.begun = tail.is_bar = False
            if number == 0:
                tail.since, tail.rank = now, rank
        self._keep(source, stream, tail, rest, now)

    def _complete(
        self, source: Source, stream: Stream, tail: _Tail, piece: bytes, now: float
    ) -> None:
        piece = piece.removesuffix(b"\r")
        if b"\r" in piece or tail.is_bar:
            piece = last_state(piece)
            if not piece:
                return
        if piece or not tail.begun:
            self._put(source, stream, piece, rank=tail.rank, now=now)

    def _keep(self, source: Source, stream: Stream, tail: _Tail, rest: bytes, now: float) -> None:
        if b"\r" in rest:
            if not tail.is_bar:
                tail.is_bar, tail.bar_due = True, now + BAR_EVERY_S
            # A lone return at the end may be the first half of a line's \r\n.
            ends = b"\r" if rest.endswith(b"\r") else b""
            rest = last_state(rest) + ends
        if len(rest) > LONGEST_PARTIAL:
            self._put(source, stream, rest, rank=tail.rank, now=now, is_partial=True)
            tail.begun, rest = True, b""
        tail.data = rest

    def _finish(self, source: Source, stream: Stream, tail: _Tail, now: float) -> None:
        if tail.data:
            self._complete(source, stream, tail, tail.data, now)
            tail.data = b""

    def _put(
        self,
        source: Source,
        stream: Stream,
        data: bytes,
        *,
        rank: int | None,
        now: float,
        is_partial: bool = False,
    ) -> None:
        rules = self.rules[stream]
        if rules.lines_per_s is not None:
            second = self._second(source, now)
            second.lines += 1
            if second.lines > rules.lines_per_s:
                return
        text = data.decode("utf-8", "backslashreplace")
        line = WorkerLine(stream, text, [source], rank, is_partial)
        if rules.hold_s is None:
            self._held.append(_Pending(line, now))
        elif not self._joins_a_held_one(line):
            self._held.append(_Pending(line, now + rules.hold_s))

    def _joins_a_held_one(self, line: WorkerLine) -> bool:
        (source,) = line.sources
        for pending in self._held:
            held = pending.line
            if held.text == line.text and held.stream is line.stream and source not in held.sources:
                held.sources.append(source)
                held.rank = None
                return True
        return False

    def _second(self, source: Source, now: float) -> _Second:
        second = self._seconds.get(source)
        if second is None or now >= second.began + 1.0:
            self._tell_flood(source, second, now)
            second = self._seconds[source] = _Second(began=now)
        return second

    def _tell_flood(self, source: Source, second: _Second | None, now: float) -> None:
        limit = self.rules[Stream.STDOUT].lines_per_s or self.rules[Stream.STDERR].lines_per_s
        if second is not None and limit is not None and second.lines > limit:
            stream = Stream.STDERR
            line = WorkerLine(stream, "", [source], None, flood=second.lines)
            self._held.append(_Pending(line, now))

    def take_due(self, now: float) -> list[WorkerLine]:
        """The lines whose time has come, in the order in which they were written."""
        for (source, stream), tail in self._tails.items():
            self._age(source, stream, tail, now)
        for source, second in list(self._seconds.items()):
            if now >= second.began + 1.0:
                self._tell_flood(source, second, now)
                del self._seconds[source]
        return list(self._pop(now))

    def _age(self, source: Source, stream: Stream, tail: _Tail, now: float) -> None:
        partial_s = self.rules[stream].partial_s
        if tail.is_bar:
            if tail.data and now >= tail.bar_due:
                tail.bar_due = now + BAR_EVERY_S
                self._put(source, stream, last_state(tail.data), rank=tail.rank, now=now)
        elif tail.data and partial_s is not None and now >= tail.since + partial_s:
            self._put(source, stream, tail.data, rank=tail.rank, now=now, is_partial=True)
            tail.data, tail.begun = b"", True

    def _pop(self, now: float) -> Iterator[WorkerLine]:
        while self._held and now >= self._held[0].due:
            yield self._held.popleft().line

    def take_held(self, now: float) -> list[WorkerLine]:
        """All whole lines, because something that happened after them is about to be shown."""
        due = self.take_due(now)
        return due + list(self._pop(float("inf")))

    def finish(self, now: float) -> list[WorkerLine]:
        """Everything that is left: all workers have ended."""
        for (source, stream), tail in self._tails.items():
            self._finish(source, stream, tail, now)
        self._tails.clear()
        for source, second in self._seconds.items():
            self._tell_flood(source, second, now)
        self._seconds.clear()
        return list(self._pop(float("inf")))

    def next_due(self) -> float | None:
        """When `take_due` may have something to give, if nothing else is fed."""
        times = [self._held[0].due] if self._held else []
        for (_, stream), tail in self._tails.items():
            partial_s = self.rules[stream].partial_s
            if tail.data and tail.is_bar:
                times.append(tail.bar_due)
            elif tail.data and partial_s is not None:
                times.append(tail.since + partial_s)
        times += [second.began + 1.0 for second in self._seconds.values() if self._is_flood(second)]
        return min(times, default=None)

    def _is_flood(self, second: _Second) -> bool:
        limit = self.rules[Stream.STDOUT].lines_per_s or self.rules[Stream.STDERR].lines_per_s
        return limit is not None and second.lines > limit


def last_state(data: bytes) -> bytes:
    """What a progress bar shows now: its last drawing, without the movements of the cursor."""
    states = [_MOVEMENT.sub(b"", state) for state in data.split(b"\r")]
    return next((state for state in reversed(states) if state.strip()), b"")
