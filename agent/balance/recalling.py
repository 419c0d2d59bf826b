"""What a new leader takes from the records: the plan before, what was tried, who swings. Pure."""

from dataclasses import replace

from easyscale.agent.balance import swings
from easyscale.agent.memory import Memory
from easyscale.balance import FormerPlan
from easyscale.model import Commit
from easyscale.rendezvous.agreement import JobView


def recall(view: JobView, memory: Memory) -> Memory:
    """Know the plan before the present one, and as a new leader what was tried."""
    base, written = view.base, view.speed
    if base is None or memory.replaced_by == base.generation:
        return memory
    if memory.replaced_by is None and written is not None:
        memory = replace(memory, tried=written.tried, swings=swings.remembered(written.swings))
    if written is not None and written.generation == base.generation:
        return replace(memory, replaced_by=base.generation, former=written.former)
    earlier = [c for g, c in view.commits.items() if g < base.generation and c.members]
    former = max(earlier, key=lambda commit: commit.generation, default=None)
    return replace(
        memory, replaced_by=base.generation, former=_former(former, base) if former else None
    )


def _former(former: Commit, base: Commit) -> FormerPlan:
    step_s = base.step_s[0] if base.step_s else former.step_s[1] if former.step_s else None
    counts = {member.worker.place: len(member.ranks) for member in former.members}
    return FormerPlan(generation=former.generation, step_s=step_s, counts=counts)
