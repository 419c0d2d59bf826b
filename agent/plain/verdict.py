"""How a plain or packed job ends, in the words and values that people and schedulers read; pure."""

import signal
from collections.abc import Sequence
from pathlib import PurePath

from easyscale.agent.plain.settings import Entry, PlainSettings
from easyscale.agent.plain.values import Fault, Outcome
from easyscale.agent.words import signal_name
from easyscale.messages import SourceLine
from easyscale.reports import FirstCause, Summary

SIGNAL_BASE = 128


def first_own_fault(faults: Sequence[Fault]) -> Fault | None:
    """The first of a node's failures by causality: a lost peer explains nothing."""
    return min(faults, key=lambda fault: fault.is_victim, default=None)


def own_faults(faults: Sequence[Fault]) -> int:
    """How many failed by themselves."""
    return sum(not fault.is_victim for fault in faults)


def first_cause(settings: PlainSettings, outcome: Outcome, *, round_number: int) -> FirstCause:
    """The box that every node shows last."""
    fault = outcome.fault
    assert fault is not None
    return FirstCause(
        job=settings.job_id,
        headline=fault.headline,
        rank=fault.rank,
        step=None,
        node=fault.node,
        slot="",
        pid=fault.pid,
        era=1,
        generation=round_number,
        file=fault.file,
        line=fault.line,
        function=fault.function,
        caller=fault.caller,
        excerpt=tuple(SourceLine(number, text) for number, text in fault.excerpt),
        hidden_frames=fault.hidden_frames,
        why_ended=outcome.reason,
        victims=outcome.victims,
        also_failed=outcome.also_failed,
        snapshot="",
        log=f"{fault.node}:{fault.log}" if fault.log else "",
        next_steps=_next_steps(settings, fault),
        exit_code=outcome.exit_code,
    )


def _next_steps(settings: PlainSettings, fault: Fault) -> tuple[str, ...]:
    steps = []
    if not fault.log and fault.pid is not None:
        steps.append("--tee 3 keeps what every rank prints in a file of its own")
    if not fault.file and fault.exit_code is not None and settings.entry is not Entry.PROGRAM:
        name = PurePath(settings.script).name
        steps.append(f"decorate main() of {name} with torch's @record to have the traceback here")
    if fault.signal == signal.SIGKILL:
        steps.append("dmesg on that node says whether memory ran out")
    return tuple(steps)


def summary(
    settings: PlainSettings, outcome: Outcome, *, elapsed_s: float, rounds: int, log_dir: str
) -> Summary:
    """The closing lines of a job that finished, or was stopped by a person."""
    return Summary(
        job=settings.job_id,
        finished=outcome.is_finished,
        step=None,
        epochs=None,
        elapsed_s=elapsed_s,
        exit_code=outcome.exit_code,
        digest="",
        metric=None,
        value=None,
        first_value=None,
        history=(),
        steps_per_s=None,
        samples_per_s=None,
        median_step_s=None,
        changes={"rounds": rounds} if rounds > 1 else {},
        paused_s=0.0,
        longest_pause_s=0.0,
        steps_lost=0,
        restarts=outcome.restarts,
        snapshot_step=None,
        snapshot_bytes=None,
        snapshot_path="",
        log_dir=log_dir,
        reason=outcome.reason,
    )


def by_signal(number: int) -> str:
    return f"{signal_name(number)} ended the job here"
