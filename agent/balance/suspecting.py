"""Who is to blame where a step takes longer than a plan promised: one slot at a time is doubted.

Pure. A slot that lies is the one that all others wait for, and was not before: it gained ranks. If
a step is as long when it has lost some, it was another, and the doubt is taken back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from easyscale.agent.balance import profile
from easyscale.agent.memory import Doubt
from easyscale.model import SlotRecord, WorkerId

#: By less than this share a step is as long as before.
_ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that a map broke: what each slot held before and holds, and what a step took."""

    before: Mapping[WorkerId, int]
    after: Mapping[WorkerId, int]
    #: Seconds of a step without what there is beside micro-steps.
    work_s: float
    #: The position up to which a slot is doubted for it.
    until: int

    def more(self, worker: WorkerId) -> int:
        return self.after.get(worker, 0) - self.before.get(worker, 0)

    def growth(self, worker: WorkerId) -> float:
        """Who claims most beyond the truth is given most."""
        return self.after[worker] / max(1, self.before.get(worker, 0))


def suspect(
    broken: Broken, slots: Mapping[WorkerId, SlotRecord], doubts: Mapping[WorkerId, Doubt]
) -> dict[WorkerId, Doubt]:
    """The doubts from now on: those that this refutes are none any more, and one is new."""
    refuted = {w: doubt for w, doubt in doubts.items() if _is_refuted(w, doubt, broken)}
    # A doubt that changes nothing: it keeps who was cleared from being suspected again.
    cleared = {w: Doubt(1.0, doubt.micro_step_s, broken.until) for w, doubt in refuted.items()}
    found = {**doubts, **cleared}

    def may_be(worker: WorkerId) -> bool:
        """It was not cleared, and says that it takes less time than the step took."""
        slot, held = slots.get(worker), broken.after.get(worker, 0)
        taken_s = profile.believed_s(slot, found) if slot is not None else None
        is_short = taken_s is not None and held * taken_s * (1 + _ALIKE) < broken.work_s
        return bool(held) and is_short and not _is_cleared(found.get(worker))

    left = {w for doubt in refuted.values() for w in doubt.others if broken.more(w) >= 0}
    gained = {worker for worker in broken.after if broken.more(worker) > 0}
    candidates = [w for w in left if may_be(w)] or [w for w in gained if may_be(w)]
    if not candidates:
        return found
    worker = max(candidates, key=lambda w: (broken.growth(w), -(slots[w].rank_s or 0.0), w))
    rank_s = slots[worker].rank_s
    assert rank_s is not None
    others = tuple(sorted(w for w in candidates if w != worker))
    factor = broken.work_s / (broken.after[worker] * rank_s)
    return {**found, worker: Doubt(factor, rank_s, broken.until, others)}


def _is_refuted(worker: WorkerId, doubt: Doubt, broken: Broken) -> bool:
    """It was to blame for a step of this length, holds less now, and the step is no shorter."""
    blamed_s = broken.before.get(worker, 0) * doubt.micro_step_s * doubt.factor
    has_lost = broken.more(worker) < 0
    return has_lost and not _is_cleared(doubt) and broken.work_s >= (1 - _ALIKE) * blamed_s


def _is_cleared(doubt: Doubt | None) -> bool:
    return doubt is not None and doubt.factor == 1.0
