"""What the leader of a job decides, as a pure function: view, time and memory -> one decision.

The first rule that applies wins; the order is that of the protocol. Every answer has a reason,
also the answer to wait.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from easyscale.agent import (
    beginnings,
    benching,
    budget,
    changes,
    drafts,
    endings,
    survivors,
    wishes,
    words,
)
from easyscale.agent.balance import limits, trials
from easyscale.agent.beginnings import Start
from easyscale.agent.memory import Memory, observe
from easyscale.agent.settings import Timeouts
from easyscale.agent.verdicts import Standpoint, Verdict
from easyscale.model import GenerationNumber, Mode, Plan, WorkerId
from easyscale.rendezvous.agreement import (
    CommitPlan,
    Fence,
    GiveUp,
    JobView,
    Propose,
    Tidy,
    objection,
)
from easyscale.rendezvous.keys import Incarnation, JobKeys
from easyscale.rendezvous.tidying import stale_keys

Rule = Callable[[Standpoint, Memory], Verdict | None]


def decide(at: Standpoint, memory: Memory) -> Verdict:
    """Decide on one linearizable view of the job."""
    if at.view.spec is None:
        at = replace(at, view=replace(at.view, spec=at.spec, parsed={}))
    memory = observe(memory, at.view, at.now, timeouts=at.timeouts, position=at.position)
    if at.view.outcome is not None and not at.is_new_start:
        return Verdict(None, "", memory)
    rules: tuple[Rule, ...] = (
        _await_readable_truth,
        _obey_fence,
        endings.by_failure,
        beginnings.begin,
        endings.in_order,
        _recover,
        _settle_open_plan,
        _change,
        _tidy,
    )
    waits: Verdict | None = None
    for rule in rules:
        verdict = rule(at, memory)
        if verdict is None:
            continue
        if verdict.decision is not None or rule is not _change:
            return verdict
        # Nothing to change: time to tidy, but the reason to wait is what people should see.
        waits, memory = verdict, verdict.memory
    tidied = _tidy(at, memory) if waits is not None else None
    return tidied or waits or Verdict(None, "", memory)


def _await_readable_truth(at: Standpoint, memory: Memory) -> Verdict | None:
    """A record of truth that we cannot read may say that we are wrong: decide nothing."""
    for key, reason in sorted(at.view.unreadable.items()):
        if not key.startswith((at.keys.nodes, at.keys.wishes, at.keys.snapshots, *_notes(at.keys))):
            return Verdict(None, reason, memory)
    return None


def _notes(keys: JobKeys) -> tuple[str, ...]:
    """What the balancer writes for people: no decision stands on it."""
    return keys.speed, keys.profile, keys.proposals


def _obey_fence(at: Standpoint, memory: Memory) -> Verdict | None:
    """An operator's word that a node has ended is proof."""
    for wish_id, wish in sorted(at.view.wishes.items()):
        if wish.kind != "fence":
            continue
        agents = {
            Incarnation(worker.node, worker.incarnation)
            for commit in (*at.view.open, *at.view.forgotten)
            for worker in commit.workers
            if wish.node == worker.node and not at.view.ended(worker)
        }
        by = wish.by or "an operator"
        decision = Fence(tuple(sorted(agents, key=str)), by, (wish_id,))
        return Verdict(decision, f"node {wish.node} has ended, says {by}", memory)
    return None


