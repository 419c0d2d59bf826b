"""How fast each slot computes this job: medians of measured micro-steps, and what stands in.

A slot is judged by its own measurements, so a slow device of a fast kind is seen. Until it has
some, its kind's median stands in, then the median of all, then equality.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from easyscale.agent import words
from easyscale.model import SlotRecord, WorkerId

_NS_PER_S = 1_000_000_000


def micro_steps(slots: Iterable[SlotRecord]) -> dict[WorkerId, int]:
    """Nanoseconds of a micro-step for every worker, measured or stood in for."""
    taken = [slot for slot in slots if slot.worker is not None]
    by_kind: dict[str, list[float]] = defaultdict(list)
    for slot in taken:
        if slot.micro_step_s:
            by_kind[slot.kind].append(slot.micro_step_s)
    of_kind = {kind: median(values) for kind, values in by_kind.items()}
    of_all = median(of_kind.values()) if of_kind else 1.0
    return {
        slot.worker: max(1, int((slot.micro_step_s or of_kind.get(slot.kind, of_all)) * _NS_PER_S))
        for slot in taken
        if slot.worker is not None
    }


def are_measured(slots: Iterable[SlotRecord]) -> bool:
    """Every slot that computes has measurements of its own: a comparison means something."""
    return all(slot.micro_step_s for slot in slots)


def seconds(nanoseconds: int) -> float:
    return nanoseconds / _NS_PER_S


def rebalance_reason(
    slots: Sequence[SlotRecord],
    *,
    before: Mapping[WorkerId, int],
    after: Mapping[WorkerId, int],
    step_s: tuple[float, float],
) -> str:
    """`A100 13.2/s, H100 26.3/s: a 2 → 3, b 2 → 1 a slot; step 156 → 118 ms`."""
    rates: dict[str, list[float]] = defaultdict(list)
    moves: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for slot in slots:
        if slot.worker is None or not slot.micro_step_s:
            continue
        rates[slot.kind or slot.slot.partition(":")[0]].append(1 / slot.micro_step_s)
        change = before.get(slot.worker, 0), after.get(slot.worker, 0)
        if change[0] != change[1]:
            moves[slot.worker.node].add(change)
    speeds = ", ".join(f"{kind} {median(each):.3g}/s" for kind, each in sorted(rates.items()))
    shifts = ", ".join(
        f"{node} " + " and ".join(f"{a} → {b}" for a, b in sorted(changes))
        for node, changes in sorted(moves.items())
    )
    return f"{speeds}: {shifts} a slot; step {words.becomes(*step_s)}"
