"""Slots that were emptied are looked at again now and then: one rank for a few steps. Pure.

So is, once, a slot that waits on a machine of which nothing was measured: it may be faster than its
kind, or than another kind that trains. If it is, the others there are looked at as well.

The first look is due when the slot would have brought as much meanwhile as the look costs: it may
just have stalled. Who stays slow is looked at ever more seldom, who is of no use not at all.
"""

from collections import defaultdict
from dataclasses import replace
from statistics import median_low

from easyscale.agent import drafts
from easyscale.agent.balance import planner, profile
from easyscale.agent.balance.planner import Layout, Place
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Memory, Probe
from easyscale.model import Occasion, Plan, WorkerId

#: A probe in vain makes the next one wait twice as long, up to so many times the first wait.
_MOST_PATIENCE = 64
#: A slot that was emptied rests at least this long, in steps.
_LEAST_REST = 50
#: A slot so many times slower than a step is known to be so before it has completed a few,
_FAR = 2
#: when they last at least this share of what they last there; so it costs so many steps.
_LONG, _FEWEST_STEPS = 0.5, 3


def follow(scene: Scene) -> Memory:
    """Know which slow slots hold nothing, since when, and how often they were looked at."""
    memory, present = scene.memory, scene.present
    probes: dict[WorkerId, Probe] = {}
    for worker in scene.ask.stay:
        known = memory.probes.get(worker)
        if present[worker]:
            is_look = worker in memory.slow or scene.base.occasion is Occasion.PROBE
            if known is not None and known.began is None:
                if is_look:  # else it came for another reason, and was never measured
                    probes[worker] = replace(known, began=memory.position, began_s=scene.now)
            elif known is not None and (_is_under_way(worker, scene) or worker in memory.slow):
                probes[worker] = known  # it may be emptied again: the wait goes on doubling
        elif worker in memory.slow:
            rests = known is not None and known.began is None
            looks = known.looks + 1 if known is not None else 0
            fresh = Probe(since=memory.position, looks=looks)
            probes[worker] = known if rests and known is not None else fresh
    # Of them, one at a time; each look has its own share of the steps.
    at_it = [w for w in memory.probes if w not in memory.slow and _is_under_way(w, scene)]
    for worker in _unknown(scene):
        known = memory.probes.get(worker)
        probes[worker] = known if known is not None and not at_it else Probe(memory.position)
    return replace(memory, probes=probes)


def _unknown(scene: Scene) -> list[WorkerId]:
    """Who waits, was never measured, and may be faster than it is believed to be."""
    view, slots, doubts = scene.view, drafts.slots_of(scene.view), scene.memory.doubts
    fresh = [w for w in scene.fresh if not slots[w].rank_s and w not in doubts]
    if not fresh or not profile.are_measured(slots[w] for w in scene.holding if w in slots):
        return []
    hosts = {name: node.record.host for name, node in view.nodes.items()}
    there: dict[tuple[str, str], list[int]] = defaultdict(list)
    for worker, slot in slots.items():
        if slot.rank_s:
            there[hosts[worker.node], slot.kind].append(scene.times[worker])
    where = {(hosts[worker.node], slots[worker].kind) for worker in fresh}
    # Nothing of its kind was measured on its machine, or what was would be worth a move.
    useful = {each for each in where if each not in there or _pays(median_low(there[each]), scene)}
    most = drafts.bounds(view, [*scene.ask.stay, *fresh])
    return [w for w in fresh if (hosts[w.node], slots[w].kind) in useful and most.get(w, 1)]


def _pays(taken: int, scene: Scene) -> bool:
    """One more slot that is so fast would be worth a move."""
    places = [Place(worker, scene.times.get(worker, 1)) for worker in scene.ask.stay]
    n = sum(len(held) for held in scene.present.values())
    least = planner.least_step([*places, Place(scene.fresh[0], taken)], n)
    return scene.step_now - least >= scene.settings.balance.least_gain * scene.step_now


def is_under_way(scene: Scene) -> bool:
    """A slot has just been given a rank to see how fast it is: nothing moves until it is known."""
    return any(_is_under_way(worker, scene) for worker in scene.memory.probes)


