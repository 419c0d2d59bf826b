"""How a launch ends on the screen: the summary with the digest, or the first cause; pure.

Both are the last thing printed, open at the sides, so that digest, paths and source can be copied.
"""

import signal
from typing import Final

from easyscale.errors import ExitCode
from easyscale.job_status import JobStatus
from easyscale.model import JobState
from easyscale.reports import FirstCause, Summary
from easyscale_cli.views import numbers
from easyscale_cli.views.cells import cut_end, width_of
from easyscale_cli.views.launch import Page, command_and_note, entry, label
from easyscale_cli.views.layout import (
    blank,
    facts,
    hang,
    in_gutter,
    line,
    rule,
    sparkline,
    trim,
    wrap,
)
from easyscale_cli.views.style import Line, Role, Span

_EXIT_WORDS: Final = {
    ExitCode.DONE: "done",
    ExitCode.JOB_FAILED: "job failed",
    ExitCode.USAGE: "usage",
    ExitCode.STORE_OUT_OF_REACH: "etcd out of reach",
    ExitCode.TOO_FEW_NODES: "too few nodes in time",
    ExitCode.RESTART_BUDGET_SPENT: "restart budget spent",
}
#: A process that signal n ended counts as 128 + n.
_SIGNAL: Final = 128
_SPARK = 32
_WIDE_SPARK = 64
_INDENT = 4
#: Of what failed: an exception may bring a text of any length.
_MOST_ROWS = 10
#: Two cells of margin, the longest word of the box and a space behind it.
_BOX_GUTTER = 13


def exit_words(code: int) -> str:
    """`5: restart budget spent`, `137: ended by SIGKILL`."""
    if code > _SIGNAL:
        try:
            return f"{code}: ended by {signal.Signals(code - _SIGNAL).name}"
        except ValueError:
            return f"{code}: ended by signal {code - _SIGNAL}"
    return f"{code}: {_EXIT_WORDS[ExitCode(code)]}" if code in list(ExitCode) else str(code)


def summary_lines(summary: Summary, page: Page) -> list[Line]:
    """What the job came to; the digest, whole on one line, is the only bold text."""
    return [
        (),
        *_outcome(summary, page),
        *_digest(summary.digest, page),
        *_metric(summary, page),
        *_rate(summary, page),
        *_changes(summary, page),
        *_kept(summary, page),
    ]


def _outcome(summary: Summary, page: Page) -> list[Line]:
    epochs = "" if summary.epochs is None else f", {numbers.counted(summary.epochs, 'epoch')}"
    steps = "" if summary.step is None else f"{numbers.counted(summary.step, 'step')}{epochs} "
    passed = f"{steps}in {numbers.duration(summary.elapsed_s)}"
    verb = Span("Finished", Role.GOOD) if summary.finished else Span("Drained")
    code = summary.exit_code
    rows = [
        page.glyphs.name(summary.job),
        passed,
        page.glyphs.prose(summary.reason) if not summary.finished else "",
        f"exit {code}" if code == 0 else f"exit {exit_words(code)}",
    ]
    return entry(line(verb), rows, page)


def _digest(text: str, page: Page) -> list[Line]:
    if not text:
        return []
    digest = line(Span(page.glyphs.name(text), Role.NAME))
    # Never wrapped: a digest that is cut in two cannot be compared with one glance or one paste.
    if page.cells - page.gutter - 1 < width_of(text):
        tag = in_gutter(line(Span("digest", Role.QUIET)), page.gutter, page.glyphs.cut)
        return [tag, digest]
    return label("digest", [digest], page)


def _metric(summary: Summary, page: Page) -> list[Line]:
    if summary.metric is None or summary.value is None:
        return []
    name = page.glyphs.name(summary.metric)
    value = f"{numbers.metric(summary.value):5}"
    first = (
        f"  from {numbers.metric(summary.first_value)}" if summary.first_value is not None else ""
    )
    room = page.cells - page.gutter - 2 - len(value) - len(first)
    widest = _WIDE_SPARK if page.is_wide else _SPARK
    drawing = sparkline(summary.history, min(room, widest), page.glyphs)
    pieces = line(
        f"{value}  " if drawing else value, Span(drawing, Role.LIVE), Span(first, Role.QUIET)
    )
    return label(name, [trim(pieces)], page)


