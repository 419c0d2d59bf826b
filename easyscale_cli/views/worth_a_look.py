"""The few slots that are worth a look, worst first by what they cost the step; pure."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from easyscale.job_status import JobStatus, SlotFacts
from easyscale_cli.views import numbers
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import Column, columns, line
from easyscale_cli.views.slot_rows import GRADES, HOT_C, node_name
from easyscale_cli.views.style import Line, Role, Span

MOST_ROWS: Final = 5
_FULL_SHARE: Final = 0.95
#: Waiting for data for more than this share of the step is worth a look, more than this a word.
_DATA_SHARE: Final = 0.1
_DATA_S: Final = 0.01


def worth_a_look(
    status: JobStatus, *, cells: int, glyphs: Glyphs, most: int = MOST_ROWS
) -> list[Line]:
    """At most five rows, worst first by what it costs the step; nothing when all is as usual."""
    step_s = status.step_time.measured_s
    odd = [slot for slot in status.slots if _cost(slot, step_s) is not None]
    if not odd:
        return []
    runs = _runs(odd, step_s, glyphs)
    runs.sort(key=lambda run: _cost(run[0], step_s) or ())
    title = line(Span("Worth a look", Role.NAME), f"  {len(odd):,} of {len(status.slots):,} slots")
    table = [
        Column("NODE"),
        Column("SLOT"),
        Column("STATE"),
        Column("WHAT", is_prose=True),
        Column("SINCE", right=True),
    ]
    shown = runs[:most]
    rows = [_look_row(run, step_s, glyphs) for run in shown]
    lines = [title, *columns(table, rows, cells, mark=glyphs.cut)]
    if len(runs) > len(shown):
        lines.append(line(Span(f"{glyphs.cut} {len(runs) - len(shown)} more: s", Role.QUIET)))
    return lines


def _cost(slot: SlotFacts, step_s: float | None) -> tuple[float, ...] | None:
    """Where it stands in the list: what happened to it, then how much of the step it takes."""
    ratio = slot.against_kind or 0.0
    waits = bool(step_s and slot.data_wait_s and slot.data_wait_s > _DATA_SHARE * step_s)
    total = slot.memory_total_bytes
    is_full = bool(total and (slot.memory_used_bytes or 0) > _FULL_SHARE * total)
    ranks = (
        slot.state == "gone",
        slot.hung,
        slot.state == "emptied",
        slot.sets_step and slot.slow,
        slot.slow,
        waits,
        (slot.temperature_c or 0) >= HOT_C,
        is_full,
    )
    return (float(ranks.index(True)), -ratio) if True in ranks else None


def _what(slot: SlotFacts, glyphs: Glyphs) -> str:
    if slot.note:
        return glyphs.prose(slot.note)
    told = []
    if slot.against_kind is not None and slot.against_kind >= GRADES[0]:
        told.append(numbers.ratio(slot.against_kind, times=glyphs.times, fine=True))
    if slot.data_wait_s and slot.data_wait_s >= _DATA_S:
        told.append(f"waits {numbers.step_time(slot.data_wait_s)} a step for data")
    if (slot.temperature_c or 0) >= HOT_C:
        told.append(f"{slot.temperature_c} {glyphs.degree}C")
    memory = numbers.gigabytes_pair(slot.memory_used_bytes, slot.memory_total_bytes)
    if not told and memory != "-":
        told.append(f"{memory} GB of memory in use")
    if slot.sets_step:
        told.append("sets the step")
    return ", ".join(told) or "-"


def _runs(slots: list[SlotFacts], step_s: float | None, glyphs: Glyphs) -> list[list[SlotFacts]]:
    """Neighbours of one node with the same story share a row."""

    def story(slot: SlotFacts) -> tuple[object, ...]:
        rank = (_cost(slot, step_s) or (0.0,))[0]
        return slot.node, slot.state, rank, _what(slot, glyphs)

    return [list(group) for _, group in groupby(slots, story)]


def _look_row(run: list[SlotFacts], step_s: float | None, glyphs: Glyphs) -> list[Line]:
    slot = run[0]
    if slot.state == "gone":
        state = line(Span(glyphs.failed, Role.FAILED), Span(" gone", Role.FAILED_NAME))
    else:
        words = ("gone", "hung", "emptied", "slow", "slow", "data", "hot", "full")
        word = "slow" if slot.slow else words[int((_cost(slot, step_s) or (4.0,))[0])]
        state = line(Span(glyphs.look, Role.LOOK), Span(f" {word}", Role.NAME))
    since = "" if slot.since_s is None else numbers.duration(slot.since_s)
    return [
        line(Span(node_name(slot.node, glyphs), Role.NAME)),
        line(glyphs.name(slot_run([each.slot for each in run]))),
        state,
        line(_what(slot, glyphs)),
        line(since),
    ]


def slot_run(slots: Sequence[str]) -> str:
    """A run of slots in short: `cuda:3-4`, `cuda:0, cuda:2`."""
    fronts = {slot.rstrip("0123456789") for slot in slots}
    tails = [slot[len(slot.rstrip("0123456789")) :] for slot in slots]
    if len(fronts) == 1 and all(tails):
        return fronts.pop() + numbers.spans([int(tail) for tail in tails])
    return ", ".join(slots)
