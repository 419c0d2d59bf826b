"""Doubts of slots as records keep them: who explains a plan counts as its leader does. Pure.

A factor that follows measurements is written anew only when it has changed clearly.
"""

from collections.abc import Iterable

from easyscale.agent import words
from easyscale.agent.memory import Doubt, Memory
from easyscale.balance import DoubtedSlot
from easyscale.model import WorkerId

#: A factor stands as it is written until it has changed by this share.
_CLEARLY = 0.1
#: Less makes no difference to a plan.
_LEAST = 1.01


def told(memory: Memory, known: Iterable[DoubtedSlot]) -> tuple[DoubtedSlot, ...]:
    """The leader's doubts for a record, those that stand there already as they stand there."""
    written = {each.worker: each for each in known}
    found = (
        _told(worker, doubt, memory)
        for worker, doubt in sorted(memory.doubts.items())
        if doubt.factor >= _LEAST
    )
    return tuple(_as_written(each, written.get(each.worker)) for each in found)


def _told(worker: WorkerId, doubt: Doubt, memory: Memory) -> DoubtedSlot:
    reason = _reason(worker, memory)
    if worker in memory.starved:  # it follows each measurement, and the next leader sees who waits
        return DoubtedSlot(worker=worker, factor=doubt.factor, reason=reason)
    return DoubtedSlot(
        worker=worker,
        factor=doubt.factor,
        reason=reason,
        micro_step_s=doubt.micro_step_s,
        until=doubt.until,
    )


def remembered(doubts: Iterable[DoubtedSlot]) -> dict[WorkerId, Doubt]:
    """What the next leader goes on doubting; who else may be to blame, it does not know."""
    return {
        each.worker: Doubt(each.factor, each.micro_step_s, each.until)
        for each in doubts
        if each.until
    }


def _as_written(new: DoubtedSlot, old: DoubtedSlot | None) -> DoubtedSlot:
    if old is None or old.reason != new.reason:
        return new
    is_same = abs(new.factor / old.factor - 1) <= _CLEARLY
    return old if is_same else new


def _reason(worker: WorkerId, memory: Memory) -> str:
    starved = memory.starved.get(worker)
    if starved is not None:
        return f"it waited for data with {words.count(starved.ranks, 'rank')}"
    if not memory.doubts[worker].micro_step_s:
        return "the worker before was slow there, and this one has not been measured"
    return "a step with more ranks there was slower than it promised"


def believed(doubts: Iterable[DoubtedSlot]) -> dict[WorkerId, Doubt]:
    """The same doubts as the leader has them; when each ends is for it to know."""
    return {each.worker: Doubt(factor=each.factor, micro_step_s=0.0, until=0) for each in doubts}
