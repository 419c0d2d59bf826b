"""Slots that were emptied are looked at again now and then: one rank for a few steps. Pure.

The first look is due when the slot would have brought as much meanwhile as the look costs: it may
just have stalled. Who stays slow is looked at ever more seldom, who is of no use not at all.
"""

from dataclasses import replace

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
            if known is not None and known.began is None:
                probes[worker] = replace(known, began=memory.position, began_s=scene.now)
            elif known is not None and (_is_under_way(worker, scene) or worker in memory.slow):
                probes[worker] = known  # it may be emptied again: the wait goes on doubling
        elif worker in memory.slow:
            rests = known is not None and known.began is None
            looks = known.looks + 1 if known is not None else 0
            fresh = Probe(since=memory.position, looks=looks)
            probes[worker] = known if rests and known is not None else fresh
    return replace(memory, probes=probes)


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
    """Give one rank to a slot whose turn it is."""
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
    reason = f"{slot.place} is given rank {given} for some steps, to see how fast it is now"
    return scene.draft(layout, reason=reason, occasion=Occasion.PROBE)


def _is_due(worker: WorkerId, scene: Scene) -> bool:
    known = scene.memory.probes[worker]
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
