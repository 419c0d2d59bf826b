"""Planned changes of a running job: joins, drains, rebalances, pause. Pure.

What is wanted is gathered for a moment, then becomes one plan of mode boundary, or a reason.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from easyscale.agent import drafts, gathering, profile, trials, words
from easyscale.agent.memory import Memory
from easyscale.agent.planner import Layout, Place, shares, step_of
from easyscale.agent.settings import LaunchSettings
from easyscale.model import (
    Commit,
    GenerationNumber,
    Mode,
    Plan,
    SlotRecord,
    Wish,
    WorkerId,
)
from easyscale.rendezvous.agreement import JobView

#: What is wanted may change while it is gathered, but not for longer than this many times.
MOST_SETTLES = 4


@dataclass(frozen=True, slots=True)
class Change:
    """A plan, or why there is none now; `wake_s` is when to look again."""

    plan: Plan | None
    reason: str
    memory: Memory
    wake_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the wishes, the slots and the measurements ask of the running generation."""

    stay: tuple[WorkerId, ...]
    #: Members that shall hold nothing, with the word of who asked.
    leave: tuple[WorkerId, ...]
    absent: tuple[WorkerId, ...]
    fresh: tuple[SlotRecord, ...]
    stop: Wish | None
    rebalance: bool


def wanted(view: JobView, base: Commit, settings: LaunchSettings) -> Wanted:
    slots = drafts.slots_of(view)
    leave = tuple(w for w in base.workers if view.is_present(w) and is_drained(view, w, slots))
    absent = tuple(w for w in base.workers if not view.is_present(w))
    return Wanted(
        stay=tuple(w for w in base.workers if w not in leave and w not in absent),
        leave=leave,
        absent=absent,
        fresh=tuple(
            slot
            for slot in gathering.newcomers(view, settings)
            if slot.worker is not None and not is_drained(view, slot.worker, slots)
        ),
        stop=next((wish for wish in view.wishes.values() if wish.kind == "stop"), None),
        rebalance=any(wish.kind == "rebalance" for wish in view.wishes.values()),
    )


def is_drained(view: JobView, worker: WorkerId, slots: dict[WorkerId, SlotRecord]) -> bool:
    """Its slot shall hold nothing: its agent says so, or a wish does that it has yet to see."""
    slot = slots.get(worker)
    marked = slot is not None and slot.state == "draining"
    return marked or any(drains(wish, worker) for wish in view.wishes.values())


def drains(wish: Wish, worker: WorkerId) -> bool:
    """Tell whether the wish takes this worker's slot away."""
    asked = wish.kind in ("drain", "migrate") and wish.node == worker.node
    return asked and (not wish.slots or worker.slot in wish.slots)


def propose(view: JobView, memory: Memory, now: float, *, settings: LaunchSettings) -> Change:
    """The plan that follows from what is wanted, once it has settled and if it pays."""
    base, newest = view.base, view.newest
    assert base is not None
    assert newest is not None
    if newest.pauses:
        left = [worker for worker in base.workers if view.is_present(worker)]
        return Change(None, f"pausing: waits for {words.places(left)}", memory)
    memory = trials.judge(view, memory, settings)
    ask = wanted(view, base, settings)
    drawn, idle = _draw(view, base, ask, memory, settings)
    if not (ask.stop or ask.leave or ask.absent):
        drawn = trials.undo(view, memory) or drawn
    if drawn is None:
        return Change(None, idle, replace(memory, wanted=None))
    if memory.entered != base.generation:
        return Change(None, f"{base.generation.label} is still being entered", memory)
    shape = f"{drawn.assignments}{drawn.reason}"
    _, since, first = memory.wanted or ("", now, now)
    if memory.wanted is None or memory.wanted[0] != shape:
        since = now
    memory = replace(memory, wanted=(shape, since, first))
    settle_s = settings.timeouts.settle_s
    ready_s = min(since + settle_s, first + MOST_SETTLES * settle_s)
    if now < ready_s:
        return Change(None, f"settling: {drawn.reason}", memory, ready_s)
    return Change(drawn, drawn.reason, memory)


def _draw(
    view: JobView, base: Commit, ask: Wanted, memory: Memory, settings: LaunchSettings
) -> tuple[Plan | None, str]:
    assert view.head is not None
    generation = GenerationNumber(view.head.era, view.head.planned + 1)
    if ask.stop is not None:
        return drafts.pause(generation, f"stop asked by {ask.stop.by or 'a person'}"), ""
    if ask.leave and not ask.stay and not ask.fresh:
        if ask.absent:
            return None, f"waits for {words.places(ask.absent)} before the last node drains"
        return drafts.pause(generation, _departure(view, ask.leave)), ""
    if ask.leave:
        return _leaving(view, base, ask, generation), ""
    before = _step_now(view, base, ask.stay)
    present = drafts.ranks_of(base)
    if ask.fresh and not ask.absent:
        fresh = [slot.worker for slot in ask.fresh if slot.worker is not None]
        layout = drafts.lay_out(view, [*ask.stay, *fresh], present=present)
        if _pays(before, layout.step, settings):
            return _joining(view, base, ask, layout, generation), ""
    if ask.absent:
        return None, f"{words.places(ask.absent)} cannot say ready: its agent has no lease"
    return _rebalancing(view, ask, generation, memory=memory, settings=settings)


