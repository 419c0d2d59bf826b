"""A job's state as status shows it, composed from what the store holds. Pure.

An agent adds what only it knows: its workers' pulses, the readings of its devices, what it has told
people. Without an agent the rest stands alone, unknown facts as None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from easyscale.agent import budget, restoring
from easyscale.agent.doors.chronicle import Told
from easyscale.agent.doors.slot_status import Closely, slots_of
from easyscale.agent.hardware.meter import Reading
from easyscale.agent.settings import Timeouts
from easyscale.agent.state import Now, State
from easyscale.job_status import (
    Budget,
    Changes,
    JobFacts,
    JobStatus,
    Metric,
    SnapshotFacts,
    StepTime,
    StoreFacts,
    count_slots,
)
from easyscale.messages import StepReport
from easyscale.model import Commit, JobState, Mode, Outcome, SnapshotRecord, metrics_as_numbers
from easyscale.rendezvous.view import JobView
from easyscale.reports import EventKind, stamp

#: These have a line of their own where they are told.
_UNSEEN = frozenset({EventKind.MET, EventKind.WAITING, EventKind.SNAPSHOT})
#: The newest changes that a status carries; `events` has the rest.
MOST_CHANGES = 200


@dataclass(frozen=True, slots=True)
class Own:
    """What an agent of the job knows beyond the store."""

    state: State
    now: Now
    told: Told
    user: str = ""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    #: Age of the newest snapshot's folder, by the file system.
    snapshot_age_s: float | None = None


def status_of(job: str, view: JobView, *, wall_s: float, own: Own | None = None) -> JobStatus:
    """Everything that can be said of a job now."""
    commit = _running(view, own)
    report = _report(own)
    step_s = _step_s(view, report)
    closely = Closely(own.state, own.readings) if own is not None else None
    # Nobody takes part in a job that has ended; what is still registered is on its way out.
    has_ended = outcome_of(view) is not None
    slots = () if has_ended else slots_of(view, commit, closely=closely, step_s=step_s)
    busy = [slot.busy_s for slot in slots if slot.busy_s is not None]
    return JobStatus(
        at=stamp(wall_s),
        job=_facts(job, view, commit=commit, step_s=step_s, own=own),
        metrics=_metrics(view, report, own),
        slots=slots,
        counts=count_slots(slots),
        step_time=StepTime(measured_s=step_s, predicted_s=max(busy, default=None)),
        changes=_changes(own),
        snapshot=_snapshot(view, own),
        budget=_budget(view, own),
        store=_store(own),
    )


def _running(view: JobView, own: Own | None) -> Commit | None:
    """The newest generation with members: an agent may know one before the store."""
    base = view.base
    known = own.state.commit if own is not None else None
    if known is None or not known.members:
        return base
    return known if base is None or known.generation > base.generation else base


def _report(own: Own | None) -> StepReport | None:
    """The newest of our workers' reports, main's where it is ours."""
    if own is None:
        return None
    main = own.state.main_worker
    if main is not None and main.report is not None:
        return main.report
    reports = [w.report for w in own.state.workers.values() if w.report is not None]
    return max(reports, key=lambda report: report.step, default=own.state.last_report)


def _step_s(view: JobView, report: StepReport | None) -> float | None:
    if report is not None and report.step_s:
        return report.step_s
    rate = view.progress.steps_per_s if view.progress else None
    return 1 / rate if rate else None


# --- the job -----------------------------------------------------------------------------------


def _facts(
    job: str, view: JobView, *, commit: Commit | None, step_s: float | None, own: Own | None
) -> JobFacts:
    spec, outcome = view.spec, outcome_of(view)
    if own is not None and spec is None:
        spec = own.state.spec
    at = _report(own) or view.progress
    step = outcome.step if outcome else _step(view, commit, own)
    steps = at.steps if at else None
    state = state_of(view, commit)
    rate = 1 / step_s if step_s and state is JobState.RUNNING else None
    elapsed_s = own.now.s - own.state.began_s if own is not None else None
    generation = commit.generation if commit else None
    return JobFacts(
        id=job,
        state=state,
        mode="elastic",
        logical_workers=spec.logical_workers if spec else None,
        determinism=str(spec.determinism) if spec else None,
        era=generation.era if generation else 0,
        generation=generation.number if generation else 0,
        step=step,
        steps=steps,
        epoch=at.epoch if at else 0,
        epochs=at.epochs if at else None,
        started=stamp(own.now.wall_s - elapsed_s) if own and elapsed_s is not None else None,
        elapsed_s=elapsed_s,
        left_s=max(0, steps - step) / rate if steps and rate else None,
        steps_per_s=rate,
        samples_per_s=_samples_per_s(view, own, rate),
        digest=(outcome.digest or None) if outcome else None,
        exit_code=_exit_code(outcome, own),
        user=(own.user or None) if own is not None else None,
        note=_note(view, state, outcome, own),
    )


def outcome_of(view: JobView) -> Outcome | None:
    """How the job ended, unless somebody has come since to go on with it."""
    outcome = view.outcome
    came_later = any(n.create_revision > view.outcome_revision for n in view.nodes.values())
    return None if came_later else outcome


def state_of(view: JobView, commit: Commit | None) -> JobState:
    """What the job is doing, as far as the records say."""
    outcome = outcome_of(view)
    if outcome is not None:
        return outcome.state
    if commit is None or view.outcome is not None:
        slots = [slot for node in view.nodes.values() for slot in node.record.slots]
        return JobState.STARTING if slots else JobState.WAITING
    if view.newest is not None and view.newest.pauses:
        return JobState.DRAINING
    if commit.mode is Mode.RESTORE and not view.is_entered(commit) and view.progress is None:
        return JobState.RESTORING if commit.snapshot is not None else JobState.STARTING
    if view.nodes and not any(view.is_present(worker) for worker in commit.workers):
        return JobState.RESTORING
    return JobState.RUNNING


def _step(view: JobView, commit: Commit | None, own: Own | None) -> int:
    stored = view.progress.step if view.progress else 0
    begun = commit.snapshot.step if commit is not None and commit.snapshot is not None else 0
    return max(stored, begun, own.state.step if own is not None else 0)


def _samples_per_s(view: JobView, own: Own | None, rate: float | None) -> float | None:
    report = _report(own)
    if report is not None and report.samples_per_step and rate:
        return report.samples_per_step * rate
    return view.progress.samples_per_s if view.progress and rate else None


def _exit_code(outcome: Outcome | None, own: Own | None) -> int | None:
    if outcome is None:
        return None
    if outcome.state is JobState.STOPPED and own is not None and own.state.signal is not None:
        return 128 + own.state.signal
    return int(outcome.exit_code)


def _note(view: JobView, state: JobState, outcome: Outcome | None, own: Own | None) -> str | None:
    if outcome is not None:
        return outcome.reason
    if state is JobState.DRAINING and view.newest is not None:
        return view.newest.reason
    if own is not None and own.state.token is not None and state is not JobState.RUNNING:
        return own.state.leader_reason or None
    return None


# --- its parts ---------------------------------------------------------------------------------


def _metrics(view: JobView, report: StepReport | None, own: Own | None) -> dict[str, Metric]:
    values = metrics_as_numbers(
        report.metrics if report is not None else view.progress.metrics if view.progress else {}
    )
    told = own.told.metric if own is not None else None
    names = sorted(values, key=lambda name: (name != "loss", name))
    metrics = {name: Metric(last=values[name], first=None) for name in names}
    if told is not None and told.name in metrics:
        metrics[told.name] = Metric(
            last=values[told.name],
            first=told.first,
            history=told.history,
            not_finite_since=told.not_finite_since,
        )
    return metrics


def _changes(own: Own | None) -> Changes:
    if own is None:
        return Changes(count=0, paused_s=0.0, steps_lost=0)
    totals, events = own.state.totals, own.told.events
    return Changes(
        count=sum(totals.changes.values()),
        paused_s=totals.paused_s,
        steps_lost=totals.steps_lost,
        last=tuple(event for event in reversed(events) if event.event not in _UNSEEN)[
            :MOST_CHANGES
        ],
    )


def newest_snapshot(view: JobView, own: Own | None) -> SnapshotRecord | None:
    """The newest that a job would start from."""
    known = dict(view.snapshots)
    if own is not None:
        known = {s.name: s for s in (*own.state.found, *own.state.unregistered)} | known
    return restoring.newest_to_restore(known.values(), view.newest)


def _snapshot(view: JobView, own: Own | None) -> SnapshotFacts | None:
    newest = newest_snapshot(view, own)
    if newest is None:
        return None
    settings = own.state.settings if own is not None else None
    every = settings.snapshot_every_steps if settings else None
    return SnapshotFacts(
        step=newest.step,
        bytes=newest.bytes,
        verified=True,  # it is registered once it is durable, or was found and its bytes compared
        age_s=own.snapshot_age_s if own is not None else None,
        next_step=(newest.step // every + 1) * every if every else None,
        keep=settings.snapshot_keep if settings else None,
        digest=newest.digest,
    )


def _budget(view: JobView, own: Own | None) -> Budget:
    timeouts = own.state.settings.timeouts if own is not None else Timeouts()
    failed = budget.counted(
        budget.failures(view),
        step=_step(view, view.base, own),
        forgiven_after_steps=timeouts.forgiven_after_steps,
    )
    limit = own.state.settings.max_restarts if own is not None else None
    nodes = (node.record for node in view.nodes.values())
    places = budget.contenders(failed, view, nodes)
    used = budget.used(failed, places=places, benched_after=timeouts.quarantine_failures)
    return Budget(used=used, limit=limit)


def _store(own: Own | None) -> StoreFacts:
    if own is None or own.state.away_s is None:
        return StoreFacts(reachable=True, silent_s=0.0)
    silent_s = own.now.s - own.state.away_s
    return StoreFacts(reachable=False, silent_s=silent_s, refuses=own.state.refuses)
