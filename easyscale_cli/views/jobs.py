"""The list of jobs: what each is doing, how far it is, and one sentence; pure."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from easyscale.job_status import JobFacts, JobStatus
from easyscale.model import JobState
from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.launch import WIDE
from easyscale_cli.views.layout import Column, columns, line, sparkline, wrap
from easyscale_cli.views.status import state_mark
from easyscale_cli.views.style import Line, Role, Span

_SPARK: Final = 20
#: So much of a digest tells two runs apart at a glance.
_DIGEST: Final = 12
#: What a person has to do with comes first.
_ORDER: Final = (
    JobState.RUNNING,
    JobState.STARTING,
    JobState.DRAINING,
    JobState.WAITING,
    JobState.RESTORING,
    JobState.FINISHED,
    JobState.FAILED,
    JobState.STOPPED,
)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job with what only the list shows; its metric is the first one the script reports."""

    job: JobFacts
    slots: int
    nodes: int
    loss: float | None = None
    #: The last hour, oldest first.
    history: tuple[float, ...] = ()


def row_of(status: JobStatus) -> JobRow:
    """A job's row; its note is what a person may have to do with, or how it ended."""
    used = [slot for slot in status.slots if slot.state == "in_use"]
    metric = next(iter(status.metrics.values()), None)
    return JobRow(
        job=msgspec.structs.replace(status.job, note=_what_to_know(status)),
        slots=len(used),
        nodes=len({slot.node for slot in used}),
        loss=metric.last if metric else None,
        history=tuple(value for _, value in metric.history) if metric else (),
    )


def _what_to_know(status: JobStatus) -> str | None:
    job, slots = status.job, status.slots
    if job.state is JobState.FINISHED and job.digest:
        return f"digest {job.digest[:_DIGEST]}"
    if job.state is not JobState.RUNNING:
        return job.note
    told = [f"! hung: {slot.place}" for slot in slots if slot.hung]
    told += [f"! slow: {slot.place}" for slot in slots if slot.slow]
    if status.counts.gone:
        told.append(f"{numbers.counted(status.counts.gone, 'slot')} gone")
    if status.store is not None and not status.store.reachable:
        told.append("etcd refuses" if status.store.refuses else "etcd is silent")
    return told[0] if told else job.note


def jobs_lines(jobs: Sequence[JobRow], *, cells: int, glyphs: Glyphs) -> list[Line]:
    """One row per job: running, waiting, restoring, then what has ended."""
    is_wide = cells >= WIDE
    table = [
        Column("JOB"),
        Column("STATE"),
        Column("STEP", right=True),
        Column("DONE", right=True, leaves=2),
        Column("SLOTS", right=True, leaves=1),
        *([Column("NODES", right=True, leaves=6)] if is_wide else []),
        Column("STEP/S", right=True, leaves=3),
        *([Column("LOSS", right=True, leaves=5)] if is_wide else []),
        *([Column("LAST HOUR", leaves=8, least=_SPARK)] if is_wide else []),
        Column("LEFT", right=True, leaves=4),
        *([Column("USER", leaves=7)] if is_wide else []),
        Column("NOTE", is_prose=True),
    ]
    ordered = sorted(jobs, key=lambda row: _ORDER.index(row.job.state))
    rows = [_row(each, glyphs, is_wide=is_wide) for each in ordered]
    return columns(table, rows, cells, mark=glyphs.cut, whole=len(rows))


def _row(row: JobRow, glyphs: Glyphs, *, is_wide: bool) -> list[Line]:
    job = row.job
    is_running = job.state is JobState.RUNNING
    word = Role.FAILED_NAME if job.state is JobState.FAILED else Role.TEXT
    done = "-" if not job.steps or job.step is None else numbers.percent(job.step / job.steps)
    speed = numbers.rate(job.steps_per_s) if is_running and job.step is not None else "-"
    left = "-" if job.left_s is None or not is_running else numbers.duration(job.left_s)
    return [
        line(Span(glyphs.name(job.id), Role.NAME)),
        line(state_mark(job.state, glyphs), Span(f" {job.state}", word)),
        line(numbers.count(job.step)),
        line(done),
        line(numbers.count(row.slots)),
        *([line(numbers.count(row.nodes))] if is_wide else []),
        line(speed),
        *([line(numbers.metric(row.loss))] if is_wide else []),
        *([_drawing(row, glyphs)] if is_wide else []),
        line(left),
        *([line(glyphs.name(job.user or "-"))] if is_wide else []),
        _note(job.note or "", glyphs),
    ]


def _drawing(row: JobRow, glyphs: Glyphs) -> Line:
    return line(Span(sparkline(row.history, _SPARK, glyphs), Role.LIVE))


def _note(note: str, glyphs: Glyphs) -> Line:
    text = glyphs.prose(note)
    if text.startswith("! "):
        return line(Span(glyphs.look, Role.LOOK), Span(text[1:], Role.NAME))
    return line(text)


def jobs_json(jobs: Sequence[JobRow]) -> str:
    """A list of the `job` objects of `status --json` with their slots and nodes."""
    value: list[dict[str, Any]] = []
    for row in jobs:
        facts: dict[str, Any] = msgspec.to_builtins(row.job)
        value.append(
            {"version": plain.JSON_VERSION, **facts, "slots": row.slots, "nodes": row.nodes}
        )
    return plain.to_json(value)


class Forgotten(Protocol):
    """A job whose records have left an etcd, or would."""

    @property
    def job(self) -> str: ...
    @property
    def state(self) -> JobState: ...
    @property
    def step(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def reason(self) -> str: ...


def forgotten_lines(
    jobs: Sequence[Forgotten], *, kept: int, is_dry: bool, cells: int, glyphs: Glyphs
) -> list[Line]:
    """Which jobs went and how they had ended, and how many stay."""
    table = [
        Column("JOB"),
        Column("STATE"),
        Column("STEP", right=True, leaves=2),
        Column("DIGEST", leaves=1),
        Column("REASON", is_prose=True),
    ]
    rows = [
        [
            line(glyphs.name(each.job)),
            line(str(each.state)),
            line(numbers.count(each.step)),
            line(glyphs.name(numbers.short_digest(each.digest))),
            line(glyphs.prose(each.reason) or "-"),
        ]
        for each in jobs
    ]
    lines = columns(table, rows, cells, mark=glyphs.cut) if rows else []
    what = f"{len(jobs):,} {'would be forgotten' if is_dry else 'forgotten'}"
    stay = f"{numbers.counted(kept, 'job')} {'stays' if kept == 1 else 'stay'}"
    told = f"{what if jobs else 'nothing to forget'}; {stay}, and all snapshots and logs"
    return [*lines, *wrap(line(told), cells)]


def forgotten_json(jobs: Sequence[Forgotten], *, kept: int, is_dry: bool) -> str:
    """The one object of `jobs prune --json`."""
    rows = [
        {
            "job": each.job,
            "state": str(each.state),
            "step": each.step,
            "digest": each.digest or None,
            "reason": each.reason,
        }
        for each in jobs
    ]
    return plain.to_json(
        {"version": plain.JSON_VERSION, "dry_run": is_dry, "forgotten": rows, "kept": kept}
    )