def _recover(at: Standpoint, memory: Memory) -> Verdict | None:
    """Somebody ended, is silent or cries for help: go on at once with whoever holds the state."""
    view, base = at.view, at.view.base
    if base is None or view.head is None:
        return None
    known = survivors.standing(at, memory)
    nobody = not any(view.is_present(worker) for worker in base.workers)
    if not (known.calls_for_change or nobody):
        return None
    only_reports = known.broken and not (known.lost or known.evicted)
    if only_reports and memory.broken is not None:
        ready_s = memory.broken[1] + at.timeouts.report_window_s
        if at.now < ready_s:
            return Verdict(None, "broken: waits for the exit that explains it", memory, ready_s)
    if not known.left:
        return beginnings.restore(at, memory)
    members = known.left
    if memory.broken is not None and (last := survivors.perhaps_last(known, view)):
        ready_s = memory.broken[1] + at.timeouts.hearing_s
        if at.now < ready_s:
            waits = f"{words.places(members)}: no word yet; {words.places(last)} may be the last"
            return Verdict(None, waits, memory, ready_s)
    has_failed = _has_failed_to_meet(known, memory, view)
    if has_failed:
        circle = survivors.circle(
            known.left, known.broken, base.main, heard=view.breaks[base.generation]
        )
        ready_s = _heard_by(circle, memory, at.timeouts)
        if circle.unheard and at.now < ready_s:
            whom = words.places(circle.unheard)
            waits = f"{whom}: suspected, and no word yet of whom they reach themselves"
            return Verdict(None, waits, memory, ready_s)
        members = circle.members
    attempt = memory.attempt
    if attempt is not None and attempt.members == frozenset(members):
        wait_s = _backoff(attempt.times, at.timeouts)
        if has_failed and attempt.times > 1 and not known.broken.keys() >= attempt.members:
            # Sent again too soon, they would never come to know whom they cannot reach.
            wait_s = max(wait_s, at.timeouts.forming_timeout_s)
        ready_s = attempt.at_s + wait_s
        if at.now < ready_s:
            return Verdict(None, "the same members failed to meet: waits a moment", memory, ready_s)
    start = Start(
        mode=Mode.NOW,
        generation=GenerationNumber(view.head.era, view.head.planned + 1),
        members=members,
        reason=survivors.describe(known),
    )
    return beginnings.at_once(start, at, memory)


def _has_failed_to_meet(known: survivors.Standing, memory: Memory, view: JobView) -> bool:
    """Those that are left are the set that was sent into this generation, and it did not form."""
    base, attempt = view.base, memory.attempt
    return (
        base is not None
        and attempt is not None
        and attempt.generation == base.generation
        and bool(view.breaks.get(base.generation))
        and frozenset(known.left) == attempt.members
    )


def _heard_by(circle: survivors.Circle, memory: Memory, timeouts: Timeouts) -> float:
    """Until when the unheard are waited for: longer where they would be the larger part.

    By then a node that has ended is known by its lease, and one that lives has failed to form.
    """
    since_s = memory.broken[1] if memory.broken is not None else 0.0
    return since_s + (timeouts.hearing_s if circle.is_smaller else timeouts.hearing_window_s)


def _backoff(times: int, timeouts: Timeouts) -> float:
    return min(timeouts.replan_first_s * 2.0 ** (times - 1), timeouts.replan_most_s)


def _settle_open_plan(at: Standpoint, memory: Memory) -> Verdict | None:
    """Commit the open plan, give it up, or say what it waits for."""
    view, plan = at.view, at.view.open_plan
    if plan is None:
        return None
    label = plan.generation.label
    gone = [worker for worker in plan.workers if not view.is_present(worker)]
    if gone:
        how = "ended" if all(view.ended(worker) for worker in gone) else "fell silent"
        reason = f"{label} given up: {words.places(gone)} {how} before it was committed"
        return Verdict(GiveUp(plan.generation), reason, memory)
    since = memory.plan[1] if memory.plan is not None else at.now
    commit = drafts.commit_of(plan, view)
    waits = objection(commit, view)
    if waits is None:
        memory = trials.put_on_trial(plan, view, memory, at.settings)
        return Verdict(CommitPlan(commit, _answered(at, plan.workers)), plan.reason, memory)
    if other := _overtaken_by(at, plan):
        reason = f"{label} given up: {other}, and {waits}"
        return Verdict(GiveUp(plan.generation), reason, memory)
    silent = benching.silent(plan, view)
    limit_s = benching.patience_s(at.settings) if silent else at.timeouts.prepare_timeout_s
    if at.now - since >= limit_s:
        memory = benching.bench(memory, silent, at.now, at.timeouts)
        reason = f"{label} given up after {limit_s:g} s: {waits}"
        return Verdict(GiveUp(plan.generation), reason, memory)
    return Verdict(None, waits, memory, since + limit_s)


