"""Throughput against slots: a row a size with its bar, and what one slot of it brings; pure."""

from typing import Any, Final

import msgspec

from easyscale.agent.balance.sharing import interference
from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.layout import Column, columns, line
from easyscale_cli.views.style import Line, Role, Span

_BAR: Final = 24


def profile_json(job: str, record: ProfileRecord) -> str:
    """The one object of `profile --json`."""
    value: dict[str, Any] = {"version": plain.JSON_VERSION, "job": job}
    return plain.to_json(
        value | {k: v for k, v in msgspec.to_builtins(record).items() if k != "version"}
    )


def profile_lines(job: str, record: ProfileRecord, *, cells: int, glyphs: Glyphs) -> list[Line]:
    """The heading and a row for each size, most slots first; the drawing never leaves."""
    workers = numbers.counted(record.logical_workers, "logical worker")
    title = line(
        Span(glyphs.name(job), Role.NAME),
        Span(glyphs.between, Role.QUIET),
        workers,
        Span(glyphs.between, Role.QUIET),
        f"{len(record.points)} of {record.planned} sizes measured",
    )
    if not record.points:
        return [title]
    best = max(point.micro_steps_per_s for point in record.points)
    one = _per_slot_of_the_smallest(record)
    table = [
        Column("SLOTS", right=True),
        Column("OF KIND", leaves=1, is_prose=True),
        Column("PER SLOT", leaves=2),
        Column("STEP", right=True),
        Column("MICRO-STEPS/S", right=True),
        Column("EACH", right=True, leaves=3),
        Column("THROUGHPUT", least=_BAR),
    ]
    rows = [_row(point, best, one, glyphs) for point in record.points]
    shared = _interference_lines(record, glyphs)
    gap: list[Line] = [()] if shared else []
    return [
        title,
        (),
        *columns(table, rows, cells, mark=glyphs.cut, whole=len(rows)),
        *gap,
        *shared,
    ]


def _interference_lines(record: ProfileRecord, glyphs: Glyphs) -> list[Line]:
    """What the slots of one device take from each other, if any share one."""
    return [
        line(
            Span(glyphs.name(device), Role.NAME),
            f": interference factor {factor:.2f}, each of its slots beside the others",
        )
        for device, factor in interference(record).items()
    ]


def slots_of(point: ProfilePoint) -> int:
    return sum(point.slots.values())


def _per_slot_of_the_smallest(record: ProfileRecord) -> float:
    smallest = min(record.points, key=slots_of)
    return smallest.micro_steps_per_s / max(1, slots_of(smallest))


def _row(point: ProfilePoint, best: float, one: float, glyphs: Glyphs) -> list[Line]:
    slots = slots_of(point)
    kinds = ", ".join(
        f"{count} {short_kind(kind) or 'slot'}" for kind, count in point.slots.items()
    )
    share = point.micro_steps_per_s / best
    done = max(1, round(share * _BAR))
    bar = line(
        Span(glyphs.bar_done * done, Role.LIVE), Span(glyphs.bar_rest * (_BAR - done), Role.QUIET)
    )
    return [
        line(str(slots)),
        line(glyphs.name(kinds)),
        line(numbers.shares(point.counts, times=glyphs.times)),
        line(numbers.step_time(point.step_s)),
        line(f"{point.micro_steps_per_s:,.1f}"),
        line(f"{point.micro_steps_per_s / slots / one * 100:.0f} %"),
        bar,
    ]
