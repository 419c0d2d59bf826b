"""The slots that a job's nodes offer, as `devices` lists them; pure."""

from collections.abc import Sequence

import msgspec

from easyscale.job_status import SlotFacts
from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.layout import Column, columns, line
from easyscale_cli.views.slots import in_order
from easyscale_cli.views.style import Line, Role, Span

_SHOWN = ("node", "slot", "kind", "state", "ranks", "pid", "note")


def devices_lines(slots: Sequence[SlotFacts], *, cells: int, glyphs: Glyphs) -> list[Line]:
    """One row per slot; the node's name stands once."""
    table = [
        Column("NODE"),
        Column("SLOT"),
        Column("KIND", leaves=1),
        Column("STATE"),
        Column("RANKS"),
        Column("NOTE", is_prose=True),
    ]
    rows: list[list[Line]] = []
    before = ""
    for slot in in_order(slots):
        node = "" if slot.node == before else glyphs.name(slot.node)
        before = slot.node
        rows.append(
            [
                line(Span(node, Role.NAME)),
                line(glyphs.name(slot.slot)),
                line(glyphs.name(short_kind(slot.kind) or "?")),
                line(slot.state.replace("_", " ")),
                line(numbers.spans(slot.ranks) if slot.ranks else "-"),
                line(glyphs.prose(slot.note or "")),
            ]
        )
    return columns(table, rows, cells, mark=glyphs.cut, whole=len(rows))


def devices_json(job: str, slots: Sequence[SlotFacts], notes: Sequence[str]) -> str:
    """The same as one object; its slots have the names that `status --json` gives them."""
    facts = [
        {name: value for name, value in msgspec.to_builtins(slot).items() if name in _SHOWN}
        for slot in in_order(slots)
    ]
    value = {"version": plain.JSON_VERSION, "job": job, "slots": facts, "notes": list(notes)}
    return plain.to_json(value)