def _rate(summary: Summary, page: Page) -> list[Line]:
    rows = [
        "" if summary.steps_per_s is None else f"{numbers.rate(summary.steps_per_s)} steps/s",
        "" if summary.samples_per_s is None else f"{numbers.rate(summary.samples_per_s)} samples/s",
        ""
        if summary.median_step_s is None
        else f"median step {numbers.step_time(summary.median_step_s)}",
    ]
    return label("rate", rows, page) if any(rows) else []


def _changes(summary: Summary, page: Page) -> list[Line]:
    restarts = f"{numbers.counted(summary.restarts, 'restart')}"
    if summary.step is None or (not summary.digest and summary.finished):
        return label("restarts", [numbers.count(summary.restarts)], page)
    total = sum(summary.changes.values())
    kinds = ", ".join(
        f"{count:,} {page.glyphs.name(kind)}" for kind, count in summary.changes.items() if count
    )
    share = summary.paused_s / summary.elapsed_s if summary.elapsed_s > 0 else 0.0
    lost = numbers.counted(summary.steps_lost, "step")
    return [
        *label("changes", [numbers.count(total), kinds], page),
        *label(
            "paused",
            [
                f"{numbers.pause_total(summary.paused_s)} in all ({numbers.percent(share)})",
                f"longest {numbers.pause(summary.longest_pause_s)}" if total else "",
            ],
            page,
        ),
        *label("", [f"{lost} lost, {restarts}"], page),
    ]


def _kept(summary: Summary, page: Page) -> list[Line]:
    rows: list[Line] = []
    if summary.snapshot_step is not None:
        size = summary.snapshot_bytes
        rows += label(
            "snapshot",
            [
                f"step {numbers.count(summary.snapshot_step)}",
                "" if size is None else f"{numbers.data_size(size)}, verified",
                page.glyphs.name(summary.snapshot_path),
            ],
            page,
        )
    if summary.log_dir:
        rows += label("logs", [page.glyphs.name(summary.log_dir)], page)
    if summary.goes_on:
        rows += label("next", [page.glyphs.prose(summary.goes_on)], page)
    return rows


def record_lines(status: JobStatus, exit_code: int, page: Page) -> list[Line]:
    """The same of a job of which only its records are known: how, how far, what is left of it."""
    job, newest = status.job, status.snapshot
    verb = {
        JobState.FINISHED: Span("Finished", Role.GOOD),
        JobState.FAILED: Span("Failed", Role.FAILED),
    }.get(job.state, Span("Drained"))
    rows = [
        page.glyphs.name(job.id),
        "" if job.step is None else numbers.counted(job.step, "step"),
        page.glyphs.prose(job.note or "") if job.state is not JobState.FINISHED else "",
        f"exit {exit_code}" if exit_code == 0 else f"exit {exit_words(exit_code)}",
    ]
    lines = [(), *entry(line(verb), rows, page), *_digest(job.digest or "", page)]
    if newest is not None:
        size = "" if newest.bytes is None else numbers.data_size(newest.bytes)
        lines += label("snapshot", [f"step {numbers.count(newest.step)}", size], page)
    return lines


def first_cause_lines(cause: FirstCause, page: Page) -> list[Line]:
    """The box of the first cause between two rules: what failed, where, why it ended, what next."""
    job = page.glyphs.name(cause.job)
    return [
        (),
        rule(f"{job} failed: first cause", page.cells, page.glyphs, Role.FAILED),
        (),
        *_headline(cause, page),
        *_source(cause, page),
        *_story(cause, page),
        (),
        rule(f"exit {exit_words(cause.exit_code)}", page.cells, page.glyphs, Role.FAILED),
    ]


def _headline(cause: FirstCause, page: Page) -> list[Line]:
    mark = line("  ", Span(page.glyphs.failed, Role.FAILED), " ")
    rows = [
        line(Span(_rank(cause), Role.NAME)) if cause.rank is not None else (),
        () if cause.step is None else line(Span(f"step {numbers.count(cause.step)}", Role.NAME)),
        line("node ", Span(page.glyphs.name(cause.node), Role.NAME)) if cause.node else (),
        line("slot ", Span(page.glyphs.name(cause.slot), Role.NAME)) if cause.slot else (),
        line(f"pid {cause.pid}") if cause.pid is not None else (),
        line(numbers.generation(cause.era, cause.generation)),
    ]
    told = facts([row for row in rows if row], page.cells - _INDENT, page.glyphs)
    return [*hang(mark, _message(cause, page)), *hang(blank(_INDENT), told)]


