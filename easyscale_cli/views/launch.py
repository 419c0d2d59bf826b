"""The lines of `launch`: one per change, its verb in the gutter and its facts behind it; pure.

The facts each kind of event may carry are those that its function below asks for; what is absent is
left out of the line. Reasons and names are data: shown literally.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from easyscale.reports import EventKind, Fact, JobEvent
from easyscale_cli.views import numbers
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.layout import GUTTER, facts, hang, in_gutter, line
from easyscale_cli.views.style import Line, Role, Span

#: From this width on a line tells the same change in its longer wording.
WIDE: Final = 120


@dataclass(frozen=True, slots=True)
class Page:
    """What a line is drawn for: cells, marks and the present width of the gutter."""

    cells: int
    glyphs: Glyphs
    gutter: int = GUTTER

    @property
    def is_wide(self) -> bool:
        """Whether there is room for the longer wording."""
        return self.cells >= WIDE


@dataclass(frozen=True, slots=True)
class _Told:
    """An event whose facts are read by type; a fact of another type counts as absent."""

    event: JobEvent
    page: Page

    def text(self, key: str) -> str:
        value = self.event.facts.get(key)
        return self.page.glyphs.name(value) if isinstance(value, str) else ""

    def number(self, key: str) -> float | None:
        value = self.event.facts.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        return None if value is None else int(value)

    def wholes(self, key: str) -> list[int]:
        value = self.event.facts.get(key)
        return [each for each in value if isinstance(each, int)] if isinstance(value, tuple) else []

    def texts(self, key: str) -> list[str]:
        value = self.event.facts.get(key)
        return (
            [self.page.glyphs.name(str(each)) for each in value] if isinstance(value, tuple) else []
        )

    def holds(self, key: str) -> bool:
        return self.event.facts.get(key) is True

    @property
    def place(self) -> str:
        node, slot = self.text("node"), self.text("slot")
        return f"{node}/{slot}" if node and slot else node or slot

    @property
    def reason(self) -> str:
        return self.page.glyphs.prose(self.event.reason)

    @property
    def step(self) -> str:
        step = self.event.step
        return "" if step is None else f"step {numbers.count(step)}"

    @property
    def generation(self) -> str:
        return numbers.generation(self.event.era, self.event.generation)

    @property
    def paused(self) -> str:
        pause_s = self.number("pause_s")
        return "" if pause_s is None else f"paused {numbers.pause(pause_s)}"


def heading(job: str, told: Mapping[str, Fact], *, version: str, page: Page) -> list[Line]:
    """The first line: version, job, what is fixed for its life, where snapshots and logs go."""
    workers = told.get("logical_workers")
    level = told.get("determinism")
    mode = told.get("mode")
    rows = [
        version,
        f"job {page.glyphs.name(job)}",
        f"{numbers.counted(workers, 'logical worker')}" if isinstance(workers, int) else "",
        f"determinism {page.glyphs.name(level)}" if isinstance(level, str) and level else "",
        f"{page.glyphs.name(mode)} mode"
        if isinstance(mode, str) and mode not in {"", "elastic"}
        else "",
        *(
            f"{what} {page.glyphs.name(place)}"
            for what, key in (("snapshots", "snapshot_dir"), ("logs", "log_dir"))
            if isinstance(place := told.get(key), str) and place
        ),
    ]
    return entry(line(Span("easyscale", Role.NAME)), rows, page)


def entry(tag: Line, rows: Sequence[str | Line], page: Page) -> list[Line]:
    """A tag in the gutter with its facts behind it; empty facts are left out."""
    first = (*in_gutter(tag, page.gutter, page.glyphs.cut), Span(" "))
    told = [line(row) if isinstance(row, str) else row for row in rows if row]
    return hang(first, facts(told, page.cells - page.gutter - 1, page.glyphs))


def label(text: str, rows: Sequence[str | Line], page: Page) -> list[Line]:
    """An entry whose tag is a quiet word, as in the closing summary."""
    return entry(line(Span(text, Role.QUIET)), rows, page)


def event_lines(event: JobEvent, page: Page) -> list[Line]:
    """How a change reads in the stream; nothing for one that has a screen of its own."""
    verb = _VERBS.get(event.event)
    if verb is None:
        return []
    rows = verb.facts(_Told(event, page))
    tag = line(Span(verb.word, verb.role))
    if verb.looks:
        tag = line(Span(page.glyphs.look, Role.LOOK), " ", *tag)
    return entry(tag, rows, page) if any(rows) else []


def _met(told: _Told) -> list[str]:
    took_s = told.number("took_s")
    node, slots, kind = told.text("node"), told.whole("slots"), short_kind(told.text("kind"))
    offer = "" if slots is None else f", {numbers.counted(slots, 'slot')} {kind}".rstrip()
    return [
        told.text("endpoint") + ("" if took_s is None else f" in {numbers.took(took_s)}"),
        f"this is node {node}{offer}" if node else "",
        told.reason,
    ]


def _waiting(told: _Told) -> list[str]:
    missing, wanted = told.whole("missing"), told.whole("wanted")
    waited_s, limit_s = told.number("waited_s"), told.number("limit_s")
    awaited = (
        ""
        if missing is None
        else f"for {missing:,} of {numbers.counted(wanted or missing, 'node')}"
    )
    have = told.texts("have")
    return [
        awaited or told.reason,
        ""
        if waited_s is None
        else f"{waited_s:.0f} s" + (f" of {limit_s:.0f} s" if limit_s else ""),
        f"have {', '.join(have)}" if have else "",
    ]


def _started(told: _Told) -> list[str]:
    took_s, workers, split = told.number("took_s"), told.whole("workers"), told.wholes("shares")
    shares = numbers.shares(split, times=told.page.glyphs.times)
    return [
        ("" if workers is None else numbers.counted(workers, "worker"))
        + ("" if took_s is None else f" in {numbers.took(took_s)}"),
        told.generation,
        f"{sum(split):,} = {shares}" if split else "",
        f"restart {restarts:,}" if (restarts := told.whole("restarts")) else "",
    ]


def _joined(told: _Told) -> list[str]:
    slots, pid, kind = told.whole("slots"), told.whole("pid"), short_kind(told.text("kind"))
    if pid is not None:
        who = f"{told.place}, new worker {pid}"
    elif slots is not None:
        who = f"{told.place}, {numbers.counted(slots, 'slot')} {kind}".rstrip()
    else:
        who = told.place
    return [who, told.step, told.generation, told.paused]


def _how_it_ended(told: _Told) -> str:
    signal, exit_code = told.text("signal"), told.whole("exit_code")
    if signal:
        return f" killed by {signal}"
    return "" if exit_code is None else f" exited {exit_code}"


def _lost(told: _Told) -> list[str]:
    pid, slots, ranks = told.whole("pid"), told.whole("slots"), told.wholes("ranks")
    who = told.place if told.text("slot") else f"node {told.place}"
    if pid is not None:
        who += f", worker {pid}{_how_it_ended(told)}"
    elif slots is not None:
        who += f", {numbers.counted(slots, 'slot')}"
    again = " again" if told.holds("again") else ""
    held = f"{numbers.rank_phrase(ranks)}{again}" if ranks else ""
    at = ", ".join(filter(None, [told.step, held]))
    used, limit = told.whole("restarts"), told.whole("restarts_limit")
    return [
        who,
        at,
        f"{used} of {limit} restarts" if used is not None and limit is not None else "",
        _further_reason(told) if told.page.is_wide else "",
    ]


def _further_reason(told: _Told) -> str:
    """The reason without a first clause that the line has said already."""
    first, _, rest = told.reason.partition("; ")
    said = {
        told.text("signal"),
        f"exited {told.whole('exit_code')}",
        f"exit {told.whole('exit_code')}",
    }
    return rest if first in said else told.reason


def _recovered(told: _Told) -> list[str]:
    pause_s, lost, kept = (
        told.number("pause_s"),
        told.whole("steps_lost"),
        told.whole("workers_kept"),
    )
    return [
        "" if pause_s is None else f"in {numbers.recovery(pause_s)}",
        told.reason,
        told.generation,
        "" if lost is None else f"{numbers.counted(lost, 'step')} lost",
        f"{numbers.counted(kept, 'worker')} kept" if kept is not None and told.page.is_wide else "",
    ]


def _drained(told: _Told) -> list[str]:
    who = told.place if told.text("slot") else f"node {told.place}"
    because = f" ({told.reason})" if told.event.reason else ""
    return [who + because, told.step, told.generation, told.paused]


def _draining(told: _Told) -> list[str]:
    return [told.reason.removeprefix("draining ")]  # the gutter says it


def _noted(told: _Told) -> list[str]:
    return [told.reason]


def _rebalanced(told: _Told) -> list[str]:
    before_s, after_s = told.number("step_s_before"), told.number("step_s_after")
    times = ""
    if before_s is not None and after_s is not None:
        times = "step " + numbers.step_times(before_s, after_s, arrow=told.page.glyphs.arrow)
    return ["; ".join(filter(None, [told.reason, times])), told.step, told.generation, told.paused]


def _restored(told: _Told) -> list[str]:
    source, lost = told.text("source"), told.whole("steps_lost")
    back = "" if lost is None else f"{numbers.counted(lost, 'step')} back"
    return [
        told.step + (f" from {source}" if source else ""),
        ", ".join(filter(None, [back, told.reason])),
    ]


def _slow(told: _Told) -> list[str]:
    return [f"{told.place}: {told.reason}"]


def _hung(told: _Told) -> list[str]:
    silent_s, phase = told.number("silent_s"), told.text("phase")
    silent = "" if silent_s is None else f", silent {numbers.elapsed(silent_s)}"
    where = f" in {told.step}'s {phase}" if phase else f" in {told.step}"
    return [told.place + silent + where, told.reason or "stacks in its log"]


def _store_away(told: _Told) -> list[str]:
    silent_s = told.number("silent_s")
    since = "" if silent_s is None else f" for {numbers.elapsed(silent_s)}"
    return [told.text("endpoint") + since, told.reason or "training goes on, changes wait"]


def _store_back(told: _Told) -> list[str]:
    away_s = told.number("away_s")
    after = "" if away_s is None else f" after {numbers.elapsed(away_s)}"
    stands = f"{told.generation} stands, nothing lost"
    return [f"{told.text('endpoint')} again{after}", told.reason or stands]


def _snapshot(told: _Told) -> list[str]:
    if not told.holds("asked"):
        return []
    size = told.whole("bytes")
    checked = ", verified" if told.holds("verified") else ""
    return [
        told.step,
        "" if size is None else numbers.data_size(size) + checked,
        told.text("path"),
    ]


def _snapshot_failed(told: _Told) -> list[str]:
    kept = told.whole("kept_step")
    return [
        f"of {told.step} not written: {told.reason}",
        "" if kept is None else f"{numbers.count(kept)} kept",
    ]


@dataclass(frozen=True, slots=True)
class _Verb:
    """The word of a change and how its facts are told."""

    word: str
    role: Role
    facts: Callable[[_Told], list[str]]
    looks: bool = False


#: Lost was not asked for; Drained was. A change that failed nothing is never red.
_VERBS: Final[Mapping[EventKind, _Verb]] = {
    EventKind.MET: _Verb("Met", Role.GOOD_NAME, _met),
    EventKind.WAITING: _Verb("Waiting", Role.NAME, _waiting),
    EventKind.STARTED: _Verb("Started", Role.GOOD_NAME, _started),
    EventKind.JOINED: _Verb("Joined", Role.GOOD_NAME, _joined),
    EventKind.LOST: _Verb("Lost", Role.FAILED_NAME, _lost),
    EventKind.RECOVERED: _Verb("Recovered", Role.GOOD_NAME, _recovered),
    EventKind.DRAINED: _Verb("Drained", Role.NAME, _drained),
    EventKind.DRAINING: _Verb("draining", Role.NAME, _draining),
    EventKind.LEFT: _Verb("Left", Role.NAME, _drained),
    EventKind.REBALANCED: _Verb("Rebalanced", Role.LIVE_NAME, _rebalanced),
    EventKind.MIGRATED: _Verb("Migrated", Role.LIVE_NAME, _rebalanced),
    EventKind.RESTORED: _Verb("Restored", Role.GOOD_NAME, _restored),
    EventKind.SLOW: _Verb("Slow", Role.NAME, _slow, looks=True),
    EventKind.RECOVERED_SPEED: _Verb("Recovered", Role.GOOD_NAME, _slow),
    EventKind.HUNG: _Verb("Hung", Role.FAILED_NAME, _hung),
    EventKind.STORE_AWAY: _Verb("Lost", Role.FAILED_NAME, _store_away),
    EventKind.STORE_BACK: _Verb("Met", Role.GOOD_NAME, _store_back),
    EventKind.SNAPSHOT: _Verb("Snapshot", Role.GOOD_NAME, _snapshot),
    EventKind.SNAPSHOT_FAILED: _Verb("Snapshot", Role.NAME, _snapshot_failed, looks=True),
    EventKind.NOTE: _Verb("note", Role.QUIET, _noted),
}


_COMMAND = re.compile(r" {3,}")


def command_and_note(text: str, glyphs: Glyphs) -> Line:
    """A hint that can be pasted, with what it does behind three spaces."""
    command, *note = _COMMAND.split(glyphs.prose(text), maxsplit=1)
    if not note:
        return line(command)
    return line(Span(command, Role.NAME), Span(f"   {note[0]}", Role.QUIET))
