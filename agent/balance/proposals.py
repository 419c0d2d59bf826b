"""What more slots would bring a job: proposals to whoever deals devices out among jobs. Pure.

For each kind the best increment, scored by the gain for each slot; at most a doubling, and no plan
that wastes more than 30 % (EasyScale, section 3).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low

MOST_WASTE = Fraction(30, 100)
#: So many proposals are made.
TOP = 3
#: A slot this many times slower or faster than the median of its kind is not like it.
_ODD = 1.1


@dataclass(frozen=True, slots=True)
class Kind:
    """Slots of one kind: how long a micro-step takes there, how many the job has."""

    name: str
    micro_step: int
    slots: int
    #: More of it could be had; not of slots that are slower, or faster, than their kind.
    grows: bool = True


@dataclass(frozen=True, slots=True)
class Offer:
    """So many slots more of one kind."""

    kind: str
    slots: int
    score: Fraction
    step: int
    waste: Fraction


def kinds_of(slots: Iterable[tuple[str, int]]) -> list[Kind]:
    """The kinds of these slots, given as (kind, micro-step): usual ones as one, others apart."""
    by_kind: dict[str, list[int]] = defaultdict(list)
    for name, micro_step in slots:
        by_kind[name].append(micro_step)
    kinds = []
    for name, times in sorted(by_kind.items()):
        usual = median_low(times)
        odd = Counter(t for t in times if max(t, usual) > _ODD * min(t, usual))
        kinds.append(Kind(name, usual, len(times) - odd.total()))
        kinds += [Kind(f"{name} at {t}", t, n, grows=False) for t, n in sorted(odd.items())]
    return kinds


def propose(
    kinds: Sequence[Kind],
    logical_workers: int,
    *,
    present_step: int | None = None,
    top: int = TOP,
) -> tuple[Offer, ...]:
    """The best increment of each kind, best kind first; nothing where no increment helps."""
    total = sum(kind.slots for kind in kinds)
    if not total:
        return ()
    held = {kind.name: kind.slots for kind in kinds}
    # What the job has may do better than it does now: nobody need give it more for that.
    least = _least_step(kinds, held, logical_workers)
    now = min(present_step or least, least)
    offers = (
        _best(kind, kinds, held, logical_workers, now=now, most=total)
        for kind in kinds
        if kind.grows
    )
    found = [offer for offer in offers if offer is not None]
    return tuple(sorted(found, key=lambda offer: (-offer.score, -offer.slots))[:top])


def _best(
    kind: Kind,
    kinds: Sequence[Kind],
    held: Mapping[str, int],
    n: int,
    *,
    now: int,
    most: int,
) -> Offer | None:
    """Go through the steps that could be reached, not through the increments: both are few."""
    best: Offer | None = None
    for step in sorted({a * each.micro_step for each in kinds for a in range(1, n + 1)}):
        if step >= now:
            break
        missing = n - sum(held[each.name] * (step // each.micro_step) for each in kinds)
        room = step // kind.micro_step
        more = -(-missing // room) if room else most + 1
        if not 1 <= more <= most:
            continue
        with_more = {**held, kind.name: held[kind.name] + more}
        if _least_step(kinds, with_more, n) != step:
            continue  # so many slots do even better: that step has its own turn
        waste = 1 - Fraction(n, step) / sum(
            Fraction(with_more[each.name], each.micro_step) for each in kinds
        )
        if waste > MOST_WASTE:
            continue
        offer = Offer(kind.name, more, (Fraction(now, step) - 1) / more + 1, step, waste)
        if best is None or (offer.score, offer.slots) > (best.score, best.slots):
            best = offer
    return best


def _least_step(kinds: Sequence[Kind], held: Mapping[str, int], n: int) -> int:
    present = [(each.micro_step, held[each.name]) for each in kinds if held[each.name]]
    low, high = 0, n * max(t for t, _ in present)
    while high - low > 1:
        middle = (low + high) // 2
        enough = sum(slots * (middle // t) for t, slots in present) >= n
        low, high = (low, middle) if enough else (middle, high)
    return high
