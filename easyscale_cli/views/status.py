"""The screen of `easyscale status JOB`: one frozen value and a window in, lines out; pure."""

from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

import msgspec

from easyscale.job_status import JobFacts, JobStatus
from easyscale.model import JobState
from easyscale_cli.views import numbers
from easyscale_cli.views.changes import changes_section
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.launch import WIDE
from easyscale_cli.views.layout import (
    bar,
    cut,
    ends,
    facts,
    hang,
    join,
    line,
    sparkline,
    spread,
    width,
    wrap,
)
from easyscale_cli.views.slots import Form, choose_form, in_order, slots_section
from easyscale_cli.views.style import Line, Role, Span
from easyscale_cli.views.worth_a_look import MOST_ROWS, worth_a_look

#: What the rest of the frame takes; the slots have what is left, and at least so many rows.
_OTHER_ROWS: Final = 16
_LEAST_ROWS: Final = 8
_SPARK: Final = 24
_WIDE_SPARK: Final = 60
_LEAST_CELLS: Final = 60
LEAST_ROWS: Final = 16
_LEVELS: Final = {"same-kind": "D1", "heterogeneous": "D2"}
_KEYS: Final = "q quit  s slots  e events  l logs  p plan  / filter  ? help"
_LONG_TIMELINE: Final = 6
_SHORT_TIMELINE: Final = 3


@dataclass(frozen=True, slots=True)
class Window:
    """What the screen is drawn for; the zone is the reader's, None the local one."""

    cells: int
    rows: int
    glyphs: Glyphs
    zone: tzinfo | None = None
    #: The form that a person chose; it sticks while it fits.
    form: Form | None = None
    has_keys: bool = True
    #: (node, slot) that is marked among the slots.
    selected: tuple[str, str] | None = None


def is_too_small(window: Window) -> bool:
    """Whether the window has no room for a frame that changes."""
    return window.cells < _LEAST_CELLS or window.rows < LEAST_ROWS


def status_lines(status: JobStatus, window: Window) -> list[Line]:
    """One frame, which fits the window; with `--once` it is whole, and without its keys."""
    cells, rows = window.cells, window.rows
    status = msgspec.structs.replace(status, slots=tuple(in_order(status.slots)))
    if not window.has_keys:
        return _frame(status, window, changes=_LONG_TIMELINE, look=MOST_ROWS)
    if is_too_small(window):
        text = f"the window is {cells}x{rows}; status needs 60x16, --once prints anyhow"
        return wrap(line(text), cells)
    frame: list[Line] = []
    for changes, look in ((_LONG_TIMELINE, MOST_ROWS), (3, 3), (2, 2), (1, 1), (0, 1)):
        frame = _frame(status, window, changes=changes, look=look)
        if len(frame) <= rows:
            return frame
    return [*frame[: rows - 1], frame[-1]]


def _frame(status: JobStatus, window: Window, *, changes: int, look: int) -> list[Line]:
    cells, glyphs = window.cells, window.glyphs
    form = form_of(status, window)
    is_long = form in {Form.SLOTS, Form.NODES}
    shown = changes if is_long else min(changes, _SHORT_TIMELINE)
    sections = [_top(status, window)]
    if status.slots:
        sections.append(
            slots_section(status, form, cells=cells, glyphs=glyphs, selected=window.selected)
        )
        if form is not Form.SLOTS:
            sections.append(worth_a_look(status, cells=cells, glyphs=glyphs, most=look))
    sections.append(
        changes_section(
            status,
            cells=cells,
            rows=shown,
            glyphs=glyphs,
            zone=window.zone,
            has_generations=is_long,
        )
    )
    sections.append(_bottom(status, form, window))
    if window.has_keys:
        sections.append([cut(line(Span(_KEYS, Role.QUIET)), cells, glyphs.cut)])
    return [row for section in sections if section for row in ((), *section)][1:]


