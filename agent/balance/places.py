"""How slow a place was is believed of the next worker there, until that one has measured. Pure."""

from dataclasses import replace

from easyscale.agent import drafts
from easyscale.agent.memory import Doubt, Memory
from easyscale.agent.settings import Balance
from easyscale.rendezvous.view import JobView

#: For so many times the steps in which a change has to pay.
FORGOTTEN_AFTER = 10


def remember(view: JobView, memory: Memory, balance: Balance) -> Memory:
    """Note where slow slots are, and doubt whoever is started there and has measured nothing."""
    until = memory.position + FORGOTTEN_AFTER * balance.pays_within
    known = {p: each for p, each in memory.slow_places.items() if memory.position < each[1]}
    doubts = dict(memory.doubts)
    for worker, slot in drafts.slots_of(view).items():
        slow = memory.slow.get(worker)
        if slow is not None and slow.ratio >= balance.slow_from:
            known[worker.place] = slow.ratio, until
        elif slot.rank_s:
            known.pop(worker.place, None)
        elif worker.place in known and worker not in doubts:
            doubts[worker] = Doubt(known[worker.place][0], 0.0, known[worker.place][1])
    return replace(memory, slow_places=known, doubts=doubts)
