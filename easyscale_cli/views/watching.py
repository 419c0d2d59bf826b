"""What a person sees who watches a job: the status, a list, or the keys; pure.

A key makes a new choice of the old one; the frame follows from the choice, the sight, the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

import msgspec

from easyscale.job_status import JobStatus, SlotFacts
from easyscale.plan_facts import PlanFacts
from easyscale_cli.views import numbers
from easyscale_cli.views.changes import change_table, changes_of
from easyscale_cli.views.filters import LONGEST, events_with, log_lines_with, slots_with
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.layout import cut, join, line, trim, wrap
from easyscale_cli.views.log_lines import LogLine
from easyscale_cli.views.plan import plan_lines
from easyscale_cli.views.slots import Form, in_order
from easyscale_cli.views.status import LEAST_ROWS, Window, form_of, is_too_small, status_lines
from easyscale_cli.views.style import Line, Role, Span

_BACK: Final = "q quit  {key} back to the status  j k move  / filter  ? help"
_TYPING: Final = "enter keeps the filter, escape drops it"
_HELP: Final = (
    ("q", "quit; the job goes on"),
    ("s", "slots: one a row, by node, by mark, only the odd"),
    ("e", "events: all changes, newest first; again: back"),
    ("l", "logs: what the worker of the selected slot prints; again: back"),
    ("p", "plan: who computes what, and why; again: back"),
    ("j k", "or the arrows: select a slot, or move through a list"),
    ("/", "filter: a node, a slot, r13, or any word"),
    ("esc", "back to the status; then without filter and selection"),
    ("?", "this page; any key: back"),
)
#: Title, a blank line, and the keys with a blank line before them.
_AROUND_A_LIST: Final = 4
_PAGE_ROWS: Final = 10
_MOVES: Final = {"j": 1, "down": 1, "k": -1, "up": -1, "page down": 10, "page up": -_PAGE_ROWS}


class Shown(Enum):
    """Which page is on the screen."""

    STATUS = auto()
    EVENTS = auto()
    LOGS = auto()
    PLAN = auto()
    KEYS = auto()


_PAGES: Final = {"e": Shown.EVENTS, "l": Shown.LOGS, "p": Shown.PLAN}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person chose; without a form the window decides."""

    shown: Shown = Shown.STATUS
    form: Form | None = None
    #: (node, slot) that details and logs are shown of.
    selected: tuple[str, str] | None = None
    filter: str = ""
    #: The filter that is being typed; None: none is.
    typed: str | None = None
    #: How far a list was moved.
    moved: int = 0

    @property
    def word(self) -> str:
        """What is filtered by now."""
        return self.filter if self.typed is None else self.typed


@dataclass(frozen=True, slots=True)
class Sight:
    """What there is to be seen; the plan and the log only while they are looked at."""

    status: JobStatus
    plan: PlanFacts | None = None
    log: Sequence[LogLine] = ()
    #: Why there is no plan or log, in words.
    note: str = ""


# --- keys --------------------------------------------------------------------------------------


def press(choice: Choice, key: str, status: JobStatus, window: Window) -> Choice | None:
    """What is shown after a key; None: the person leaves."""
    if choice.typed is not None:
        return _type(choice, key)
    if key == "q":
        return None
    if choice.shown is Shown.KEYS:
        return replace(choice, shown=Shown.STATUS)
    match key:
        case "e" | "l" | "p":
            return _turn_to(choice, _PAGES[key], status)
        case "?":
            return replace(choice, shown=Shown.KEYS)
        case "/":
            return replace(choice, typed="")
        case "escape" if choice.shown is not Shown.STATUS:
            return replace(choice, shown=Shown.STATUS, moved=0)
        case "escape":
            return replace(choice, filter="", selected=None)
        case "s" if choice.shown is Shown.STATUS:
            return replace(choice, form=_next_form(status, replace(window, form=choice.form)))
        case _ if key in _MOVES:
            return _move(choice, _MOVES[key], status)
        case _:
            return choice


def _type(choice: Choice, key: str) -> Choice:
    typed = choice.typed or ""
    match key:
        case "enter":
            return replace(choice, filter=typed, typed=None, moved=0)
        case "escape":
            return replace(choice, filter="", typed=None, moved=0)
        case "backspace":
            return replace(choice, typed=typed[:-1])
        case _ if len(key) == 1:
            return replace(choice, typed=(typed + key)[:LONGEST])
        case _:
            return choice