def form_of(status: JobStatus, window: Window) -> Form:
    """The person's choice where it fits, else the most detailed form that does."""
    rows = max(window.rows - _OTHER_ROWS, _LEAST_ROWS)
    best = choose_form(status, cells=window.cells, rows=rows)
    order = list(Form)
    if window.form is not None and order.index(window.form) >= order.index(best):
        return window.form
    return best


def state_mark(state: JobState, glyphs: Glyphs) -> Span:
    """The mark of a job's state; the word stands beside it."""
    match state:
        case JobState.RUNNING:
            return Span(glyphs.running, Role.GOOD)
        case JobState.WAITING | JobState.STARTING:
            return Span(glyphs.waiting, Role.LIVE)
        case JobState.RESTORING:
            return Span(glyphs.restored, Role.LIVE)
        case JobState.FINISHED:
            return Span(glyphs.done, Role.GOOD)
        case JobState.FAILED:
            return Span(glyphs.failed, Role.FAILED)
        case JobState.DRAINING | JobState.STOPPED:
            return Span(glyphs.left, Role.TEXT)


def _top(status: JobStatus, window: Window) -> list[Line]:
    job, cells, glyphs = status.job, window.cells, window.glyphs
    lines = [_title(status, window)]
    if job.steps and job.step is not None:
        lines.append(bar(job.step / job.steps, cells, glyphs))
    far = _how_far(status, cells, glyphs)
    lines += ends(far, _how_long(job, glyphs), cells, glyphs.cut)
    lines += _how_well(status, cells, glyphs)
    if job.note and job.state is not JobState.RUNNING:
        lines += wrap(line(glyphs.prose(job.note)), cells)
    if status.store is not None and not status.store.reachable:
        silent, refuses = numbers.elapsed(status.store.silent_s), status.store.refuses
        told = f" etcd silent for {silent}: this is what was known then; training goes on"
        if refuses:
            told = f" etcd has refused for {silent}: {glyphs.prose(refuses)}; training goes on"
        lines += wrap(line(Span(glyphs.look, Role.LOOK), Span(told, Role.NAME)), cells)
    return [row for row in lines if row]


def _title(status: JobStatus, window: Window) -> Line:
    job, glyphs = status.job, window.glyphs
    level = _LEVELS.get(job.determinism or "", job.determinism or "")
    rows = [
        line(
            Span(glyphs.name(job.id), Role.NAME),
            " ",
            state_mark(job.state, glyphs),
            Span(f" {job.state}", Role.NAME),
        ),
        line(numbers.generation(job.era, job.generation)),
        line(f"{job.mode} mode") if job.mode != "elastic" else (),
        line(numbers.counted(job.logical_workers, "logical worker"))
        if job.logical_workers is not None
        else (),
        line(glyphs.name(level)),
    ]
    title = join([row for row in rows if row], glyphs.between)
    now = line(Span(numbers.clock(status.at, window.zone), Role.QUIET))
    return spread(title, now, window.cells, glyphs.cut)


def _how_far(status: JobStatus, cells: int, glyphs: Glyphs) -> Line:
    job = status.job
    if job.step is None:
        return _how_many(status, glyphs)
    step = line(Span(f"step {numbers.count(job.step)}", Role.NAME))
    rows = [step]
    if job.steps:
        rows = [
            (*step, Span(f" of {numbers.count(job.steps)}", Role.QUIET)),
            line(numbers.percent(job.step / job.steps)),
        ]
    # A single epoch says nothing that the step does not; a wide window has room for it.
    if job.epochs is not None and (job.epochs > 1 or cells >= WIDE):
        rows.append(line(f"epoch {numbers.count(job.epoch)} of {numbers.count(job.epochs)}"))
    elif job.epochs is None:
        rows.append(line(f"epoch {numbers.count(job.epoch)}"))
    return join(rows, glyphs.between)


