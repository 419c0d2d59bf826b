"""A rebalance must keep what it promised: measured slower than before, it is taken back.

Pure. A map that was taken back is remembered and not proposed again by this leader.
"""

from dataclasses import replace

from easyscale.agent import words
from easyscale.agent.memory import Memory, Trial
from easyscale.agent.planner import shares
from easyscale.agent.settings import LaunchSettings
from easyscale.model import Assignment, GenerationNumber, Mode, Plan
from easyscale.rendezvous.agreement import JobView

#: Maps that measured slower are remembered up to this many.
MOST_REJECTED = 20


def put_on_trial(plan: Plan, view: JobView, memory: Memory, settings: LaunchSettings) -> Memory:
    """Remember what a rebalance has to beat; any other plan puts nothing on trial."""
    base, progress = view.base, view.progress
    same = base is not None and plan.workers == base.workers
    if base is None or not same or progress is None or not progress.steps_per_s:
        return replace(memory, trial=None)
    trial = Trial(
        generation=plan.generation,
        former=tuple(Assignment(m.worker, m.ranks) for m in base.members),
        before_s=1 / progress.steps_per_s,
        due=progress.position + settings.timeouts.trial_steps,
    )
    return replace(memory, trial=trial)


def judge(view: JobView, memory: Memory, settings: LaunchSettings) -> Memory:
    """Once there is enough to measure: keep the map on trial, or undo it and remember it."""
    trial, base, progress = memory.trial, view.base, view.progress
    if trial is None or base is None or trial.undone:
        return memory
    if base.generation != trial.generation:
        return replace(memory, trial=None) if base.generation > trial.generation else memory
    if progress is None or not progress.steps_per_s or progress.position < trial.due:
        return memory
    now_s = 1 / progress.steps_per_s
    if now_s <= trial.before_s * (1 + settings.timeouts.trial_tolerance):
        return replace(memory, trial=None)
    counts = tuple(sorted((m.worker, len(m.ranks)) for m in base.members if m.ranks))
    former = shares(len(each.ranks) for each in trial.former)
    why = f"back to {former}: step {words.becomes(trial.before_s, now_s)}, slower than before"
    rejected = (*memory.rejected, counts)[-MOST_REJECTED:]
    return replace(memory, rejected=rejected, trial=replace(trial, undone=why))


def undo(view: JobView, memory: Memory) -> Plan | None:
    """The plan that brings the former map back, where the present one was judged slower."""
    trial, base = memory.trial, view.base
    if trial is None or base is None or view.head is None or not trial.undone:
        return None
    if trial.generation != base.generation:
        return None
    return Plan(
        generation=GenerationNumber(view.head.era, view.head.planned + 1),
        mode=Mode.BOUNDARY,
        assignments=trial.former,
        main=base.main,
        reason=trial.undone,
    )