def _turn_to(choice: Choice, page: Shown, status: JobStatus) -> Choice:
    if choice.shown is page:
        return replace(choice, shown=Shown.STATUS, moved=0)
    if page is Shown.LOGS and choice.selected is None:
        choice = _move(replace(choice, shown=Shown.STATUS), 1, status)
    return replace(choice, shown=page, moved=0)


def _move(choice: Choice, by: int, status: JobStatus) -> Choice:
    if choice.shown is not Shown.STATUS:
        # A log is read from its end.
        moved = choice.moved - by if choice.shown is Shown.LOGS else choice.moved + by
        return replace(choice, moved=max(0, moved))
    places = [(slot.node, slot.slot) for slot in _filtered(choice, status)]
    if not places:
        return choice
    if choice.selected not in places:
        return replace(choice, selected=places[0 if by > 0 else -1])
    at = places.index(choice.selected) + by
    return replace(choice, selected=places[min(max(at, 0), len(places) - 1)])


def _filtered(choice: Choice, status: JobStatus) -> list[SlotFacts]:
    return in_order(slots_with(status.slots, choice.word) if choice.word else status.slots)


def _next_form(status: JobStatus, window: Window) -> Form | None:
    """The next less detailed one; after the last the window decides again."""
    forms = list(Form)
    following = forms.index(form_of(status, window)) + 1
    return forms[following] if following < len(forms) else None


# --- frames ------------------------------------------------------------------------------------


def frame_lines(sight: Sight, choice: Choice, window: Window) -> list[Line]:
    """What stands on the screen, in at most the rows of the window."""
    if is_too_small(window):
        return status_lines(sight.status, window)
    match choice.shown:
        case Shown.STATUS:
            return _status(sight.status, choice, window)
        case Shown.EVENTS:
            return _events(sight.status, choice, window)
        case Shown.LOGS:
            return _logs(sight, choice, window)
        case Shown.PLAN:
            return _plan(sight, choice, window)
        case Shown.KEYS:
            return _keys(window)


def _status(status: JobStatus, choice: Choice, window: Window) -> list[Line]:
    cells, glyphs = window.cells, window.glyphs
    further = []
    slot = next((s for s in status.slots if (s.node, s.slot) == choice.selected), None)
    if slot is not None:
        further.append(cut(_details(slot, window), cells, glyphs.cut))
    if choice.word and choice.typed is None:
        told = f"{len(_filtered(choice, status)):,} of {len(status.slots):,} slots"
        row = line(Span(f"/{glyphs.name(choice.word)}", Role.NAME), f"  {told}")
        further.append(cut(row, cells, glyphs.cut))
    further = further[: max(window.rows - LEAST_ROWS, 0)]
    narrowed = msgspec.structs.replace(status, slots=tuple(_filtered(choice, status)))
    room = replace(
        window,
        rows=window.rows - len(further),
        form=choice.form,
        selected=choice.selected,
    )
    *frame, keys = status_lines(narrowed, room)
    return [*frame, *further, _typing(choice, window) if choice.typed is not None else keys]


def _details(slot: SlotFacts, window: Window) -> Line:
    """All of one slot on a line, whatever the form shows of it."""
    glyphs = window.glyphs
    told = [glyphs.name(short_kind(slot.kind)) or "-"]
    if slot.state != "in_use":
        told.append(slot.state)
    if slot.ranks:
        told.append(f"rank{'s' if len(slot.ranks) > 1 else ''} {numbers.spans(slot.ranks)}")
    if slot.micro_step_s is not None:
        against = ""
        if slot.against_kind is not None:
            against = f", {numbers.ratio(slot.against_kind, times=glyphs.times)} its kind"
        told.append(f"{numbers.step_time(slot.micro_step_s)}{against}")
    if slot.wait_s is not None:
        told.append(f"waits {numbers.step_time(slot.wait_s)}")
    if slot.pid is not None:
        told.append(f"pid {slot.pid}")
    told += [glyphs.prose(slot.note)] if slot.note else []
    place = Span(f" {glyphs.name(slot.place)}", Role.NAME)
    facts = join([line(each) for each in told], glyphs.between)
    return (Span(glyphs.here, Role.LIVE), place, Span("  "), *facts)


