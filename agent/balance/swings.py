"""Slots that are slow, well and slow again: each time their ranks come back later. Pure.

Ranks leave a slow slot at once, always. After it swung, they return when it has been well for a
while that grows each time, so that they do not follow it for ever; calm is forgiven.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec import structs

from easyscale.agent import drafts, words
from easyscale.agent.balance import profile
from easyscale.agent.memory import Memory
from easyscale.agent.settings import Balance
from easyscale.balance import Swing, SwingingSlot
from easyscale.model import Commit, Occasion, Plan, WorkerId
from easyscale.rendezvous.agreement import JobView

#: The first wait is so many times shorter than the steps in which a change has to pay; each
#: further one takes so many times as long as the one before, up to so many times those steps.
_FIRST_SHARE, _GROWTH, _MOST = 4, 4, 4
#: A swing is forgotten when so many times those steps have passed without another.
FORGOTTEN_AFTER = 10


def note(plan: Plan, view: JobView, memory: Memory, balance: Balance) -> Memory:
    """Remember whose ranks leave because it is slower than it was, and whose come back."""
    if plan.occasion is not Occasion.REBALANCE or view.base is None:
        return memory
    before = _counts(view.base)
    swings = dict(memory.swings)
    until = memory.position + FORGOTTEN_AFTER * balance.pays_within
    for worker, taken_s in _believed(view, memory).items():
        known = swings.get(worker)
        change = _counts(plan).get(worker, 0) - before.get(worker, 0)
        best_s = memory.best.get(worker, taken_s)
        if change < 0 and taken_s > (1 + balance.other_speed) * best_s:
            times = known.times + known.is_back if known is not None else 0
            swings[worker] = Swing(times=times, slow_s=taken_s, until=until)
        elif change > 0 and known is not None and _is_well(taken_s, known, balance):
            swings[worker] = structs.replace(known, is_back=True, since=None, until=until)
    return replace(memory, swings=swings)


def follow(view: JobView, memory: Memory, balance: Balance) -> Memory:
    """Since when those who swung are well; who breaks that off is not forgotten sooner."""
    taken = _believed(view, memory)
    until = memory.position + FORGOTTEN_AFTER * balance.pays_within
    swings: dict[WorkerId, Swing] = {}
    for worker, swing in memory.swings.items():
        if memory.position >= swing.until or worker not in taken:
            continue
        is_well = _is_well(taken[worker], swing, balance)
        if is_well and swing.since is None:
            swings[worker] = structs.replace(swing, since=memory.position)
        elif not is_well and swing.since is not None:
            swings[worker] = structs.replace(swing, since=None, until=until)
        else:
            swings[worker] = swing
    return memory if swings == memory.swings else replace(memory, swings=swings)


def _is_well(taken_s: float, swing: Swing, balance: Balance) -> bool:
    """Ranks that it gets while it is still slow are given for the sake of another slot."""
    return taken_s * (1 + balance.other_speed) < swing.slow_s


def waiting(memory: Memory, balance: Balance) -> frozenset[WorkerId]:
    """Whoever is given no more ranks for now."""
    return frozenset(held_back(told(memory, balance), position=memory.position))


def held_back(slots: Iterable[SwingingSlot], *, position: int) -> dict[WorkerId, str]:
    """Why each of them that waits is given no more ranks."""
    return {
        slot.worker: f"{slot.worker.place} swings: it gets ranks back when it has been well for"
        f" {words.count(slot.wait_steps, 'step')}"
        for slot in slots
        if not slot.swing.is_back and slot.wait_steps
        if slot.swing.since is None or position - slot.swing.since < slot.wait_steps
    }


def told(memory: Memory, balance: Balance) -> tuple[SwingingSlot, ...]:
    """What the leader remembers, for a record: for people, and for the next leader."""
    return tuple(
        SwingingSlot(worker=worker, swing=swing, wait_steps=wait_steps(swing.times, balance))
        for worker, swing in sorted(memory.swings.items())
    )


def wait_steps(times: int, balance: Balance) -> int:
    """How long a slot must have been well that has swung so many times."""
    if not times:
        return 0
    first, most = max(1, balance.pays_within // _FIRST_SHARE), _MOST * balance.pays_within
    return min(most, first * int(_GROWTH ** (times - 1)))


def why(memory: Memory, balance: Balance) -> str:
    """Who is well and waits, and for how long it has to be."""
    well = (slot for slot in told(memory, balance) if slot.swing.since is not None)
    return next(iter(held_back(well, position=memory.position).values()), "")


def _believed(view: JobView, memory: Memory) -> Mapping[WorkerId, float]:
    slots = drafts.slots_of(view)
    known = {w: profile.believed_s(slot, memory.doubts) for w, slot in slots.items()}
    return {worker: taken_s for worker, taken_s in known.items() if taken_s}


def _counts(plan: Commit | Plan) -> dict[WorkerId, int]:
    held = plan.members if isinstance(plan, Commit) else plan.assignments
    return {each.worker: len(each.ranks) for each in held}
