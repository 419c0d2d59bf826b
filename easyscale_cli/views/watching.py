"""What a person sees who watches a job: the status, all changes, or the keys; pure.

A key makes a new choice of the old one; the frame follows from the choice, the status, the window.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from easyscale.job_status import JobStatus
from easyscale_cli.views.changes import change_table, changes_of
from easyscale_cli.views.layout import cut, line, wrap
from easyscale_cli.views.slots import Form
from easyscale_cli.views.status import Window, form_of, status_lines
from easyscale_cli.views.style import Line, Role, Span

_BACK: Final = "q quit  e back to the status"
_KEYS: Final = (
    ("q", "quit; the job goes on"),
    ("s", "slots: one a row, by node, by mark, only the odd"),
    ("e", "events: all changes, newest first; again: back"),
    ("?", "this page; any key: back"),
)
#: Title, a blank line, the heading of the table, and the keys with a blank line before them.
_AROUND_A_TABLE: Final = 5


class Shown(Enum):
    """Which page is on the screen."""

    STATUS = auto()
    EVENTS = auto()
    KEYS = auto()


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person chose; without a form the window decides."""

    shown: Shown = Shown.STATUS
    form: Form | None = None


def press(choice: Choice, key: str, status: JobStatus, window: Window) -> Choice | None:
    """What is shown after a key; None: the person leaves."""
    if key == "q":
        return None
    if choice.shown is Shown.KEYS:
        return replace(choice, shown=Shown.STATUS)
    match key:
        case "e":
            leaves = choice.shown is Shown.EVENTS
            return replace(choice, shown=Shown.STATUS if leaves else Shown.EVENTS)
        case "?":
            return replace(choice, shown=Shown.KEYS)
        case "s" if choice.shown is Shown.STATUS:
            return replace(choice, form=_next_form(status, replace(window, form=choice.form)))
        case _:
            return choice


def _next_form(status: JobStatus, window: Window) -> Form | None:
    """The next less detailed one; after the last the window decides again."""
    forms = list(Form)
    following = forms.index(form_of(status, window)) + 1
    return forms[following] if following < len(forms) else None


def frame_lines(status: JobStatus, choice: Choice, window: Window) -> list[Line]:
    """What stands on the screen, in at most the rows of the window."""
    match choice.shown:
        case Shown.STATUS:
            return status_lines(status, replace(window, form=choice.form))
        case Shown.EVENTS:
            return _events(status, window)
        case Shown.KEYS:
            return _keys(window)


def _events(status: JobStatus, window: Window) -> list[Line]:
    changes = changes_of(status.changes.last)
    room = max(window.rows - _AROUND_A_TABLE, 1)
    table = change_table(
        changes[:room], status.at, window.cells, glyphs=window.glyphs, zone=window.zone
    )
    name = window.glyphs.name(status.job.id)
    title = line(Span(name, Role.NAME), Span(f"  {status.changes.count:,} changes", Role.QUIET))
    rows = [title, (), *(table if changes else [line("nothing has changed yet")])]
    keys = cut(line(Span(_BACK, Role.QUIET)), window.cells, window.glyphs.cut)
    return [*rows[: window.rows - 2], (), keys]


def _keys(window: Window) -> list[Line]:
    rows = [
        row
        for key, text in _KEYS
        for row in wrap(line("  ", Span(key, Role.NAME), f"  {text}"), window.cells)
    ]
    return [line(Span("Keys", Role.NAME)), (), *rows][: window.rows]
