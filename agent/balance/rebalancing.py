"""Ranks move between the members of a running job, and to who waits, for measured speeds. Pure.

What is promised must be worth it, certain, of late too, and not tried in vain.
"""

from dataclasses import replace

from easyscale.agent import drafts, gathering, words
from easyscale.agent.balance import probing, profile, swings, trials
from easyscale.agent.balance.planner import shares
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Memory
from easyscale.model import Occasion, Plan

#: A step shows what the slots say when it takes at least this share of it.
_SHOWN = 0.8


def rebalance(scene: Scene) -> tuple[Plan | None, str]:
    """Move ranks between the members, if measurements promise enough and it was not tried."""
    view, ask, memory = scene.view, scene.ask, scene.memory
    balance = scene.settings.balance
    slots = drafts.slots_of(view)
    own = [slots[worker] for worker in (*ask.stay, *scene.fresh) if worker in slots]
    idle = _why_idle(scene) or swings.why(memory, balance)
    if not own or not profile.are_measured(slots[w] for w in scene.holding if w in slots):
        return None, idle
    layout = scene.best
    if not (ask.rebalance and layout.step < scene.step_now):
        if not scene.is_worth_it(layout):
            return None, idle
        if not scene.is_certain(layout):
            return None, "waits until what slots measure is more than noise"
    if memory.appeal is not None and not ask.rebalance:
        return None, "waits until steps show whether the map before is better"
    is_old = memory.unproven is not None and not probing.is_in_vain(scene)
    if is_old and memory.position - (memory.unproven or 0) < balance.proof_steps:
        return None, "waits until steps show what the slots say"
    reason = profile.rebalance_reason(
        own,
        before={worker: len(ranks) for worker, ranks in scene.present.items()},
        after={worker: len(ranks) for worker, ranks in layout.ranks.items()},
    )
    drawn = scene.draft(layout, reason=reason, occasion=Occasion.REBALANCE)
    failed = trials.failed_before(drawn, memory, slots, balance)
    if failed is not None and not ask.rebalance:
        counts = shares(len(ranks) for ranks in layout.ranks.values())
        return None, f"{counts} {trials.BROKE_PROMISE}"
    return drawn, ""


def follow_promise(scene: Scene) -> Memory:
    """Since when another map of the same slots would be worth a move, if it is what they say."""
    memory = swings.follow(scene.view, scene.memory, scene.settings.balance)
    scene = replace(scene, memory=memory)
    slots = drafts.slots_of(scene.view)
    own = [slots[w] for w in scene.holding if w in slots]
    is_so = bool(own) and profile.are_measured(own) and scene.is_worth_it(scene.best)
    if not (is_so and scene.holds_of_late(scene.best)):
        return replace(memory, promised=None)
    return replace(memory, promised=memory.promised or (memory.position, scene.now))


def _why_idle(scene: Scene) -> str:
    """Why slots that could join do not, if there are any."""
    view, fresh = scene.view, scene.ask.fresh
    other = gathering.misfits(view, scene.settings)
    if other and view.spec is not None:
        kinds = words.listed(sorted({slot.kind for slot in other}))
        where = words.places(slot.worker for slot in other if slot.worker is not None)
        stays = "stays" if len(other) == 1 else "stay"
        return f"{where} {stays} standby: of kind {kinds}, the job is of kind {view.spec.kind}"
    if not fresh:
        return ""
    stays = "stays" if len(fresh) == 1 else "stay"
    return f"{words.count(len(fresh), 'slot')} {stays} standby: the step would not be shorter"


def follow_proof(scene: Scene) -> Memory:
    """A step cannot be shorter than the work of its slowest slot: then a measurement is old."""
    memory, measured = scene.memory, scene.measured_step
    if measured is None or measured >= _SHOWN * scene.step_now:
        return replace(memory, unproven=None)
    return memory if memory.unproven is not None else replace(memory, unproven=memory.position)
