"""Slots that waited for data are believed to wait again with as many ranks as they had then. Pure.

A loader works ahead while its slot waits for others: with fewer ranks it is always in time, and the
slot looks well until it has them back.
"""

from collections.abc import Mapping
from dataclasses import replace

from easyscale.agent import drafts
from easyscale.agent.memory import Doubt, Memory, Starved
from easyscale.agent.settings import Balance
from easyscale.model import SlotRecord, WorkerId
from easyscale.rendezvous.view import JobView

#: From this share of a rank's time on a wait is no accident.
_SHARE = 0.1
#: A loader is given another chance after so many times the steps in which a change has to pay.
_FORGIVEN_AFTER = 10


def follow(view: JobView, memory: Memory, balance: Balance) -> Memory:
    """Remember which slots waited, and doubt what they measure where it says less of it."""
    if view.base is None:
        return memory
    held = {worker: len(ranks) for worker, ranks in drafts.ranks_of(view.base).items()}
    slots = drafts.slots_of(view)
    starved = {
        worker: found
        for worker in view.base.workers
        if (found := _starved(slots.get(worker), held[worker], memory, balance)) is not None
    }
    doubts = {w: doubt for w, doubt in memory.doubts.items() if w not in memory.starved}
    return replace(memory, starved=starved, doubts={**doubts, **_doubts(starved, slots)})


def _starved(
    slot: SlotRecord | None, ranks: int, memory: Memory, balance: Balance
) -> Starved | None:
    if slot is None or slot.worker is None or not slot.rank_s:
        return None
    known = memory.starved.get(slot.worker)
    if known is not None and ranks < known.ranks:
        return known if memory.position < known.until else None
    if (slot.data_wait_s or 0.0) < _SHARE * slot.rank_s:
        return None
    until = memory.position + _FORGIVEN_AFTER * balance.pays_within
    return Starved(slot.rank_s, slot.data_wait_s or 0.0, ranks, until)


def _doubts(
    starved: Mapping[WorkerId, Starved], slots: Mapping[WorkerId, SlotRecord]
) -> dict[WorkerId, Doubt]:
    return {
        worker: Doubt(believed_s / rank_s, rank_s, known.until)
        for worker, known in starved.items()
        if (rank_s := slots[worker].rank_s)
        and (believed_s := _believed_s(slots[worker], known)) > rank_s
    }


def _believed_s(slot: SlotRecord, known: Starved) -> float:
    """Its micro-step as it is now and the wait as it was; no more than a batch took then."""
    return min(known.rank_s, (slot.micro_step_s or 0.0) + known.wait_s)