def _message(cause: FirstCause, page: Page) -> list[Line]:
    """What failed, with its own line breaks; of a long text the beginning, the log has it all."""
    rows: list[Line] = []
    for text in cause.headline.splitlines():
        shown = page.glyphs.prose(text.strip())
        if not shown:
            continue
        indent = 2 if rows else 0
        wrapped = wrap(line(Span(shown, Role.FAILED_NAME)), page.cells - _INDENT - indent)
        rows += hang(blank(indent), wrapped)
    if len(rows) <= _MOST_ROWS:
        return rows or [()]
    where = "the rest is in the log" if cause.log else "and more"
    return [*rows[: _MOST_ROWS - 1], line(Span(f"{page.glyphs.cut} {where}", Role.QUIET))]


def _rank(cause: FirstCause) -> str:
    """A process's rank changes with the world; a logical one is the job's."""
    return f"rank {cause.rank}" if cause.step is None else f"logical rank {cause.rank}"


def _source(cause: FirstCause, page: Page) -> list[Line]:
    if not cause.file:
        return []
    hidden = (
        f"{numbers.counted(cause.hidden_frames, 'library frame')} hidden"
        if cause.hidden_frames
        else ""
    )
    caller = f"from {page.glyphs.name(cause.caller)}" if cause.caller else ""
    origin = "; ".join(filter(None, [caller, hidden]))
    where = line(
        Span(f"{page.glyphs.name(cause.file)}:{cause.line}", Role.LIVE_NAME),
        f" in {page.glyphs.name(cause.function)}" if cause.function else "",
        Span(f"   {origin}" if origin else "", Role.QUIET),
    )
    rows = hang(blank(_INDENT), wrap(where, page.cells - _INDENT))
    return [(), *rows, *(_excerpt_line(cause, index, page) for index in range(len(cause.excerpt)))]


def _excerpt_line(cause: FirstCause, index: int, page: Page) -> Line:
    """A line of source; the one that raised is marked. Tabs become spaces, a long line is cut."""
    source = cause.excerpt[index]
    glyphs = page.glyphs
    is_here = source.number == cause.line
    digits = max(2, *(len(str(each.number)) for each in cause.excerpt))
    mark = Span(glyphs.here, Role.FAILED) if is_here else Span(" ")
    role = Role.NAME if is_here else Role.QUIET
    before = line("     ", mark, " ", Span(f"{source.number:{digits}}", Role.QUIET))
    text = cut_end(
        page.glyphs.name(source.text.rstrip().expandtabs(4)), page.cells - 10 - digits, glyphs.cut
    )
    return trim((*before, Span(f" {glyphs.source} ", Role.QUIET), Span(text, role)))


def _story(cause: FirstCause, page: Page) -> list[Line]:
    same = ""
    if cause.log and cause.rank is not None and cause.step is not None:
        same = f"easyscale logs {cause.job} --rank {cause.rank}   the same from any node"
    rows = [
        *_told("why ended", [line(page.glyphs.prose(cause.why_ended))], page),
        *_told("also", [line(_also(cause))], page),
        *_told("victims", [line(_victims(cause))], page),
        *_told("snapshot", _facts_of(cause.snapshot, page), page),
        *_told(
            "log", [line(page.glyphs.name(cause.log)), command_and_note(same, page.glyphs)], page
        ),
    ]
    hints = [command_and_note(text, page.glyphs) for text in cause.next_steps]
    parts = [rows, _told("next", hints, page)]
    return [row for part in parts if part for row in [(), *part]]


def _also(cause: FirstCause) -> str:
    if not cause.also_failed:
        return ""
    return f"{numbers.counted(cause.also_failed, 'other worker')} failed before any was stopped"


def _victims(cause: FirstCause) -> str:
    if not cause.victims:
        return ""
    others = numbers.counted(cause.victims, "other worker")
    if cause.also_failed is None:
        return f"{others}, stopped by us; none failed by itself"
    return f"{others}, ended by the loss of a peer or by us"


def _facts_of(text: str, page: Page) -> list[Line]:
    told = [line(each) for each in page.glyphs.prose(text).split(page.glyphs.between)]
    return facts(told, page.cells - _BOX_GUTTER - 1, page.glyphs) if text else []


def _told(word: str, rows: list[Line], page: Page) -> list[Line]:
    wrapped = [part for row in rows if row for part in wrap(row, page.cells - _BOX_GUTTER - 1)]
    tag = f"{word:>{_BOX_GUTTER}} "
    return hang(line(Span(tag, Role.QUIET)), wrapped) if wrapped else []
