"""Which slots are slow: much slower than their kind for several steps, until they are not. Pure.

A slot alone of its kind is held against its own best. Coming back takes more than leaving, so that
a slot at the border is not called slow and well by turns.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low

from easyscale.agent import drafts
from easyscale.agent.balance import planner
from easyscale.agent.memory import Memory, Slowness
from easyscale.agent.settings import Balance
from easyscale.model import Commit, SlotRecord, WorkerId
from easyscale.rendezvous.view import JobView


def notice(view: JobView, memory: Memory, balance: Balance, now: float) -> Memory:
    """Hold every member's measurement against what is usual."""
    base = view.base
    if base is None:
        return memory
    slots = drafts.slots_of(view)
    measured = {w: s for w in base.workers if (s := slots.get(w)) is not None and s.micro_step_s}
    best = {
        worker: min(memory.best.get(worker, slot.micro_step_s), slot.micro_step_s)
        for worker, slot in measured.items()
        if slot.micro_step_s
    }
    memory = replace(memory, best=best)
    usual = _usual(measured, best)
    step = view.progress.step if view.progress else 0
    slow = {
        worker: replace(found, since_step=step) if worker not in memory.slow else found
        for worker, slot in measured.items()
        if (found := _judge(slot, usual[worker], memory, balance, now))
    }
    told = {w: replace(s, reason=_reason(w, s, view, base)) for w, s in slow.items() if s.is_told}
    return replace(memory, slow={**slow, **told})


def _usual(
    measured: Mapping[WorkerId, SlotRecord], best: Mapping[WorkerId, float]
) -> dict[WorkerId, float]:
    """The lower median of its kind: of two slots the faster one."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for slot in measured.values():
        by_kind[slot.kind].append(slot.micro_step_s or 0.0)
    return {
        worker: median_low(by_kind[slot.kind]) if len(by_kind[slot.kind]) > 1 else best[worker]
        for worker, slot in measured.items()
    }


def _judge(
    slot: SlotRecord, usual_s: float, memory: Memory, balance: Balance, now: float
) -> Slowness | None:
    assert slot.worker is not None
    assert slot.micro_step_s
    known = memory.slow.get(slot.worker)
    ratio = slot.micro_step_s / usual_s
    recovered = 1 + (balance.slow_from - 1) / 2
    if known is not None and known.is_told:
        if ratio >= recovered:
            return replace(known, micro_step_s=slot.micro_step_s, ratio=ratio, well_s=None)
        well_s = now if known.well_s is None else known.well_s
        return None if now - well_s >= balance.slow_least_s else replace(known, well_s=well_s)
    if ratio < balance.slow_from:
        return None
    if known is None:
        usual = "its kind" if usual_s != memory.best.get(slot.worker) else "its best"
        known = Slowness(
            since=memory.position,
            since_step=memory.position,
            micro_step_s=slot.micro_step_s,
            ratio=ratio,
            usual=usual,
            is_told=False,
            since_s=now,
        )
    is_told = (
        memory.position - known.since >= balance.slow_steps
        and now - known.since_s >= balance.slow_least_s
    )
    return replace(known, micro_step_s=slot.micro_step_s, ratio=ratio, is_told=is_told)


def _reason(worker: WorkerId, slow: Slowness, view: JobView, base: Commit) -> str:
    """How slow, and what else could be: `...; holds 1, without it 152 ms (4+4+4+4)`."""
    speed = f"{slow.micro_step_s * 1000:.3g} ms, {slow.ratio:.2g} × {slow.usual}"  # noqa: RUF001
    held = len(drafts.ranks_of(base)[worker])
    if not held:
        return f"{speed}: emptied, a rank there would be what all others wait for"
    others = [each for each in base.workers if each != worker]
    if not others:
        return f"{speed}; no other slot"
    layout = drafts.lay_out(view, others, present=drafts.ranks_of(base))
    best = layout.step / 1_000_000
    counts = planner.shares(len(ranks) for ranks in layout.ranks.values())
    return f"{speed}; holds {held}, without it {best:.3g} ms ({counts})"