def _how_many(status: JobStatus, glyphs: Glyphs) -> Line:
    """What is known of a job whose steps are not."""
    ranks = sum(len(slot.ranks) for slot in status.slots)
    nodes = line(numbers.counted(status.counts.nodes, "node"))
    return join([line(Span(numbers.counted(ranks, "rank"), Role.NAME)), nodes], glyphs.between)


def _how_long(job: JobFacts, glyphs: Glyphs) -> Line:
    up = () if job.elapsed_s is None else line(f"up {numbers.duration(job.elapsed_s)}")
    left: Line = ()
    if job.left_s is not None:
        left = line(Span(f"{numbers.duration(job.left_s)} left", Role.NAME))
    return join([row for row in (up, left) if row], glyphs.between)


def _how_well(status: JobStatus, cells: int, glyphs: Glyphs) -> list[Line]:
    job = status.job
    speed = [line(f"{numbers.rate(job.steps_per_s)} steps/s")] if job.steps_per_s else []
    if job.samples_per_s:
        speed.append(line(f"{numbers.rate(job.samples_per_s)} {glyphs.name(job.unit)}/s"))
    right = join(speed, glyphs.between)
    name = next(iter(status.metrics), None)
    if name is None or status.metrics[name].last is None:
        return ends((), right, cells, glyphs.cut)
    metric = status.metrics[name]
    left = line(f"{glyphs.name(name)} ", Span(numbers.metric(metric.last), Role.NAME))
    if metric.not_finite_since is not None:
        since = f"{numbers.count(metric.not_finite_since)}"
        left = (*left, Span(f" {glyphs.look}", Role.LOOK), Span(f" since step {since}"))
    first = f"  from {numbers.metric(metric.first)}" if metric.first is not None else ""
    room = cells - width(left) - 1 - len(first) - width(right) - 2
    widest = _WIDE_SPARK if cells >= WIDE else _SPARK
    drawing = sparkline([value for _, value in metric.history], min(room, widest), glyphs)
    if drawing:
        left = (*left, Span(" "), Span(drawing, Role.LIVE), Span(first, Role.QUIET))
    return ends(left, right, cells, glyphs.cut)


def _bottom(status: JobStatus, form: Form, window: Window) -> list[Line]:
    """Snapshot and budget: on two lines where slots are few, on one where they are many."""
    budget, glyphs = status.budget, window.glyphs
    of = "" if budget.limit is None else f" of {budget.limit:,}"
    used = f"{budget.used:,}{of}"
    snapshot = _snapshot(status, glyphs)
    title = (Span("Snapshot", Role.NAME), Span("  "))
    room = window.cells - width(title)
    if form in {Form.CELLS, Form.ODD}:
        rows = [row for row in snapshot[:2] if row]
        rows.append(line(f"restarts {used}"))
        return hang(title, facts(rows, room, glyphs))
    free = line(Span("membership changes are free", Role.QUIET))
    told = [line(f"{used} restarts used"), free]
    if status.job.mode != "elastic":  # its script's checkpoints are its own
        return hang((Span("Budget", Role.NAME), Span("  ")), facts(told, room + 2, glyphs))
    return [
        *hang(title, facts(snapshot, room, glyphs)),
        *hang((Span("Budget", Role.NAME), Span("    ")), facts(told, room, glyphs)),
    ]


def _snapshot(status: JobStatus, glyphs: Glyphs) -> list[Line]:
    newest = status.snapshot
    if newest is None:
        return [line("none yet")]
    mark = Span(glyphs.done, Role.GOOD) if newest.verified else Span(glyphs.waiting, Role.LIVE)
    told = [f"step {numbers.count(newest.step)}"]
    told += [] if newest.bytes is None else [numbers.data_size(newest.bytes)]
    told += [] if newest.age_s is None else [f"{numbers.duration(newest.age_s)} ago"]
    rows = [line(mark, " " + ", ".join(told))]
    if newest.next_step is not None:
        rows.append(line(f"next at {numbers.count(newest.next_step)}"))
    if newest.keep is not None:
        rows.append(line(f"keeps {newest.keep}"))
    return rows