def _pays(before: int, after: int, settings: LaunchSettings) -> bool:
    return after <= before * (1 - settings.timeouts.least_gain)


def _step_now(view: JobView, base: Commit, stay: Iterable[WorkerId]) -> int:
    times = profile.micro_steps(drafts.slots_of(view).values())
    present = drafts.ranks_of(base)
    return step_of(Place(worker, times.get(worker, 1), present[worker]) for worker in stay)


def _members(base: Commit, layout: Layout) -> list[WorkerId]:
    """Those with ranks: who stays keeps its order, newcomers come after."""
    staying = [worker for worker in base.workers if worker in layout.ranks]
    return [*staying, *sorted(worker for worker in layout.ranks if worker not in staying)]


def _leaving(view: JobView, base: Commit, ask: Wanted, generation: GenerationNumber) -> Plan:
    fresh = [slot.worker for slot in ask.fresh if slot.worker is not None]
    present = {w: held for w, held in drafts.ranks_of(base).items() if w in ask.stay}
    layout = drafts.lay_out(view, [*ask.stay, *fresh], present=present)
    if ask.stay:
        kept = drafts.lay_out(view, ask.stay, present=present, use_all=True)
        layout = kept if kept.step <= layout.step else layout
    return drafts.draft(
        layout,
        generation=generation,
        mode=Mode.BOUNDARY,
        order=_members(base, layout),
        main=base.main,
        reason=_departure(view, ask.leave) + _left_out(ask.absent),
    )


def _left_out(absent: Sequence[WorkerId]) -> str:
    return f"; {words.places(absent)} left out, its agent has no lease" if absent else ""


def _departure(view: JobView, leave: Sequence[WorkerId]) -> str:
    """`node b (SIGTERM, 30 s grace)`, or the slots."""
    slots = drafts.slots_of(view)
    parts = []
    for node in sorted({worker.node for worker in leave}):
        gone = [worker for worker in leave if worker.node == node]
        whole = all(w in gone for w, s in slots.items() if w.node == node and s.state == "in_use")
        by = next(
            (wish.by for wish in view.wishes.values() if wish.by and drains(wish, gone[0])), ""
        )
        name = f"node {node}" if whole else words.places(gone)
        parts.append(f"{name} ({by})" if by else name)
    return words.listed(parts)


def _joining(
    view: JobView, base: Commit, ask: Wanted, layout: Layout, generation: GenerationNumber
) -> Plan:
    slots = drafts.slots_of(view)
    new = sorted(worker for worker in layout.ranks if worker not in base.workers)
    if len(new) == 1:
        reason = f"new worker takes {words.ranks(layout.ranks[new[0]])}"
    else:
        kinds = Counter(slots[worker].kind for worker in new)
        reason = ", ".join(
            f"{words.count(n, 'slot')}{' ' + kind if kind else ''}"
            for kind, n in sorted(kinds.items())
        )
    idle = len(ask.fresh) - len(new)
    if idle:
        reason = f"{reason}, {idle} {'stays' if idle == 1 else 'stay'} standby"
    return drafts.draft(
        layout,
        generation=generation,
        mode=Mode.BOUNDARY,
        order=_members(base, layout),
        main=base.main,
        reason=reason,
    )


def _rebalancing(
    view: JobView,
    ask: Wanted,
    generation: GenerationNumber,
    *,
    memory: Memory,
    settings: LaunchSettings,
) -> tuple[Plan | None, str]:
    """Move ranks between the members, if measurements promise enough and it was not tried."""
    base = view.base
    assert base is not None
    slots = drafts.slots_of(view)
    own = [slots[worker] for worker in ask.stay if worker in slots]
    stays = "stays" if len(ask.fresh) == 1 else "stay"
    idle = f"{words.count(len(ask.fresh), 'slot')} {stays} standby: the step would not be shorter"
    other = gathering.misfits(view, settings)
    if other and view.spec is not None:
        kinds = words.listed(sorted({slot.kind for slot in other}))
        where = words.places(slot.worker for slot in other if slot.worker is not None)
        stays = "stays" if len(other) == 1 else "stay"
        idle = f"{where} {stays} standby: of kind {kinds}, the job is of kind {view.spec.kind}"
    if not own or not profile.are_measured(own):
        return None, idle if ask.fresh or other else ""
    present = drafts.ranks_of(base)
    before = _step_now(view, base, ask.stay)
    layout = drafts.lay_out(view, ask.stay, present=present)
    counts = {worker: len(ranks) for worker, ranks in layout.ranks.items()}
    known = tuple(sorted(counts.items()))
    if not (_pays(before, layout.step, settings) or (ask.rebalance and layout.step < before)):
        return None, idle if ask.fresh or other else ""
    if known in memory.rejected and not ask.rebalance:
        return None, f"{shares(counts.values())} was measured slower than it promised"
    reason = profile.rebalance_reason(
        own,
        before={worker: len(ranks) for worker, ranks in present.items()},
        after=counts,
        step_s=(profile.seconds(before), profile.seconds(layout.step)),
    )
    drawn = drafts.draft(
        layout,
        generation=generation,
        mode=Mode.BOUNDARY,
        order=list(base.workers),
        main=base.main,
        reason=reason,
    )
    return drawn, ""
