"""What changed, newest first: a loss and the recovery that answered it are one row; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Final

from easyscale.job_status import JobStatus
from easyscale.reports import EventKind, JobEvent
from easyscale_cli.views import numbers
from easyscale_cli.views.cells import cut_front
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.launch import WIDE
from easyscale_cli.views.layout import Column, columns, facts, hang, line, width
from easyscale_cli.views.style import Line, Role, Span

#: A place longer than this loses its front.
_PLACE: Final = 24
#: The newest reasons wrap whole; older ones are cut to their line.
_WHOLE: Final = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One row: when, at which step, what, why, how long the pause was."""

    event: JobEvent
    reason: str
    pause_s: float | None
    #: The generation that answered it.
    generation: int


def changes_of(events: Sequence[JobEvent]) -> list[Change]:
    """The rows of the events, both newest first; what is no change of its own is left out."""
    rows: list[Change] = []
    waiting: JobEvent | None = None  # a recovery, seen before the loss that it answers
    for event in events:
        match event.event:
            case EventKind.RECOVERED:
                rows += _alone(waiting)
                waiting = event
            case EventKind.LOST | EventKind.HUNG if waiting is not None:
                rows.append(_answered(event, waiting))
                waiting = None
            case EventKind.NOTE | EventKind.SNAPSHOT | EventKind.WAITING:
                continue
            case _:
                rows += _alone(event)
    return rows + _alone(waiting)


def _alone(event: JobEvent | None) -> list[Change]:
    if event is None:
        return []
    return [Change(event, _reason(event), _pause(event), event.generation)]


def _answered(loss: JobEvent, recovery: JobEvent) -> Change:
    first, semicolon, rest = loss.reason.partition("; ")
    told = [first, recovery.reason, rest if semicolon else ""]
    reason = "; ".join(filter(None, told))
    return Change(loss, reason, _pause(recovery), recovery.generation)


def _pause(event: JobEvent) -> float | None:
    value = event.facts.get("pause_s")
    return float(value) if isinstance(value, int | float) else None


def _number(event: JobEvent, key: str) -> float | None:
    value = event.facts.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _reason(event: JobEvent) -> str:
    before, after = _number(event, "step_s_before"), _number(event, "step_s_after")
    if before is not None and after is not None:
        times = f"step {numbers.step_times(before, after, arrow='->')}"
        return "; ".join(filter(None, [event.reason, times]))
    if event.reason:
        return event.reason
    slots, pid = _number(event, "slots"), _number(event, "pid")
    if slots is not None:
        kind = short_kind(str(event.facts.get("kind") or ""))
        return f"{numbers.counted(int(slots), 'slot')} {kind}".rstrip()
    return f"new worker {int(pid)}" if pid is not None else ""


def changes_section(
    status: JobStatus,
    *,
    cells: int,
    rows: int,
    glyphs: Glyphs,
    zone: tzinfo | None,
    has_generations: bool = True,
) -> list[Line]:
    """The heading with its totals and the newest `rows` changes."""
    told = status.changes
    totals = [line(f"{told.count:,} since start")]
    if told.paused_s is not None:
        share = told.paused_s / status.job.elapsed_s if status.job.elapsed_s else 0.0
        paused = numbers.pause_total(told.paused_s)
        totals.append(line(f"paused {paused} in all ({numbers.percent(share)})"))
    if told.steps_lost is not None:
        totals.append(line(f"{numbers.counted(told.steps_lost, 'step')} lost"))
    title = (Span("Changes", Role.NAME), Span("  "))
    heading = hang(title, facts(totals, cells - width(title), glyphs))
    changes = changes_of(told.last)
    if not changes:
        return heading
    table = change_table(
        changes[:rows],
        status.at,
        cells,
        glyphs=glyphs,
        zone=zone,
        has_generations=has_generations,
    )
    lines = [*heading, *(table if rows else [])]
    more = told.count - sum(_counts(change) for change in changes[:rows])
    if len(changes) > rows and more > 0:
        lines.append(line(Span(f"{glyphs.cut} {more:,} more: e", Role.QUIET)))
    return lines


def _counts(change: Change) -> bool:
    """Whether a row is one of the changes that the heading counts."""
    return change.event.event not in {EventKind.STARTED, EventKind.SLOW, EventKind.RECOVERED_SPEED}


