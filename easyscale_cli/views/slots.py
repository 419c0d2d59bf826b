"""The slots of a job in as much detail as the window holds: slots, nodes, cells, only the odd.

Every form counts every slot, keeps the order by name between two redraws, and names its worst.
"""

import re
import statistics
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import Final

from easyscale.job_status import JobStatus, SlotFacts
from easyscale_cli.views import numbers
from easyscale_cli.views.cells import width_of
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.layout import (
    Column,
    columns,
    cut,
    facts,
    hang,
    join,
    line,
    trim,
    width,
)
from easyscale_cli.views.slot_rows import GRADES, mark_of, node_name, slot_table
from easyscale_cli.views.style import Line, Role, Span

_CELL_GAP: Final = 3


class Form(StrEnum):
    """How much one row tells."""

    SLOTS = "slots"
    NODES = "nodes"
    CELLS = "cells"
    ODD = "odd"


@lru_cache(maxsize=8_192)
def natural(text: str) -> tuple[tuple[int, str], ...]:
    """The order in which people count: `gpu-2` before `gpu-10`."""
    pieces = re.findall(r"\d+|\D+", text)
    return tuple((int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces)


def in_order(slots: Sequence[SlotFacts]) -> list[SlotFacts]:
    """By node, then slot, both natural."""
    return sorted(slots, key=lambda slot: (natural(slot.node), natural(slot.slot)))


def by_node(slots: Sequence[SlotFacts]) -> list[tuple[str, list[SlotFacts]]]:
    """The slots of each node; they come in order."""
    return [(node, list(group)) for node, group in groupby(slots, lambda slot: slot.node)]


def choose_form(status: JobStatus, *, cells: int, rows: int) -> Form:
    """The most detailed form that fits into the rows left for it."""
    if len(status.slots) <= rows:
        return Form.SLOTS
    nodes = by_node(status.slots)
    if len(nodes) <= rows:
        return Form.NODES
    per_row = _cells_per_row(nodes, cells)
    return Form.CELLS if -(-len(nodes) // per_row) <= rows else Form.ODD


def slots_section(
    status: JobStatus,
    form: Form,
    *,
    cells: int,
    glyphs: Glyphs,
    selected: tuple[str, str] | None = None,
) -> list[Line]:
    """The heading with its counts, then the slots in the chosen form."""
    lines = _heading(status, cells, glyphs)
    match form:
        case Form.SLOTS:
            lines += slot_table(status, cells, glyphs, selected) if status.slots else []
        case Form.NODES:
            lines += _node_table(status.slots, cells, glyphs)
        case Form.CELLS:
            lines += [_legend(status, cells, glyphs), *_cell_rows(status, cells, glyphs)]
        case Form.ODD:
            lines += _odd_only(status, cells, glyphs)
    return lines


def _heading(status: JobStatus, cells: int, glyphs: Glyphs) -> list[Line]:
    counts, step = status.counts, status.step_time.measured_s
    told = [f"{counts.in_use:,} in use", f"{counts.standby:,} standby"]
    told += [f"{counts.emptied:,} emptied"] if counts.emptied else []
    told += [f"{counts.spare:,} spare"] if counts.spare else []
    told += [f"{counts.starting:,} starting"]
    told += [f"{counts.draining:,} draining"] if counts.draining else []
    told += [f"{counts.gone:,} gone"]
    slowest = next((slot for slot in status.slots if slot.sets_step), None)
    set_by = f", set by {glyphs.name(slowest.place)}" if slowest else ""
    told += [] if step is None else [f"step {numbers.step_time(step)}{set_by}"]
    nodes = numbers.counted(counts.nodes, "node")
    title = (Span("Slots", Role.NAME), Span("  "))
    row = title + join([line(text) for text in told], glyphs.between)
    if step is not None and width(row) > cells:
        told[-1] = nodes
    rows = facts([line(text) for text in told], cells - width(title), glyphs)
    return hang(title, rows)


# --- a node a row ------------------------------------------------------------------------------


def _node_table(slots: Sequence[SlotFacts], cells: int, glyphs: Glyphs) -> list[Line]:
    table = [
        Column("NODE"),
        Column("SLOTS"),
        Column("KIND", leaves=2),
        Column("RANKS", right=True),
        Column("MS", right=True),
        Column("WORST", right=True),
        Column("MEM GB", right=True, leaves=5),
        Column(f"{glyphs.degree}C", right=True, leaves=4, least=2),
    ]
    rows = [_node_row(node, group, glyphs) for node, group in by_node(slots)]
    return columns(table, rows, cells, mark=glyphs.cut)


def _node_row(node: str, slots: list[SlotFacts], glyphs: Glyphs) -> list[Line]:
    odd = any(is_odd(slot) for slot in slots)
    name = line(node_name(node, glyphs))
    if odd:
        name = line(Span(node_name(node, glyphs), Role.NAME), Span(glyphs.look, Role.LOOK))
    timed = [slot for slot in slots if slot.micro_step_s is not None]
    median = statistics.median(slot.micro_step_s or 0.0 for slot in timed) if timed else None
    worst = max(timed, key=lambda slot: slot.micro_step_s or 0.0, default=None)
    fullest = max(slots, key=lambda slot: slot.memory_used_bytes or 0)
    temperatures = [slot.temperature_c for slot in slots if slot.temperature_c is not None]
    worst_text = "-"
    if worst is not None:
        worst_text = f"{numbers.milliseconds(worst.micro_step_s)} {glyphs.name(worst.slot)}"
    return [
        name,
        _marks(slots, glyphs),
        line(glyphs.name(", ".join(sorted({short_kind(slot.kind) for slot in slots})))),
        line(numbers.count(sum(len(slot.ranks) for slot in slots))),
        line(numbers.milliseconds(median)),
        line(worst_text),
        line(numbers.gigabytes_pair(fullest.memory_used_bytes, fullest.memory_total_bytes)),
        line(str(max(temperatures)) if temperatures else "-"),
    ]


# --- a slot a mark -----------------------------------------------------------------------------


def is_odd(slot: SlotFacts) -> bool:
    """Whether it gets its node a bold name."""
    is_slower = slot.against_kind is not None and slot.against_kind >= GRADES[0]
    return slot.state in {"gone", "emptied"} or slot.hung or slot.slow or is_slower


def _marks(slots: Sequence[SlotFacts], glyphs: Glyphs) -> Line:
    """One mark per slot; neighbours of one role are one span, which keeps 512 slots cheap."""
    marks = [mark_of(slot, glyphs) for slot in slots]
    return tuple(
        Span("".join(mark for mark, _ in group), role)
        for role, group in groupby(marks, lambda each: each[1])
    )


def _legend(status: JobStatus, cells: int, glyphs: Glyphs) -> Line:
    usual = [
        slot.micro_step_s
        for slot in status.slots
        if slot.micro_step_s is not None and not is_odd(slot)
    ]
    median = numbers.step_time(statistics.median(usual)) if usual else "usual"
    usual_mark, grades = glyphs.against_kind[0], glyphs.against_kind[1:]
    bounds = [f"{bound:g} {glyphs.times}" for bound in GRADES]
    told = [line(Span(usual_mark, Role.QUIET), f" {median}")]
    roles = (Role.LOOK, Role.LOOK, Role.FAILED)
    for mark, bound, role in zip(grades, bounds, roles, strict=True):
        told.append(line(Span(mark, role), f" {bound}"))
    told += [
        line(Span(glyphs.standby, Role.QUIET), " standby"),
        line(Span(glyphs.look, Role.LOOK), " emptied"),
        line(Span(glyphs.waiting, Role.LIVE), " starting"),
        line(Span(glyphs.failed, Role.FAILED), " gone"),
    ]
    return cut(join(told, "  ", Role.TEXT), cells, glyphs.cut)


def _short_names(nodes: Sequence[str]) -> list[str]:
    """Names without the front they have in common, which ends before a number."""
    first, last = min(nodes), max(nodes)
    pairs = zip(first, last, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
    front = first[:same].rstrip("0123456789") if len(nodes) > 1 else ""
    return [node[len(front) :] or node for node in nodes]


def _cells_per_row(nodes: Sequence[tuple[str, list[SlotFacts]]], cells: int) -> int:
    return max((cells + _CELL_GAP) // (_cell_width(nodes) + _CELL_GAP), 1)


def _cell_width(nodes: Sequence[tuple[str, list[SlotFacts]]]) -> int:
    names = _short_names([node for node, _ in nodes])
    return max(map(width_of, names)) + 1 + max(len(group) for _, group in nodes)


def _cell_rows(status: JobStatus, cells: int, glyphs: Glyphs) -> list[Line]:
    nodes = by_node(status.slots)
    names = [glyphs.name(name) for name in _short_names([node for node, _ in nodes])]
    name_width = max(map(width_of, names))
    slot_count = max(len(group) for _, group in nodes)
    drawn = [
        _cell(name, group, name_width, slot_count, glyphs)
        for name, (_, group) in zip(names, nodes, strict=True)
    ]
    per_row = _cells_per_row(nodes, cells)
    rows = [drawn[begin : begin + per_row] for begin in range(0, len(drawn), per_row)]
    gap = " " * _CELL_GAP
    return [cut(trim(join(row, gap, Role.TEXT)), cells, glyphs.cut) for row in rows]


def _cell(
    name: str, slots: list[SlotFacts], name_width: int, slot_count: int, glyphs: Glyphs
) -> Line:
    pad = " " * (name_width - width_of(name))
    room = Span(" " * (slot_count - len(slots)))
    if any(is_odd(slot) for slot in slots):
        front = (Span(pad), Span(name, Role.NAME), Span(glyphs.look, Role.LOOK))
    else:
        front = (Span(pad), Span(name, Role.QUIET), Span(" "))
    return (*front, *_marks(slots, glyphs), room)


def _odd_only(status: JobStatus, cells: int, glyphs: Glyphs) -> list[Line]:
    nodes = by_node(status.slots)
    usual = [group for _, group in nodes if not any(is_odd(slot) for slot in group)]
    slots = [slot for group in usual for slot in group]
    times = [slot.micro_step_s for slot in slots if slot.micro_step_s is not None]
    spread = ""
    if times:
        low, high = numbers.milliseconds(min(times)), numbers.milliseconds(max(times))
        spread = f", {low} to {high} ms"
    told = f"{numbers.counted(len(usual), 'node')} as usual"
    told += f" ({numbers.counted(len(slots), 'slot')}{spread})"
    return [cut(line(Span(told, Role.QUIET)), cells, glyphs.cut)]
