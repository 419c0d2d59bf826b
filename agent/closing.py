"""Where training is, thinly, and the closing lines of a job that finished or paused. Pure."""

from dataclasses import replace

from easyscale.agent import news
from easyscale.agent.actions import Conclude, ShowProgress
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import OwnWorker, Turn
from easyscale.model import JobState, Outcome, SnapshotRecord, metrics_as_numbers
from easyscale.reports import EventKind, Progress, Summary

#: Progress is shown at most this often.
SHOW_EVERY_S = 0.5
#: A sparkline has so many points at most.
HISTORY = 64


def show_progress(turn: Turn, worker: OwnWorker, *, force: bool = False) -> None:
    """A thinned reading of where training is, from one of our workers."""
    state, report = turn.state, worker.report
    if report is None or (turn.now.s - state.shown_s < SHOW_EVERY_S and not force):
        return
    metrics = metrics_as_numbers(report.metrics)
    metric = "loss" if "loss" in metrics else next(iter(sorted(metrics)), None)
    value = metrics.get(metric) if metric else None
    totals = state.totals
    if value is not None:
        first = value if totals.first_value is None else totals.first_value
        totals = replace(totals, history=_thin((*totals.history, value)), first_value=first)
    if report.step_s:
        totals = replace(totals, step_times=(*totals.step_times, report.step_s)[-1000:])
    turn.set(totals=totals, shown_s=turn.now.s)
    rate = 1 / report.step_s if report.step_s else None
    left = (report.steps - report.step) / rate if rate and report.steps else None
    commit = state.commit
    workers = commit.workers if commit else ()
    samples = report.samples_per_step
    turn.do(
        ShowProgress(
            progress=Progress(
                at=news.stamp(turn.now.wall_s),
                job=state.settings.job_id,
                step=report.step,
                steps=report.steps,
                epoch=report.epoch,
                epochs=report.epochs,
                metric=metric,
                value=value,
                history=totals.history,
                steps_per_s=rate,
                samples_per_s=samples * rate if samples and rate else None,
                left_s=left,
                elapsed_s=turn.now.s - state.began_s,
                nodes=len({w.node for w in workers}),
                slots=len(workers),
                era=commit.generation.era if commit else 0,
                generation=commit.generation.number if commit else 0,
                slow=tuple(s.worker.place for s in state.view.speed.slow)
                if state.view.speed
                else (),
            )
        )
    )


def _thin(values: tuple[float, ...]) -> tuple[float, ...]:
    """At most HISTORY points over the whole run: halve the density when it is full."""
    return values if len(values) <= HISTORY else (*values[:-1:2], values[-1])


def conclude(turn: Turn, outcome: Outcome, *, exit_code: int) -> None:
    """The closing lines of a job that finished or stopped."""
    state, totals = turn.state, turn.state.totals
    last = [w.report for w in state.workers.values() if w.report]
    report = last[0] if last else state.last_report
    snapshot = news.newest_snapshot(turn)
    finished = outcome.state is JobState.FINISHED
    kind = EventKind.FINISHED if finished else EventKind.STOPPED
    elapsed = turn.now.s - state.began_s
    news.announce(
        turn,
        kind,
        outcome.reason,
        at_step=outcome.step,
        exit_code=exit_code,
        digest=outcome.digest,
        elapsed_s=elapsed,
        paused_s=totals.paused_s,
        longest_pause_s=totals.longest_pause_s,
        steps_lost=totals.steps_lost,
        restarts=totals.restarts,
    )
    times = sorted(totals.step_times)
    median = times[len(times) // 2] if times else None
    metric, value = None, None
    if report is not None and report.metrics:
        metric = "loss" if "loss" in report.metrics else min(report.metrics)
        value = metrics_as_numbers(report.metrics)[metric]
    samples = report.samples_per_step if report else None
    turn.do(
        Conclude(
            summary=Summary(
                job=state.settings.job_id,
                finished=finished,
                step=outcome.step,
                # What was planned is no fact of a job that ends before it.
                epochs=report.epochs if report and finished else None,
                elapsed_s=elapsed,
                exit_code=exit_code,
                digest=outcome.digest,
                metric=metric,
                value=value,
                first_value=totals.first_value,
                history=totals.history,
                steps_per_s=1 / median if median else None,
                samples_per_s=samples / median if samples and median else None,
                median_step_s=median,
                changes=totals.changes,
                paused_s=totals.paused_s,
                longest_pause_s=totals.longest_pause_s,
                steps_lost=totals.steps_lost,
                restarts=totals.restarts,
                snapshot_step=snapshot.step if snapshot else None,
                snapshot_bytes=snapshot.bytes if snapshot else None,
                snapshot_path=snapshot.path if snapshot else "",
                log_dir=state.settings.log_dir,
                reason=outcome.reason,
                goes_on="" if finished else _goes_on(turn.state.settings, snapshot),
            )
        )
    )


def _goes_on(settings: LaunchSettings, snapshot: SnapshotRecord | None) -> str:
    """What to type for the rest; another launch without a name would be another job."""
    if snapshot is None:
        return ""
    with_name = "" if settings.job_is_named else f" with --job-id {settings.job_id}"
    return f"the same command{with_name} goes on from step {snapshot.step:,}"
