"""What is believed of a worker that has measured nothing yet, until it has. Pure.

Where one before it was slow it is as slow; where the only slot of its kind is slow, as that was.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from easyscale.agent import drafts
from easyscale.agent.memory import Doubt, Memory
from easyscale.agent.settings import Balance
from easyscale.model import SlotRecord, WorkerId
from easyscale.rendezvous.view import JobView

#: For so many times the steps in which a change has to pay.
FORGOTTEN_AFTER = 10


def remember(view: JobView, memory: Memory, balance: Balance) -> Memory:
    """Note where slow slots are, and what that says of whoever has measured nothing."""
    until = memory.position + FORGOTTEN_AFTER * balance.pays_within
    known = {p: each for p, each in memory.slow_places.items() if memory.position < each[1]}
    slots = drafts.slots_of(view)
    doubts = {w: doubt for w, doubt in memory.doubts.items() if doubt.factor >= 1}
    for worker, slot in slots.items():
        slow = memory.slow.get(worker)
        if slow is not None and slow.ratio >= balance.slow_from:
            known[worker.place] = slow.ratio, until
        elif slot.rank_s:
            known.pop(worker.place, None)
        elif worker.place in known and worker not in doubts:
            doubts[worker] = Doubt(known[worker.place][0], 0.0, known[worker.place][1])
    return replace(memory, slow_places=known, doubts={**_hopes(slots, memory, until), **doubts})


def _hopes(
    slots: Mapping[WorkerId, SlotRecord], memory: Memory, until: int
) -> dict[WorkerId, Doubt]:
    """Who waits is not held to be slow because the only one of its kind that was measured is."""
    measured = Counter(slot.kind for slot in slots.values() if slot.rank_s)
    ratios = {
        slots[worker].kind: slow.ratio
        for worker, slow in memory.slow.items()
        if slow.is_told and worker in slots and measured[slots[worker].kind] == 1
    }
    return {
        worker: Doubt(1 / ratios[slot.kind], 0.0, until)
        for worker, slot in slots.items()
        if not slot.rank_s and slot.kind in ratios
    }