def _events(status: JobStatus, choice: Choice, window: Window) -> list[Line]:
    events = status.changes.last
    changes = changes_of(events_with(events, choice.word) if choice.word else events)
    told = f"{status.changes.count:,} changes"
    if choice.word:
        told += f", {len(changes):,} of the newest with /{window.glyphs.name(choice.word)}"
    title = _title(status, told, window)
    if not changes:
        nothing = "none of the newest changes says so" if choice.word else "nothing has changed yet"
        return _list(title, [], [line(nothing)], choice=choice, window=window)
    # Only what can be seen is drawn: a long run has thousands.
    top = min(choice.moved, len(changes) - 1)
    head, *rows = change_table(
        changes[top : top + window.rows],
        status.at,
        window.cells,
        glyphs=window.glyphs,
        zone=window.zone,
    )
    return _list(title, [head], rows, choice=replace(choice, moved=0), window=window)


def _logs(sight: Sight, choice: Choice, window: Window) -> list[Line]:
    glyphs = window.glyphs
    lines = log_lines_with(sight.log, choice.word) if choice.word else sight.log
    place = glyphs.name("/".join(choice.selected)) if choice.selected else "no slot"
    told = f"{place}  what its worker prints"
    if choice.word:
        told += f" with /{glyphs.name(choice.word)}"
    rows = [cut(_log_row(each, window), window.cells, glyphs.cut) for each in lines]
    if sight.note or not rows:
        rows = wrap(line(glyphs.prose(sight.note or "nothing yet")), window.cells)
    room = max(window.rows - _AROUND_A_LIST, 1)
    back = min(choice.moved, max(len(rows) - room, 0))
    shown = replace(choice, moved=max(len(rows) - room - back, 0))
    return _list(_title(sight.status, told, window), [], rows, choice=shown, window=window)


def _log_row(told: LogLine, window: Window) -> Line:
    rank = "" if told.rank is None else f"r{told.rank}"
    bar = window.glyphs.source
    return trim(line(Span(f"{rank:>5} {bar} ", Role.QUIET), window.glyphs.name(told.text)))


def _plan(sight: Sight, choice: Choice, window: Window) -> list[Line]:
    if sight.plan is None:
        rows = wrap(line(window.glyphs.prose(sight.note or "nothing yet")), window.cells)
        return _list(_title(sight.status, "plan", window), [], rows, choice=choice, window=window)
    title, *rows = plan_lines(
        sight.plan, cells=window.cells, glyphs=window.glyphs, zone=window.zone, explain=True
    )
    return _list(title, [], rows, choice=choice, window=window)


def _list(
    title: Line, head: list[Line], rows: Sequence[Line], *, choice: Choice, window: Window
) -> list[Line]:
    """A page whose rows may be more than the window has."""
    room = max(window.rows - _AROUND_A_LIST - len(head), 1)
    top = min(choice.moved, max(len(rows) - room, 0))
    key = next(key for key, page in _PAGES.items() if page is choice.shown)
    keys = line(Span(_BACK.format(key=key), Role.QUIET))
    last = cut(keys, window.cells, window.glyphs.cut)
    if choice.typed is not None:
        last = _typing(choice, window)
    return [title, (), *head, *rows[top : top + room], (), last]


def _title(status: JobStatus, told: str, window: Window) -> Line:
    name = window.glyphs.name(status.job.id)
    row = line(Span(name, Role.NAME), Span(f"  {told}", Role.QUIET))
    return cut(row, window.cells, window.glyphs.cut)


def _typing(choice: Choice, window: Window) -> Line:
    typed = window.glyphs.name(choice.typed or "")
    row = line(Span(f"/{typed}", Role.NAME), Span(f"_  {_TYPING}", Role.QUIET))
    return cut(row, window.cells, window.glyphs.cut)


def _keys(window: Window) -> list[Line]:
    rows = [
        row
        for key, text in _HELP
        for row in wrap(line("  ", Span(f"{key:<3}", Role.NAME), f"  {text}"), window.cells)
    ]
    return [line(Span("Keys", Role.NAME)), (), *rows][: window.rows]
