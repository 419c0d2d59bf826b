"""The plan of a job and why it is this one: each slot's share, the waste, the other plans; pure."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Final

import msgspec

from easyscale.plan_facts import PlanFacts, PlannedSlot
from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.launch import WIDE
from easyscale_cli.views.layout import (
    Column,
    band,
    columns,
    ends,
    facts,
    hang,
    line,
    trim,
    width,
    wrap,
)
from easyscale_cli.views.style import Line, Role, Span

_BAND: Final = 16
_WIDE_BAND: Final = 40
_LABEL: Final = 10
#: A capability that is measured less surely than this is marked.
_UNSURE_SHARE: Final = 0.05
#: Waiting for data is told from this share of a rank's time on, of so many slots.
_DATA_SHARE: Final = 0.05
_MOST_WAITING: Final = 4
#: So many slots of one reason are named.
_MOST_NAMED: Final = 4
#: A step this much longer than predicted is worth a mark.
_SLOWER: Final = 1.1


def plan_json(plan: PlanFacts) -> str:
    """The one object of `plan --json`."""
    value: dict[str, Any] = msgspec.to_builtins(plan)
    return plain.to_json(value)


def plan_lines(
    plan: PlanFacts, *, cells: int, glyphs: Glyphs, zone: tzinfo | None, explain: bool
) -> list[Line]:
    """What the plan is; with `--explain` also the other plans that were looked at."""
    lines = [*_title(plan, cells, glyphs, zone), (), *_slots(plan, cells, glyphs), ()]
    lines += _totals(plan, cells, glyphs)
    lines += _left_out(plan, cells, glyphs)
    if explain:
        lines += _bounds(plan, cells, glyphs)
        lines += _data(plan, cells, glyphs)
        lines += [] if cells >= WIDE else _before(plan, cells, glyphs)
    if explain and plan.alternatives:
        lines += [(), *_alternatives(plan, cells, glyphs)]
    return lines


def _title(plan: PlanFacts, cells: int, glyphs: Glyphs, zone: tzinfo | None) -> list[Line]:
    used = sum(bool(slot.ranks) for slot in plan.assignments)
    workers = numbers.counted(plan.logical_workers, "logical worker")
    between = Span(glyphs.between, Role.QUIET)
    left = line(f"{workers} on {numbers.counted(used, 'slot')}")
    if plan.job is not None:
        number = numbers.generation(plan.era or 0, plan.generation or 0)
        left = line(Span(glyphs.name(plan.job), Role.NAME), between, number, between, *left)
    right: Line = ()
    if plan.planned_at is not None:
        when = numbers.clock(plan.planned_at, zone)
        right = line(f"planned {when}, step {numbers.count(plan.planned_at_step or 0)}")
    return [*ends(left, right, cells, glyphs.cut), *_step(plan, cells, glyphs)]


def _step(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    measured, predicted = plan.measured_step_seconds, plan.step_seconds
    rows: list[Line] = []
    if measured is not None:
        rows.append(line(Span(f"step {numbers.step_time(measured)} measured", Role.NAME)))
    if predicted is not None:
        lead = "" if rows else "step "
        rows.append(line(f"{lead}{numbers.step_time(predicted)} predicted"))
    if measured is not None and predicted and measured >= _SLOWER * predicted:
        ratio = numbers.ratio(measured / predicted, times=glyphs.times, fine=True)
        since = f", since {glyphs.name(plan.slower_since)}" if plan.slower_since else ""
        rows.append(line(Span(glyphs.look, Role.LOOK), Span(f" {ratio} slower{since}", Role.NAME)))
    return facts(rows, cells, glyphs)


def _work_s(plan: PlanFacts) -> float | None:
    """The step's work: how long the slowest slot computes."""
    return max((slot.busy_s for slot in plan.assignments if slot.busy_s is not None), default=None)


