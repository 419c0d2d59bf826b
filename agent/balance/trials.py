"""A rebalance must keep what it promised: measured slower than before, it is taken back.

Pure. What was tried is remembered with the speeds it was tried at: at other speeds it may be right.
Slower than promised, a slot that gained ranks computes slower than it measures, and is doubted.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from easyscale.agent import drafts, words
from easyscale.agent.balance import profile, recalling, suspecting, swings
from easyscale.agent.balance.planner import Place, shares, step_of
from easyscale.agent.memory import Appeal, Memory
from easyscale.agent.settings import Balance, LaunchSettings
from easyscale.balance import Trial, TriedPlan
from easyscale.model import (
    Assignment,
    Commit,
    GenerationNumber,
    Mode,
    Occasion,
    Plan,
    SlotRecord,
    WorkerId,
)
from easyscale.rendezvous.agreement import JobView

#: Why a map that seems better is not taken.
BROKE_PROMISE = "was measured slower than it promised"
#: Plans that were undone are remembered up to this many,
MOST_TRIED = 20
#: and for so many times the steps in which a change has to pay; twice as long after each time.
FORGIVEN_AFTER = 4
#: A promise is broken by more than so many times what noise makes of single steps: a step is as
#: long as its longest part, and parts that are alike make it longer than each of them as a rule.
_PROMISE_NOISE = 2.0
#: Steps under the map before, after which it is known whether the one that was undone was slow.
_APPEAL_STEPS = 5


def put_on_trial(plan: Plan, view: JobView, memory: Memory, settings: LaunchSettings) -> Memory:
    """Remember what a rebalance has to beat; any other plan puts nothing on trial.

    Where who planned it leads no more, what was tried until now is known from the records alone.
    """
    base, progress = view.base, view.progress
    memory = recalling.recall(view, memory)
    memory = swings.note(plan, view, memory, settings.balance)
    if plan.occasion is Occasion.REBALANCE:
        memory = replace(memory, moves=(*memory.moves, memory.position)[-MOST_TRIED:])
    on_trial = plan.occasion is Occasion.REBALANCE and plan.step_s is not None
    if base is None or not on_trial or progress is None or not progress.steps_per_s:
        return replace(memory, trial=None, appeal=_appeal(plan, view, memory))
    assert plan.step_s is not None
    before_s = 1 / progress.steps_per_s
    if memory.unproven is None:
        before_s = max(before_s, plan.step_s[0])  # the median of steps may lag behind
    trial = Trial(
        generation=plan.generation,
        former=held_in(base),
        before_s=before_s,
        beside_s=max(0.0, before_s - plan.step_s[0]),
        promised_s=plan.step_s[1],
        due=progress.position + settings.balance.trial_steps,
    )
    return replace(memory, trial=trial, appeal=None)


def _appeal(plan: Plan, view: JobView, memory: Memory) -> Appeal | None:
    trial, progress = memory.trial, view.progress
    if plan.occasion is not Occasion.UNDO or trial is None or progress is None or not memory.tried:
        return None
    undone = memory.tried[-1]
    due = progress.position + _APPEAL_STEPS
    return Appeal(plan.generation, undone.counts, trial.before_s, undone.measured_s, due)


def hear(view: JobView, memory: Memory, settings: LaunchSettings) -> Memory:
    """Acquit a map that was undone, if steps are no shorter without it.

    What is beside the micro-steps, the script's own work or the network, had become slower.
    """
    appeal, base, progress = memory.appeal, view.base, view.progress
    if appeal is None or base is None:
        return memory
    if base.generation != appeal.generation:
        return replace(memory, appeal=None) if base.generation > appeal.generation else memory
    if progress is None or not progress.steps_per_s or progress.position < appeal.due:
        return memory
    memory = replace(memory, appeal=None)
    tolerated_s = appeal.before_s * (1 + settings.balance.trial_tolerance)
    excess_s = 1 / progress.steps_per_s - appeal.before_s
    if _step_now(view, held_in(base), memory) > tolerated_s:
        return memory  # slots have become slower meanwhile, which explains it as well
    if excess_s < (appeal.measured_s - appeal.before_s) / 2:
        return memory
    acquitted = [each for each in memory.tried if each.counts == appeal.counts]
    tried = tuple(
        msgspec.structs.replace(each, until=memory.position) if each in acquitted else each
        for each in memory.tried
    )
    gained = {worker for worker, _ in appeal.counts}
    doubts = {w: doubt for w, doubt in memory.doubts.items() if w not in gained}
    return replace(memory, tried=tried, doubts=doubts)


def judge(view: JobView, memory: Memory, settings: LaunchSettings) -> Memory:
    """Once there is enough to measure: keep the map on trial, or undo it and remember it.

    One that is better than before but not as good as promised stays, and a slot is doubted.
    """
    memory = hear(view, _drop_old_doubts(view, memory, settings.balance), settings)
    trial, base, progress = memory.trial, view.base, view.progress
    if trial is None or base is None or trial.undone:
        return memory
    if base.generation != trial.generation:
        return replace(memory, trial=None) if base.generation > trial.generation else memory
    if progress is None or not progress.steps_per_s or progress.position < trial.due:
        return memory
    now_s = 1 / progress.steps_per_s
    # Slots may have become slower meanwhile: then the former map would be slower now, too.
    former_s = max(trial.before_s, _step_now(view, trial.former, memory))
    slots = drafts.slots_of(view)
    noise = profile.noise(slots[m.worker] for m in base.members if m.ranks and m.worker in slots)
    tolerance = settings.balance.trial_tolerance
    # What a step takes beside micro-steps, it took before, too.
    work_s = now_s - trial.beside_s
    promised_s = max(trial.promised_s, *_steps_now(view, held_in(base), memory))
    is_slower = now_s > former_s * (1 + max(tolerance, noise))
    if not is_slower and work_s <= promised_s * (1 + max(tolerance, _PROMISE_NOISE * noise)):
        return replace(memory, trial=None)
    counts = counts_of(base)
    times = 1 + max((each.times for each in memory.tried if each.counts == counts), default=0)
    until = memory.position + FORGIVEN_AFTER * settings.balance.pays_within * 2 ** (times - 1)
    before = {each.worker: len(each.ranks) for each in trial.former if each.ranks}
    broken = suspecting.Broken(before, dict(counts), work_s, until)
    memory = replace(memory, doubts=suspecting.suspect(broken, slots, memory.doubts))
    if not is_slower:  # better than before, and the doubt makes the next map better than this one
        return replace(memory, trial=None)
    former = shares(len(each.ranks) for each in trial.former)
    why = f"back to {former}: step {words.becomes(trial.before_s, now_s)}, slower than before"
    tried = TriedPlan(
        counts=counts,
        micro_steps=_speeds(view, base),
        promised_s=trial.promised_s,
        measured_s=now_s,
        reason=why,
        until=until,
        times=times,
    )
    others = tuple(each for each in memory.tried if each.counts != counts)
    judged = msgspec.structs.replace(trial, undone=why)
    return replace(memory, tried=(*others, tried)[-MOST_TRIED:], trial=judged)


def held_in(commit: Commit) -> tuple[Assignment, ...]:
    """What a commit gives its members, as a plan would."""
    return tuple(Assignment(member.worker, member.ranks) for member in commit.members)


def _step_now(view: JobView, held: tuple[Assignment, ...], memory: Memory) -> float:
    return _steps_now(view, held, memory)[0]


def _steps_now(view: JobView, held: tuple[Assignment, ...], memory: Memory) -> tuple[float, float]:
    """What a step takes with these ranks as slots measure, and as they did in the last steps."""
    slots = drafts.slots_of(view)
    times = profile.micro_steps(slots.values(), memory.doubts)
    late = profile.micro_steps(profile.of_late(slots.values()), memory.doubts)
    now, of_late = (
        step_of(Place(each.worker, taken.get(each.worker, 1), each.ranks) for each in held)
        for taken in (times, late)
    )
    return profile.seconds(now), profile.seconds(of_late)


def _speeds(view: JobView, base: Commit) -> dict[str, float]:
    slots = drafts.slots_of(view)
    known = ((worker, slots.get(worker)) for worker in base.workers)
    return {str(w): slot.rank_s for w, slot in known if slot and slot.rank_s}


def _drop_old_doubts(view: JobView, memory: Memory, balance: Balance) -> Memory:
    """A slot whose speed has changed is believed again."""
    slots = drafts.slots_of(view)
    kept = {
        worker: doubt
        for worker, doubt in memory.doubts.items()
        if memory.position < doubt.until
        and (slot := slots.get(worker)) is not None
        and _is_as_it_was(slot.rank_s, doubt.micro_step_s, balance)
    }
    return memory if len(kept) == len(memory.doubts) else replace(memory, doubts=kept)


def _is_as_it_was(rank_s: float | None, then_s: float, balance: Balance) -> bool:
    """It measures what it did then, or neither then nor now anything."""
    if not rank_s or not then_s:
        return not rank_s and not then_s
    return _alike(rank_s, then_s, balance)


def _alike(one: float, other: float, balance: Balance) -> bool:
    return max(one, other) <= (1 + balance.other_speed) * min(one, other)


def counts_of(plan: Commit | Plan) -> tuple[tuple[WorkerId, int], ...]:
    """How many ranks each worker holds; which ones does not matter to the time."""
    held = plan.members if isinstance(plan, Commit) else plan.assignments
    return tuple(sorted((each.worker, len(each.ranks)) for each in held if each.ranks))


def failed_before(
    plan: Plan, memory: Memory, slots: Mapping[WorkerId, SlotRecord], balance: Balance
) -> TriedPlan | None:
    """The same map at about the same speeds, which was undone."""
    counts = counts_of(plan)
    speeds = {str(w): s.rank_s for w, s in slots.items() if s.rank_s}
    for tried in reversed(memory.tried):
        same_speeds = all(
            _alike(speeds.get(worker, then), then, balance)
            for worker, then in tried.micro_steps.items()
        )
        if tried.counts == counts and same_speeds and memory.position < tried.until:
            return tried
    return None


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
        # Who had joined stays a member: what it measured is known.
        assignments=(
            *trial.former,
            *(Assignment(w, ()) for w in base.workers if w not in {e.worker for e in trial.former}),
        ),
        main=base.main,
        reason=trial.undone,
        occasion=Occasion.UNDO,
    )