def change_table(
    changes: Sequence[Change],
    now: str,
    cells: int,
    *,
    glyphs: Glyphs,
    zone: tzinfo | None,
    has_generations: bool = True,
) -> list[Line]:
    """The timeline: ages in a narrow window, clock and generation in a wide one."""
    is_wide = cells >= WIDE
    has_generations = has_generations and is_wide
    # Of a job without logical workers nobody knows the steps, nor what a change cost.
    has_steps = any(change.event.step is not None for change in changes)
    table = [
        Column("WHEN", right=not is_wide),
        *([Column("STEP", right=True)] if has_steps else []),
        *([Column("GEN", right=True, leaves=1)] if has_generations else []),
        Column("CHANGE"),
        Column("REASON", is_prose=True),
        *([Column("PAUSE", right=True)] if has_steps else []),
    ]
    rows: list[list[Line]] = []
    for change in changes:
        at = change.event.at
        when = numbers.clock(at, zone) if is_wide else numbers.age(_seconds_between(at, now))
        rows.append(
            [
                line(Span(when, Role.QUIET)),
                *([line(numbers.count(change.event.step))] if has_steps else []),
                *([line(str(change.generation))] if has_generations else []),
                _what(change.event, glyphs),
                line(glyphs.prose(change.reason)),
                *([line(_paused(change))] if has_steps else []),
            ]
        )
    return columns(table, rows, cells, mark=glyphs.cut, whole=_WHOLE)


def _paused(change: Change) -> str:
    return "" if change.pause_s is None else numbers.pause(change.pause_s)


def _seconds_between(earlier: str, later: str) -> float | None:
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _Look:
    """How a kind of change is marked."""

    mark: str
    role: Role
    word: str
    word_role: Role = Role.TEXT


def _look_of(kind: EventKind, glyphs: Glyphs) -> _Look:
    joined = _Look(glyphs.joined, Role.GOOD, str(kind).replace("_", " "))
    looks: Mapping[EventKind, _Look] = {
        EventKind.LOST: _Look(glyphs.failed, Role.FAILED, "lost", Role.FAILED_NAME),
        EventKind.FAILED: _Look(glyphs.failed, Role.FAILED, "failed", Role.FAILED_NAME),
        EventKind.HUNG: _Look(glyphs.failed, Role.FAILED, "hung", Role.FAILED_NAME),
        EventKind.SLOW: _Look(glyphs.look, Role.LOOK, "slow", Role.NAME),
        EventKind.SNAPSHOT_FAILED: _Look(glyphs.look, Role.LOOK, "snapshot not written", Role.NAME),
        EventKind.STORE_AWAY: _Look(glyphs.look, Role.LOOK, "lost etcd", Role.NAME),
        EventKind.STORE_BACK: replace(joined, word="met etcd again"),
        EventKind.RECOVERED_SPEED: replace(joined, mark=glyphs.done, word="recovered"),
        EventKind.RECOVERED: replace(joined, mark=glyphs.done),
        EventKind.FINISHED: replace(joined, mark=glyphs.done),
        EventKind.REBALANCED: _Look(glyphs.rebalanced, Role.LIVE, "rebalanced"),
        EventKind.MIGRATED: _Look(glyphs.rebalanced, Role.LIVE, "migrated"),
        EventKind.RESTORED: _Look(glyphs.restored, Role.LIVE, "restored"),
        EventKind.DRAINED: _Look(glyphs.left, Role.TEXT, "drained"),
        EventKind.DRAINING: _Look(glyphs.left, Role.TEXT, "draining"),
        EventKind.LEFT: _Look(glyphs.left, Role.TEXT, "left"),
        EventKind.STOPPED: _Look(glyphs.left, Role.TEXT, "stopped"),
    }
    return looks.get(kind, joined)


def _what(event: JobEvent, glyphs: Glyphs) -> Line:
    look = _look_of(event.event, glyphs)
    node, slot = event.facts.get("node"), event.facts.get("slot")
    place = "/".join(part for part in (node, slot) if isinstance(part, str) and part)
    subject = cut_front(glyphs.name(place), _PLACE, glyphs.cut)
    words = " ".join(filter(None, [look.word, subject]))
    return line(Span(look.mark, look.role), Span(f" {words}", look.word_role))