def _overtaken_by(at: Standpoint, plan: Plan) -> str:
    """What was asked since, and asks for another plan than this one, which still waits."""
    if plan.assignments and any(wish.kind == "stop" for wish in at.view.wishes.values()):
        return "the job is to stop"
    slots = drafts.slots_of(at.view)
    away = [
        each.worker
        for each in plan.assignments
        if each.ranks and wishes.is_drained(at.view, each.worker, slots)
    ]
    return f"{words.places(away)} {'is' if len(away) == 1 else 'are'} to drain" if away else ""


def _answered(at: Standpoint, members: tuple[WorkerId, ...]) -> tuple[str, ...]:
    """Wishes that hold once these workers are the members, and that the agents have noted."""
    slots = drafts.slots_of(at.view)
    answered = []
    for wish_id, wish in sorted(at.view.wishes.items()):
        match wish.kind:
            case "drain" | "migrate":
                touched = [w for w in slots if wishes.concerns(wish, w)]
                noted = all(slots[w].state in ("draining", "gone") for w in touched)
                noted &= wishes.is_noted(at.view, wish_id, wish)
                if noted and not any(wishes.concerns(wish, worker) for worker in members):
                    answered.append(wish_id)
            case "profile":
                record = at.view.profile
                if record is not None and record.wish == wish_id and record.done:
                    answered.append(wish_id)
            case "rebalance":
                answered.append(wish_id)
            case "devices":
                # Its agent deletes it, unless there is none any more.
                node = at.view.nodes.get(wish.node)
                if node is None or not wishes.means(wish, wish.node, node.record.incarnation):
                    answered.append(wish_id)
            case _:
                pass
    return tuple(answered)


def _change(at: Standpoint, memory: Memory) -> Verdict | None:
    """Joins, drains, rebalances: what is wanted becomes one plan."""
    if at.view.base is None or at.view.head is None:
        return None
    change = changes.propose(at.view, memory, at.now, settings=at.settings)
    if change.plan is None:
        return Verdict(None, change.reason, change.memory, change.wake_s)
    plan, slots = change.plan, drafts.slots_of(at.view)
    held = {each.worker: each.ranks for each in plan.assignments}
    if short := limits.beyond_learned(at.view, slots, held):
        return Verdict(None, f"{change.reason}: {short}", change.memory, change.wake_s)
    if tight := limits.beyond_free(at.view, slots, held):
        plan = msgspec.structs.replace(plan, reason=f"{plan.reason}; {tight}")
    reason = f"{plan.generation.label} planned: {plan.reason}"
    return Verdict(Propose(plan), reason, change.memory)


def _tidy(at: Standpoint, memory: Memory) -> Verdict | None:
    """Delete what no open generation names, and wishes that need no plan any more."""
    base = at.view.base
    failed = budget.counted(
        budget.failures(at.view),
        step=endings.step_of_job(at),
        forgiven_after_steps=at.timeouts.forgiven_after_steps,
    )
    keep = [*(worker for worker, _ in failed), *limits.teachers(at.view)]
    stale = stale_keys(at.view, at.keys, keep=keep)
    settled = at.view.open_plan is None and base is not None and at.view.is_entered(base)
    if settled and base is not None:
        done = [w for w in _answered(at, base.workers) if at.view.wishes[w].kind != "rebalance"]
        stale = (*stale, *(at.keys.wish(wish_id) for wish_id in done))
    return Verdict(Tidy(stale), "", memory) if stale else None


__all__ = ["JobView", "Standpoint", "Verdict", "decide"]