def _slots(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    is_wide = cells >= WIDE
    room = _WIDE_BAND if is_wide else _BAND
    work_s = _work_s(plan)
    header = "STEP" if work_s is None else f"STEP, {numbers.step_time(work_s)} OF WORK"
    table = [
        Column("SLOT"),
        Column("KIND", leaves=1),
        Column("RANKS"),
        Column("N"),
        Column("PER S", right=True),
        Column("+-%" if glyphs.is_ascii else "±%", right=True, least=5, leaves=2),
        Column("BUSY ms", right=True),
        Column("IDLE ms", right=True, leaves=3),
        Column(header, leaves=4, least=room),
    ]
    if is_wide:
        table.append(Column("WASTE/S", right=True, leaves=5))
        if plan.previous is not None:
            number = plan.previous.generation
            table.append(Column(f"GEN {number} {glyphs.arrow} {plan.generation}", leaves=6))
    rows = [_slot(slot, plan, work_s, room, glyphs, is_wide=is_wide) for slot in plan.assignments]
    return columns(table, rows, cells, mark=glyphs.cut)


def _slot(
    slot: PlannedSlot,
    plan: PlanFacts,
    work_s: float | None,
    room: int,
    glyphs: Glyphs,
    *,
    is_wide: bool,
) -> list[Line]:
    count, busy_s, speed = len(slot.ranks), slot.busy_s, slot.micro_steps_per_s
    idle_s = None if work_s is None or busy_s is None else work_s - busy_s
    share = 0.0
    if work_s and busy_s is not None and count:
        share = busy_s / count / work_s
    row: list[Line] = [
        line(f"{glyphs.name(slot.node)}/{glyphs.name(slot.slot)}"),
        line(glyphs.name(short_kind(slot.kind))),
        line(numbers.spans(slot.ranks)),
        line(str(count)),
        line("?" if speed is None else _rate(speed)),
        _spread(slot.spread_share, glyphs),
        line(numbers.milliseconds(busy_s)),
        line(numbers.milliseconds(idle_s)),
        band(count, share, room, glyphs),
    ]
    if is_wide:
        wasted = "?" if speed is None or not work_s else f"{max(speed - count / work_s, 0.0):.1f}"
        row.append(line(wasted))
        if plan.previous is not None:
            before = "-" if slot.previous_count is None else str(slot.previous_count)
            row.append(line(f"{before} {glyphs.arrow} {count}"))
    return row


def _spread(share: float | None, glyphs: Glyphs) -> Line:
    if share is None:
        return line("?")
    text = f"{share * 100:.1f}"
    if share < _UNSURE_SHARE:
        return line(text)
    return line(Span(glyphs.look, Role.LOOK), Span(f" {text}", Role.NAME))


def _totals(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    rows: list[Line] = []
    work_s = _work_s(plan)
    if plan.throughput_per_s is not None and plan.capability_per_s is not None:
        told = f"{_rate(plan.throughput_per_s)} of {_rate(plan.capability_per_s)} micro-steps/s"
        if work_s is not None:
            told += f" ({plan.logical_workers:,} / {work_s:.3f} s)"
        rows += _labelled("throughput", told, cells)
    if plan.waste is not None:
        waste = plan.waste
        total = waste.idle_per_s + waste.padding_per_s
        told = f"{_rate(total)}/s, {waste.share * 100:.1f} %: {_rate(waste.idle_per_s)} idle until "
        padding = _rate(waste.padding_per_s)
        rows += _labelled("waste", f"{told}the slowest is done, {padding} padding", cells)
    return [*rows, *_labelled("reason", glyphs.prose(plan.reason), cells)]


def _left_out(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    """Slots that no plan may use, by the reason; they are in no sum."""
    by_reason: dict[str, list[str]] = {}
    for slot in plan.left_out:
        name = f"{glyphs.name(slot.node)}/{glyphs.name(slot.slot)}"
        by_reason.setdefault(slot.reason, []).append(name)
    rows: list[Line] = []
    for reason, names in by_reason.items():
        rows += _labelled("left out", f"{_named(names)}: {glyphs.prose(reason)}", cells)
    return rows


def _bounds(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    """Where memory takes no more ranks than there are, and what is not believed as measured."""
    by_most: dict[int, list[str]] = {}
    rows: list[Line] = []
    doubted: list[Line] = []
    for slot in plan.assignments:
        name = f"{glyphs.name(slot.node)}/{glyphs.name(slot.slot)}"
        if slot.most_ranks is not None and len(slot.ranks) >= slot.most_ranks:
            by_most.setdefault(slot.most_ranks, []).append(name)
        if slot.doubt_factor is not None:
            ratio = numbers.ratio(slot.doubt_factor, times=glyphs.times, fine=True)
            told = f"{name} counts as {ratio} slower than it measures: {glyphs.prose(slot.doubt)}"
            doubted += _labelled("doubt", told, cells)
    for most, names in sorted(by_most.items()):
        rank = "rank" if most == 1 else "ranks"
        each = " each" if len(names) > 1 else ""
        rows += _labelled("memory", f"{_named(names)}: room for {most} {rank}{each}", cells)
    return [*rows, *doubted]


def _named(names: Sequence[str]) -> str:
    """Some of the slots by name, and how many more there are."""
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[: _MOST_NAMED - 1])} and {len(names) - _MOST_NAMED + 1} more"
    return ", ".join(names)


def _data(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    """Where ranks wait for data, and how much of their time: a column for it would be mostly 0."""
    rows: list[Line] = []
    for slot in plan.assignments:
        wait_s, busy_s, count = slot.data_wait_s, slot.busy_s, len(slot.ranks)
        if not (wait_s and busy_s and count) or wait_s < _DATA_SHARE * busy_s / count:
            continue
        waits, takes = numbers.step_time(wait_s), numbers.step_time(busy_s / count)
        name = f"{glyphs.name(slot.node)}/{glyphs.name(slot.slot)}"
        rows += _labelled("data", f"{name} waits {waits} of the {takes} a rank takes", cells)
    if len(rows) > _MOST_WAITING:
        rest = len(rows) - _MOST_WAITING
        rows[_MOST_WAITING:] = _labelled("data", f"and {rest} more slots", cells)
    return rows


def _before(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    """The plan before, and which ranks have moved since; wide screens have a column for it."""
    former = plan.previous
    if former is None:
        return []
    told = numbers.generation(plan.era or 0, former.generation)
    if former.per_slot:
        told += f": {numbers.shares(former.per_slot, times=glyphs.times)}"
    if former.step_seconds is not None:
        told += f", step {numbers.step_time(former.step_seconds)}"
    if plan.moved_ranks:
        rank = "rank" if len(plan.moved_ranks) == 1 else "ranks"
        told += f"; {rank} {numbers.spans(plan.moved_ranks)} moved"
    return _labelled("before", told, cells)


def _rate(per_s: float) -> str:
    """`122.1`; small ones keep two digits."""
    return "0" if not per_s else f"{per_s:,.1f}" if per_s >= 1 else f"{per_s:.2g}"


def _labelled(label: str, text: str, cells: int) -> list[Line]:
    tag = line(Span(f"{label:>{_LABEL}} ", Role.QUIET))
    return hang(tag, wrap(line(text), cells - width(tag)))


def _alternatives(plan: PlanFacts, cells: int, glyphs: Glyphs) -> list[Line]:
    title = line(
        Span("Also looked at", Role.NAME),
        Span(f"  {glyphs.prose(plan.occasion)}" if plan.occasion else "", Role.QUIET),
    )
    table = [
        Column("  PLAN"),
        Column("PER SLOT", leaves=1),
        Column("BUSY", right=True),
        Column("NOW", right=True),
        Column("WHY", is_prose=True),
    ]
    rows: list[list[Line]] = []
    for other in plan.alternatives:
        mark = Span(glyphs.done if other.is_present else " ", Role.GOOD)
        rows.append(
            [
                line(mark, f" {glyphs.name(other.name)}"),
                line(numbers.shares(other.per_slot, times=glyphs.times)),
                line(numbers.step_time(other.busy_s)),
                line(_against(other.against_now_share, glyphs)),
                line(glyphs.prose(other.reason)),
            ]
        )
    return [trim(title), *columns(table, rows, cells, mark=glyphs.cut, whole=len(rows))]


def _against(share: float | None, glyphs: Glyphs) -> str:
    if share is None:
        return ""
    sign = glyphs.minus if share < 0 else "+"
    return f"{sign}{abs(share) * 100:.0f} %"
