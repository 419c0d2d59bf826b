"""How fast each slot computes this job: medians of measured micro-steps, and what stands in.

A slot is judged by its own measurements, so a slow device of a fast kind is seen. Until it has
some, the lower median of its kind stands in (of two, the faster), then that of all kinds, then
equality.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low

import msgspec

from easyscale.agent.memory import Doubt
from easyscale.kinds import short_kind
from easyscale.model import SlotRecord, WorkerId

NS_PER_S = 1_000_000_000
_SURE: Mapping[WorkerId, Doubt] = {}


def micro_steps(
    slots: Iterable[SlotRecord], doubts: Mapping[WorkerId, Doubt] = _SURE
) -> dict[WorkerId, int]:
    """Nanoseconds of a micro-step for every worker: measured, and believed, or stood in for."""
    taken = {slot.worker: slot for slot in slots if slot.worker is not None}
    measured = {
        worker: seconds_ for worker, slot in taken.items() if (seconds_ := believed_s(slot, doubts))
    }
    by_kind: dict[str, list[float]] = defaultdict(list)
    for worker, seconds_ in measured.items():
        by_kind[taken[worker].kind].append(seconds_)
    of_kind = {kind: median_low(values) for kind, values in by_kind.items()}
    of_all = median(of_kind.values()) if of_kind else 1.0
    stand_in = {
        worker: of_kind.get(slot.kind, of_all) * (doubts[worker].factor if worker in doubts else 1)
        for worker, slot in taken.items()
    }
    return {worker: nanoseconds(measured.get(worker, stand_in[worker])) for worker in taken}


def of_late(slots: Iterable[SlotRecord]) -> tuple[SlotRecord, ...]:
    """The same slots as if the last few steps were all that is known of them."""
    return tuple(
        msgspec.structs.replace(slot, micro_step_s=slot.recent_s, data_wait_s=None)
        if slot.recent_s
        else slot
        for slot in slots
    )


def believed_s(slot: SlotRecord, doubts: Mapping[WorkerId, Doubt]) -> float | None:
    """What a rank takes there by its measurement, and by what contradicts that."""
    doubt = doubts.get(slot.worker) if slot.worker is not None else None
    return slot.rank_s * (doubt.factor if doubt is not None else 1.0) if slot.rank_s else None


def are_measured(slots: Iterable[SlotRecord]) -> bool:
    """Every slot that computes has measurements of its own: a comparison means something."""
    return all(slot.micro_step_s for slot in slots)


def noise(slots: Iterable[SlotRecord]) -> float:
    """How far micro-steps lie around their median, as a share, on the least steady slot."""
    return max((slot.spread or 0.0 for slot in slots), default=0.0)


def seconds(ns: int) -> float:
    return ns / NS_PER_S


def nanoseconds(seconds_: float) -> int:
    """To the nearest: what is written in round numbers is planned with as it is written.

    1.005 is a little less as a float. Cut off, three times 0.335 s would not fit into it.
    """
    return max(1, round(seconds_ * NS_PER_S))


def rebalance_reason(
    slots: Sequence[SlotRecord],
    *,
    before: Mapping[WorkerId, int],
    after: Mapping[WorkerId, int],
) -> str:
    """`A100 13.2/s, H100 26.3/s: a 2 → 3, b 2 → 1 a slot`."""
    rates: dict[str, list[float]] = defaultdict(list)
    moves: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for slot in slots:
        if slot.worker is None:
            continue
        if slot.rank_s:
            kind = short_kind(slot.kind) or slot.slot.partition(":")[0]
            rates[kind].append(1 / slot.rank_s)
        change = before.get(slot.worker, 0), after.get(slot.worker, 0)
        if change[0] != change[1]:
            moves[slot.worker.node].add(change)
    speeds = ", ".join(f"{kind} {_range(each)}/s" for kind, each in sorted(rates.items()))
    shifts = ", ".join(
        f"{node} " + " and ".join(f"{a} → {b}" for a, b in sorted(changes))
        for node, changes in sorted(moves.items())
    )
    return f"{speeds}: {shifts} a slot"


def _range(rates: Sequence[float]) -> str:
    """`13.2`, and `6.6 to 13.2` where slots of one kind differ a lot."""
    low, high = min(rates), max(rates)
    return f"{median(rates):.3g}" if high < 1.2 * low else f"{low:.3g} to {high:.3g}"
