"""Planned changes of a running job: pause, drains, migrations, joins, rebalances. Pure.

What is wanted is gathered for a moment, then becomes one plan of mode boundary, or a reason.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from easyscale.agent import benching, drafts, gathering, words
from easyscale.agent.balance import (
    loaders,
    migration,
    places,
    probing,
    rebalancing,
    recalling,
    scaling,
    slowness,
    trials,
)
from easyscale.agent.balance.planner import Layout
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.wants import wanted
from easyscale.agent.wishes import drains, is_drained
from easyscale.kinds import short_kind
from easyscale.model import Mode, Occasion, Plan, WorkerId
from easyscale.rendezvous.agreement import JobView

#: What is wanted may change while it is gathered, but not for longer than this many times.
MOST_SETTLES = 4
#: Before the last ones drain, who starts up is waited for so long, and for so much of the grace.
START_WAIT_S = 10.0
START_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Change:
    """A plan, or why there is none now; `wake_s` is when to look again."""

    plan: Plan | None
    reason: str
    memory: Memory
    wake_s: float | None = None


def propose(view: JobView, memory: Memory, now: float, *, settings: LaunchSettings) -> Change:
    """The plan that follows from what is wanted, once it has settled and if it pays."""
    base, newest = view.base, view.newest
    assert base is not None
    assert newest is not None
    if newest.pauses:
        left = [worker for worker in base.workers if view.is_present(worker)]
        return Change(None, f"pausing: waits for {words.places(left)}", memory)
    memory = recalling.recall(view, memory)
    memory = loaders.follow(view, memory, settings.balance)
    if not scaling.is_under_way(memory):  # whose sizes leave slots empty that are not slow
        memory = places.remember(view, memory, settings.balance)
        memory = slowness.notice(view, memory, settings.balance, now)
    memory = trials.judge(view, memory, settings)
    out = benching.benched(memory, now)
    ask = wanted(view, base, settings, benched=out)
    scene = Scene(view, base, ask, memory, settings, now)
    if memory.entered == base.generation:
        memory = scaling.follow(scene)
        memory = rebalancing.follow_proof(replace(scene, memory=memory))
        memory = probing.follow(replace(scene, memory=memory))
        memory = rebalancing.follow_promise(replace(scene, memory=memory))
    scene = replace(scene, memory=memory)
    drawn, idle = _draw(scene)
    if drawn is None:
        return Change(None, idle, replace(memory, wanted=None))
    if memory.entered != base.generation:
        return Change(None, f"{base.generation.label} is still being entered", memory)
    # The reason of a rebalance has numbers in it that change with every measurement.
    shape = f"{drawn.assignments}{drawn.reason if drawn.workers != base.workers else ''}"
    _, since, first = memory.wanted or ("", now, now)
    if memory.wanted is None or memory.wanted[0] != shape:
        since = now
    memory = replace(memory, wanted=(shape, since, first))
    settle_s = settings.timeouts.settle_s
    ready_s = min(since + settle_s, first + MOST_SETTLES * settle_s)
    if not drawn.assignments and (coming := _coming(scene)):
        ready_s = since + min(START_WAIT_S, START_SHARE * settings.grace_s)
        if now < ready_s:
            reason = f"{drawn.reason}: {words.places(coming)} may be ready soon to take over"
            return Change(None, reason, memory, ready_s)
    if drawn.occasion is Occasion.REBALANCE and memory.promised is not None:
        ready_s = memory.promised[1] + settle_s  # it settled while it was found certain
    if now < ready_s:
        return Change(None, f"settling: {drawn.reason}", memory, ready_s)
    return Change(drawn, drawn.reason, memory)


def _draw(scene: Scene) -> tuple[Plan | None, str]:
    """The first that applies of what a person asks, what changed and what was measured."""
    view, ask, generation = scene.view, scene.ask, scene.generation
    if ask.stop is not None:
        return drafts.pause(generation, f"stop asked by {ask.stop.by or 'a person'}"), ""
    if ask.leave and not ask.stay and not ask.fresh:
        if ask.absent:
            return None, f"waits for {words.places(ask.absent)} before the last node drains"
        return drafts.pause(generation, _departure(view, ask.leave)), ""
    if ask.leave:
        return _leaving(scene), ""
    waits = ""
    if not ask.absent:
        undone = trials.undo(view, scene.memory)
        if undone is not None:
            return undone, ""
        for wish in ask.migrate:
            # One that waits for its target holds back nothing else: it may wait for ever.
            moved, why = migration.migrate(scene, wish)
            if moved is not None:
                return moved, ""
            waits = waits or why
        if scaling.is_under_way(scene.memory):
            return scaling.draw(scene)
    if ask.fresh and not ask.absent and scene.joined is not None and scene.grows:
        return _joining(scene, scene.joined), ""
    if ask.absent:
        return None, f"{words.places(ask.absent)} cannot say ready: its agent has no lease"
    if probing.is_under_way(scene):
        return None, "measures how fast a slot is"
    drawn, idle = rebalancing.rebalance(scene)
    return drawn or probing.probe(scene), waits or _left_waiting(scene) or idle


def _left_waiting(scene: Scene) -> str:
    """Why workers that stand ready are no newcomers."""
    return benching.reason(scene.memory, scene.now) or gathering.out_of_reach(scene.view)


def _coming(scene: Scene) -> list[WorkerId]:
    """Workers that start up, or answer late, where nothing drains: they could take over."""
    view = scene.view
    slots = drafts.slots_of(view)
    starting = [worker for worker, slot in slots.items() if slot.state == "starting"]
    if scene.ask.stop is not None or any(_hurries(view, worker) for worker in scene.ask.leave):
        return []
    late = benching.may_answer_yet(scene.memory, scene.now)
    return sorted(w for w in (*starting, *late) if not is_drained(view, w, slots))


def _hurries(view: JobView, worker: WorkerId) -> bool:
    """It would be killed before somebody who starts up now could take over."""
    node = view.nodes.get(worker.node)
    return node is not None and node.record.hurries


def _members(scene: Scene, layout: Layout) -> list[WorkerId]:
    """Who stays keeps its order, newcomers with ranks come after.

    Who is left without ranks stays a member: its worker, and how slow it was, stay known.
    A generation shares a member that holds the state with the one before: where only newcomers
    get ranks, all that are there stay without, and who is to leave does so in the next one.
    """
    view, base = scene.view, scene.base
    kept = (*layout.ranks, *scene.ask.stay)
    staying = [worker for worker in base.workers if worker in kept]
    if not any(view.holds_state(worker) for worker in staying):
        staying = [worker for worker in base.workers if view.is_present(worker)]
    return [*staying, *sorted(worker for worker in layout.ranks if worker not in staying)]


def _leaving(scene: Scene) -> Plan:
    ask, base = scene.ask, scene.base
    fresh = scene.fresh
    present = {w: held for w, held in scene.present.items() if w in ask.stay}
    doubts = scene.memory.doubts
    layout = drafts.lay_out(scene.view, [*ask.stay, *fresh], present=present, doubts=doubts)
    if ask.stay:
        kept = drafts.lay_out(scene.view, ask.stay, present=present, use_all=True, doubts=doubts)
        layout = kept if kept.step <= layout.step else layout
    order = _members(scene, layout)
    departure = _departure(scene.view, ask.leave)
    if any(worker in ask.leave for worker in order):
        takers = [worker for worker in order if worker in layout.ranks]
        verb = "takes" if len(takers) == 1 else "take"
        departure = f"{words.places(takers)} {verb} over from {departure}"
    return drafts.draft(
        layout,
        generation=scene.generation,
        mode=Mode.BOUNDARY,
        order=order,
        main=base.main,
        reason=departure + _left_out(ask.absent),
    )


def _left_out(absent: Sequence[WorkerId]) -> str:
    return f"; {words.places(absent)} left out, its agent has no lease" if absent else ""


def _departure(view: JobView, leave: Sequence[WorkerId]) -> str:
    """`node b (SIGTERM, 30 s grace)`, or the slots: who asked for it, or what their agent says."""
    slots = drafts.slots_of(view)
    parts = []
    for node in sorted({worker.node for worker in leave}):
        gone = [worker for worker in leave if worker.node == node]
        whole = all(w in gone for w, s in slots.items() if w.node == node and s.state == "in_use")
        asked = (wish.by for wish in view.wishes.values() if wish.by and drains(wish, gone[0]))
        own = dict.fromkeys(why for w in gone if w in slots and (why := slots[w].withdrawn))
        by = next(asked, "; ".join(own))
        name = f"node {node}" if whole else words.places(gone)
        parts.append(f"{name} ({by})" if by else name)
    return words.listed(parts)


def _joining(scene: Scene, layout: Layout) -> Plan:
    base, ask = scene.base, scene.ask
    slots = drafts.slots_of(scene.view)
    new = sorted(worker for worker in layout.ranks if worker not in base.workers)
    if len(new) == 1:
        reason = f"new worker takes {words.ranks(layout.ranks[new[0]])}"
    else:
        kinds = Counter(short_kind(slots[worker].kind) for worker in new)
        reason = ", ".join(
            f"{words.count(n, 'slot')}{' ' + kind if kind else ''}"
            for kind, n in sorted(kinds.items())
        )
    idle = len(ask.fresh) - len(new)
    if idle:
        reason = f"{reason}, {idle} {'stays' if idle == 1 else 'stay'} standby"
    return drafts.draft(
        layout,
        generation=scene.generation,
        mode=Mode.BOUNDARY,
        order=_members(scene, layout),
        main=base.main,
        reason=reason,
    )
