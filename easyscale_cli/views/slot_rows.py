"""The slots of a job, one a row: their shares of a step, or the ranks that run there; pure."""

from typing import Final

from easyscale.job_status import JobStatus, SlotFacts
from easyscale_cli.views import numbers
from easyscale_cli.views.cells import cut_front
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.launch import WIDE
from easyscale_cli.views.layout import Column, band, columns, line
from easyscale_cli.views.style import Line, Role, Span

_BAND: Final = 14
_WIDE_BAND: Final = 34
_NODE_CELLS: Final = 24
#: From these ratios to its kind on a slot has the next mark.
GRADES: Final = (1.1, 1.5, 2.0)
HOT_C: Final = 80


def node_name(node: str, glyphs: Glyphs) -> str:
    """A node's name in a table; a long one loses its front."""
    return cut_front(glyphs.name(node), _NODE_CELLS, glyphs.cut)


def slot_table(
    status: JobStatus, cells: int, glyphs: Glyphs, selected: tuple[str, str] | None
) -> list[Line]:
    """A row a slot; of a job whose steps nobody knows, what runs there."""
    if status.job.mode != "elastic":
        return _rank_table(status, cells, glyphs, selected)
    is_wide = cells >= WIDE
    step = status.step_time.measured_s
    room = _WIDE_BAND if is_wide else _BAND
    band_header = "STEP" if step is None else f"STEP {numbers.step_time(step)}"
    table = [
        Column("NODE"),
        Column("SLOT"),
        Column("KIND", leaves=2),
        Column("RANKS"),
        Column("MS", right=True),
        Column("VS KIND", least=12),
        Column(band_header, leaves=3, least=room),
        Column("UTIL%", right=True, leaves=6),
        Column("MEM GB", right=True, leaves=5),
        Column(f"{glyphs.degree}C", right=True, leaves=4, least=2),
    ]
    if is_wide:
        table += [
            Column("COMPUTE ms", right=True, leaves=7),
            Column("WAITS ms", right=True, leaves=8),
            Column("DATA ms", right=True, leaves=9),
            Column("PID", right=True, leaves=10),
        ]
    rows: list[list[Line]] = []
    last = None
    for slot in status.slots:
        row = _slot_row(slot, step, room, glyphs, is_wide=is_wide)
        name = "" if slot.node == last else node_name(slot.node, glyphs)
        if (slot.node, slot.slot) == selected:
            row[0] = (Span(glyphs.here, Role.LIVE), Span(glyphs.name(slot.slot), Role.NAME))
        rows.append([line(Span(name, Role.NAME)), *row])
        last = slot.node
    return columns(table, rows, cells, mark=glyphs.cut)


def _rank_table(
    status: JobStatus, cells: int, glyphs: Glyphs, selected: tuple[str, str] | None
) -> list[Line]:
    """The slots of a job whose steps nobody knows: who runs there, and how it is."""
    table = [
        Column("NODE"),
        Column("SLOT"),
        Column("RANKS"),
        Column("STATE"),
        Column("PID", right=True),
        Column("UTIL%", right=True, leaves=2),
        Column("MEM GB", right=True, leaves=1),
        Column("NOTE", is_prose=True),
    ]
    rows: list[list[Line]] = []
    last = None
    for slot in status.slots:
        name = "" if slot.node == last else node_name(slot.node, glyphs)
        last, usage = slot.node, slot.utilisation_share
        place = line(glyphs.name(slot.slot))
        if (slot.node, slot.slot) == selected:
            place = (Span(glyphs.here, Role.LIVE), Span(glyphs.name(slot.slot), Role.NAME))
        rows.append(
            [
                line(Span(name, Role.NAME)),
                place,
                line(numbers.spans(slot.ranks) if slot.ranks else "-"),
                _state(slot, glyphs) if slot.state != "in_use" else line("in use"),
                line("-" if slot.pid is None else str(slot.pid)),
                line("-" if usage is None else f"{usage * 100:.0f}"),
                line(numbers.gigabytes_pair(slot.memory_used_bytes, slot.memory_total_bytes)),
                line(glyphs.prose(slot.note or "")),
            ]
        )
    return columns(table, rows, cells, mark=glyphs.cut)


def _slot_row(
    slot: SlotFacts, step_s: float | None, room: int, glyphs: Glyphs, *, is_wide: bool
) -> list[Line]:
    number = Role.NAME if slot.slow else Role.TEXT
    hot = Role.NAME if (slot.temperature_c or 0) >= HOT_C else Role.TEXT
    usage = slot.utilisation_share
    row: list[Line] = [
        line(glyphs.name(slot.slot)),
        line(glyphs.name(short_kind(slot.kind))),
        line(numbers.spans(slot.ranks)),
        line(Span(numbers.milliseconds(slot.micro_step_s), number)),
        _against_kind(slot, glyphs),
        _step_band(slot, step_s, room, glyphs),
        line("-" if usage is None else f"{usage * 100:.0f}"),
        line(numbers.gigabytes_pair(slot.memory_used_bytes, slot.memory_total_bytes)),
        line(Span("-" if slot.temperature_c is None else str(slot.temperature_c), hot)),
    ]
    if is_wide:
        times = (slot.busy_s, slot.wait_s, slot.data_wait_s)
        row += [line(numbers.milliseconds(value)) for value in times]
        row.append(line("-" if slot.pid is None else str(slot.pid)))
    return row


def _against_kind(slot: SlotFacts, glyphs: Glyphs) -> Line:
    if slot.state != "in_use":
        return _state(slot, glyphs)
    ratio = numbers.ratio(slot.against_kind, times=glyphs.times)
    if slot.hung or slot.slow:
        word = "hung" if slot.hung else "slow"
        return line(
            Span(ratio, Role.NAME), " ", Span(glyphs.look, Role.LOOK), Span(f" {word}", Role.NAME)
        )
    return line(ratio)


def _step_band(slot: SlotFacts, step_s: float | None, room: int, glyphs: Glyphs) -> Line:
    if not step_s or not slot.ranks or slot.busy_s is None:
        return band(0, 0.0, room, glyphs)
    pieces = len(slot.ranks)
    return band(pieces, slot.busy_s / pieces / step_s, room, glyphs)


def _state(slot: SlotFacts, glyphs: Glyphs) -> Line:
    mark, role = mark_of(slot, glyphs)
    word = Role.FAILED_NAME if slot.state == "gone" else Role.TEXT
    return line(Span(mark, role), " ", Span(slot.state.replace("_", " "), word))


def mark_of(slot: SlotFacts, glyphs: Glyphs) -> tuple[str, Role]:
    """One mark for its state, or for how it is against its kind."""
    match slot.state:
        case "gone":
            return glyphs.failed, Role.FAILED
        case "emptied":
            return glyphs.look, Role.LOOK
        case "standby" | "spare":
            return glyphs.standby, Role.QUIET
        case "starting":
            return glyphs.waiting, Role.LIVE
        case "draining":
            return glyphs.left, Role.LIVE
        case _:
            ratio = slot.against_kind or 1.0
            grade = sum(ratio >= bound for bound in GRADES)
            roles = (Role.QUIET, Role.LOOK, Role.LOOK, Role.FAILED)
            return glyphs.against_kind[grade], roles[grade]
