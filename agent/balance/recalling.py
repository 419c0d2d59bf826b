"""What a new leader takes from the records: the plan before, what was tried, who is slow. Pure.

Who was told slow stays so until it is seen to be well: a new leader is no news of a slot.
"""

from dataclasses import replace

from easyscale.agent.balance import doubting
from easyscale.agent.memory import Memory, Slowness
from easyscale.balance import FormerPlan, SpeedRecord
from easyscale.model import Commit
from easyscale.rendezvous.agreement import JobView


def recall(view: JobView, memory: Memory) -> Memory:
    """Know the plan before the present one, and as a new leader what was tried."""
    base, written = view.base, view.speed
    if base is None or memory.replaced_by == base.generation:
        return memory
    if memory.replaced_by is None and written is not None:
        memory = _as_written(memory, written, base)
    if written is not None and written.generation == base.generation:
        return replace(memory, replaced_by=base.generation, former=written.former)
    earlier = [c for g, c in view.commits.items() if g < base.generation and c.members]
    former = max(earlier, key=lambda commit: commit.generation, default=None)
    return replace(
        memory, replaced_by=base.generation, former=_former(former, base) if former else None
    )


def _as_written(memory: Memory, written: SpeedRecord, base: Commit) -> Memory:
    """Of slots that are members still; when each became slow is known by the step only."""
    slow = [each for each in written.slow if each.worker in base.workers]
    trial = written.trial
    return replace(
        memory,
        tried=written.tried,
        doubts=doubting.remembered(written.doubts),
        swings={each.worker: each.swing for each in written.swings},
        trial=trial if trial is not None and trial.generation == base.generation else None,
        best={each.worker: each.micro_step_s / each.ratio for each in slow},
        slow={
            each.worker: Slowness(
                since=memory.position,
                since_step=each.since_step,
                micro_step_s=each.micro_step_s,
                ratio=each.ratio,
                usual="",
                is_told=True,
                reason=each.reason,
            )
            for each in slow
        },
    )


def _former(former: Commit, base: Commit) -> FormerPlan:
    step_s = base.step_s[0] if base.step_s else former.step_s[1] if former.step_s else None
    counts = {member.worker.place: len(member.ranks) for member in former.members}
    return FormerPlan(generation=former.generation, step_s=step_s, counts=counts)