def _is_under_way(worker: WorkerId, scene: Scene) -> bool:
    """It has not had its steps, or they are too fresh for its agent to have passed them on."""
    balance, known = scene.settings.balance, scene.memory.probes[worker]
    if known.began is None or not scene.present.get(worker) or _lasts(worker, scene):
        return False
    steps = scene.memory.position - known.began
    return steps < balance.probe_steps or scene.now - known.began_s < balance.probe_least_s


def is_in_vain(scene: Scene) -> bool:
    """A slot that is looked at is as slow as it was: its steps last, whatever else is known."""
    return any(_lasts(worker, scene) for worker in scene.memory.probes)


def _lasts(worker: WorkerId, scene: Scene) -> bool:
    known = scene.memory.probes[worker]
    if known.began is None or not scene.present.get(worker):
        return False
    slow = scene.times[worker]
    others = {w: held for w, held in scene.present.items() if w != worker}
    if slow < _FAR * scene.step_with(others):
        return False
    steps = scene.memory.position - known.began
    lasted_s = (scene.now - known.began_s) / (steps + 1)
    return lasted_s >= _LONG * profile.seconds(slow)


def probe(scene: Scene) -> Plan | None:
    """Give one rank to a slot whose turn it is; a map that is on trial is judged first."""
    if scene.memory.trial is not None:
        return None
    present = scene.present
    due = [worker for worker in sorted(scene.memory.probes) if _is_due(worker, scene)]
    if not due:
        return None
    slot, times = due[0], scene.times
    # Where nobody has more than one, somebody does without for these steps.
    giver = max(
        (worker for worker in scene.ask.stay if present[worker]),
        key=lambda worker: (len(present[worker]) > 1, len(present[worker]) * times[worker], worker),
    )
    given = present[giver][-1]
    ranks = {**present, giver: present[giver][:-1], slot: (given,)}
    layout = Layout({w: held for w, held in ranks.items() if held}, scene.step_now, (given,), "")
    how = "how fast it is now" if slot in present else "how fast it is"
    reason = f"{slot.place} is given rank {given} for some steps, to see {how}"
    return scene.draft(layout, reason=reason, occasion=Occasion.PROBE)


def _is_due(worker: WorkerId, scene: Scene) -> bool:
    known = scene.memory.probes[worker]
    if known.began is None and worker in scene.fresh:
        rest = _rest_of_unknown(scene)
        progress = scene.view.progress
        left = progress.steps - progress.step if progress and progress.steps is not None else rest
        rested = scene.memory.position - known.since
        return rested >= rest and left >= rest
    if known.began is not None or worker not in scene.present or scene.present[worker]:
        return False
    rested = scene.memory.position - known.since
    return rested >= _LEAST_REST and rested >= _rest(worker, known.looks, scene)


def _rest(worker: WorkerId, looks: int, scene: Scene) -> float:
    """How many steps it rests: at first what a look costs for its gain, then for its share."""
    balance = scene.settings.balance
    gain = _gain(worker, scene)
    if gain <= 0:
        return float("inf")
    beyond = max(0.0, scene.times[worker] / max(1, scene.step_now) - 1)
    steps = balance.probe_steps if beyond < _FAR - 1 else min(balance.probe_steps, _FEWEST_STEPS)
    if not looks:
        return steps * beyond / max(gain, balance.probe_share)
    first = max(2 * _LEAST_REST, steps * beyond / balance.probe_share)
    return min(2.0 ** (looks - 1), _MOST_PATIENCE) * first


def _rest_of_unknown(scene: Scene) -> float:
    """So many steps that joining and looking is its share of them."""
    balance = scene.settings.balance
    pause = balance.join_pause_s / profile.seconds(max(1, scene.step_now))
    return max(_LEAST_REST, (pause + balance.probe_steps) / balance.probe_share)


def _gain(worker: WorkerId, scene: Scene) -> float:
    """By what share a step would be shorter if it were as fast as usual."""
    slow = scene.memory.slow.get(worker)
    if slow is None:
        return 0.0
    usual = max(1, round(scene.times[worker] / slow.ratio))
    places = [
        Place(each, usual if each == worker else scene.times.get(each, 1))
        for each in scene.ask.stay
    ]
    n = sum(len(held) for held in scene.present.values())
    step = scene.step_now
    return (step - planner.least_step(places, n)) / max(1, step)
