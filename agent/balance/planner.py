"""Logical workers onto slots: the least step time, exactly; then fewest slots, least movement.

A slot that takes t per micro-step does floor(F / t) of them in F. The optimum is the least F in
which all slots together do N: a step function of F, searched over integers (EasyScale, section 3).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import sqrt
from operator import attrgetter
from typing import cast

from easyscale.agent.balance.dealing import (
    Slot,
    deal_at_first,
    deal_between,
    partials,
)
from easyscale.agent.balance.searching import (
    MOST_SEARCHED,
    MOST_WORK,
    fewer_subtrees,
    least_subtrees,
)
from easyscale.errors import UsageError
from easyscale.model import LogicalRank, WorkerId

#: Up to so many slots that hold ranks, all sets of them are compared.
_MOST_HOLDING = 8
#: So many micro-steps that may end the step are gone through one by one.
_FEW_ENDS = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A worker that could compute, how long a micro-step takes there, and what it holds now."""

    worker: WorkerId
    #: In any unit that all places share, usually nanoseconds.
    micro_step: int = 1
    ranks: tuple[LogicalRank, ...] = ()
    #: It has memory for so many ranks; None: nothing bounds it.
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Which logical ranks each worker computes; a place without ranks is left out."""

    ranks: Mapping[WorkerId, tuple[LogicalRank, ...]]
    #: Time of one step's micro-steps, in the unit of the places.
    step: int
    #: Logical ranks whose present worker is another one or none.
    moved: tuple[LogicalRank, ...]
    reason: str


def follow(layout: Sequence[Sequence[LogicalRank]], places: Sequence[Place]) -> Layout:
    """The layout that a person named, worker by worker in the order of their slots."""
    ordered = sorted(places, key=lambda place: place.worker)
    ranks = {place.worker: tuple(held) for place, held in zip(ordered, layout, strict=True)}
    before = {rank: place.worker for place in ordered for rank in place.ranks}
    return Layout(
        ranks={worker: held for worker, held in ranks.items() if held},
        step=max(place.micro_step * len(ranks[place.worker]) for place in ordered),
        moved=tuple(sorted(r for w, held in ranks.items() for r in held if before.get(r) != w)),
        reason="as --layout says",
    )


def plan(places: Sequence[Place], *, logical_workers: int, use_all: bool = False) -> Layout:
    """The best layout of `logical_workers` ranks; neither order nor names of `places` decide it.

    With `use_all` no slot is emptied to use fewer: after a loss only what was lost shall move.
    """
    _check(places, logical_workers)
    step = least_step(places, logical_workers)
    by_name = sorted(places, key=attrgetter("worker"))
    order = _by_nature(by_name)
    ordered = [by_name[i] for i in order]
    capacity = [_capacity(place, step) for place in ordered]
    useful = [i for i, size in enumerate(capacity) if size]
    choices = [useful] if use_all else fewest_slots(ordered, capacity, logical_workers)
    slots = [
        Slot(tuple(sorted(place.ranks)) if place.ranks else (), size, place.micro_step)
        for place, size in zip(ordered, capacity, strict=True)
    ]
    if any(slots[i].held for i in choices[0]):
        chosen, dealt, moved = _deal(slots, choices, logical_workers)
    else:  # neighbours get neighbouring ranks: who is who cannot make it more partial sums
        chosen = sorted(choices[0], key=order.__getitem__)
        dealt = deal_at_first([slots[i] for i in chosen], logical_workers)
        moved = range(logical_workers)
    ranks = {
        ordered[i].worker: held if held is slots[i].held else tuple(sorted(held))
        for i, held in zip(chosen, dealt, strict=True)
        if held
    }
    return Layout(
        ranks=cast("Mapping[WorkerId, tuple[LogicalRank, ...]]", ranks),
        step=max([len(held) * slots[i].micro_step for i, held in zip(chosen, dealt, strict=True)]),
        moved=cast("tuple[LogicalRank, ...]", tuple(moved)),
        reason=f"{logical_workers} = {shares(map(len, ranks.values()))}",
    )


def _by_nature(by_name: Sequence[Place]) -> list[int]:
    """An order that names decide last: where each place is among those in the order of names.

    What a slot holds tells it from all others; slots that hold nothing differ by speed and memory.
    """
    holding = [i for i, place in enumerate(by_name) if place.ranks]
    holding.sort(key=lambda i: by_name[i].ranks)
    empty = [i for i, place in enumerate(by_name) if not place.ranks]
    empty.sort(
        key=lambda i: (by_name[i].micro_step, -1 if (most := by_name[i].most) is None else most)
    )
    return holding + empty


def step_of(places: Iterable[Place]) -> int:
    """What a step takes with the ranks that the places hold now."""
    return max((len(place.ranks) * place.micro_step for place in places), default=0)


def shares(counts: Iterable[int]) -> str:
    """Per-slot counts, largest first: `4+4+3`, and `500x2` for long runs of one count."""
    runs = sorted(Counter(counts).items(), reverse=True)
    longest = 8
    if sum(length for _, length in runs) <= longest:
        return "+".join("+".join([str(n)] * length) for n, length in runs)
    return "+".join(f"{length}×{n}" if length > 1 else str(n) for n, length in runs)  # noqa: RUF001


def least_step(places: Iterable[Place], logical_workers: int) -> int:
    """The least F with sum of floor(F / t) >= N: it only grows where some slot ends a micro-step.

    Bisection, until so few ends are left that they can be gone through.
    """
    n = logical_workers
    kinds = Counter([(p.micro_step, n if p.most is None else min(p.most, n)) for p in places])
    rows = [(t, most, slots) for (t, most), slots in kinds.items()]

    def done(step: int) -> int:
        return sum(
            [(most if most < (each := step // t) else each) * slots for t, most, slots in rows]
        )

    low, total, high = 0, 0, max(t for t, _, _ in rows) * n
    speed = sum([slots / t for t, _, slots in rows])
    few = int(_FEW_ENDS / speed) + 1
    guesses = _guesses(rows, n)
    while high - low > few:
        middle = next((guess for guess in guesses if low < guess < high), (low + high) // 2)
        if (found := done(middle)) < n:
            low, total = middle, found
        else:
            high = middle
    ends = sorted(
        (count * t, slots)
        for t, most, slots in rows
        for count in range(low // t + 1, min(high // t, most) + 1)
    )
    for end, slots in ends:
        total += slots
        if total >= n:
            return end
    raise AssertionError("the slots have no room for all ranks")


def _guesses(rows: Sequence[tuple[int, int, int]], n: int) -> list[int]:
    """Between which steps the least one is likely to lie, and where it must if memory is no bound.

    Each slot loses less than one micro-step, half of one as a rule. Floats do: it is checked.
    """
    slots = sum([number for _, _, number in rows])
    speed = sum([number / t for t, _, number in rows])
    spread = 2 * sqrt(sum([number * number for _, _, number in rows]) / 12)
    lost = (slots / 2 - spread, slots / 2 + spread, 0, slots)
    return [int((n + each) / speed) for each in lost]


def _capacity(place: Place, step: int) -> int:
    each = step // place.micro_step
    return each if place.most is None else min(each, place.most)


def _check(places: Sequence[Place], logical_workers: int) -> None:
    if not places:
        raise UsageError("a plan needs at least one slot")
    if logical_workers < 1:
        raise UsageError(f"a job has at least 1 logical worker; {logical_workers} is not")
    if any(place.micro_step < 1 for place in places):
        raise UsageError("a micro-step takes time; 0 and less cannot be planned with")
    room = sum(logical_workers if place.most is None else place.most for place in places)
    if room < logical_workers:
        raise UsageError(
            f"the slots have memory for {room} of {logical_workers} logical workers",
            hint="add a slot, or --partials host",
        )


# --- which slots -------------------------------------------------------------------------------


def fewest_slots(places: Sequence[Place], capacity: Sequence[int], n: int) -> list[list[int]]:
    """The fewest slots that hold n, by what they keep in place: all best sets, or one of many."""
    useful = [i for i, size in enumerate(capacity) if size]
    tops = sorted((capacity[i] for i in useful), reverse=True)
    needed = next(k for k, total in enumerate(accumulate(tops), 1) if total >= n)
    if needed == len(useful):
        return [useful]
    holding = [i for i in useful if places[i].ranks]
    if len(holding) > _MOST_HOLDING:
        return [_one_of_many(places, capacity, n=n, needed=needed)]
    # Of slots that hold nothing, the largest do whatever others could.
    rest = sorted((i for i in useful if not places[i].ranks), key=lambda i: -capacity[i])
    fewest = max(0, needed - len(rest))
    by_kept: dict[int, list[list[int]]] = defaultdict(list)
    for number in range(fewest, min(needed, len(holding)) + 1):
        others = rest[: needed - number]
        room = sum(capacity[i] for i in others)
        for some in combinations(holding, number):
            if room + sum(capacity[i] for i in some) >= n:
                kept = sum(min(len(places[i].ranks), capacity[i]) for i in some)
                by_kept[kept].append(sorted([*some, *others]))
    return by_kept[max(by_kept)]


def _one_of_many(
    places: Sequence[Place], capacity: Sequence[int], *, n: int, needed: int
) -> list[int]:
    """Slots of one capacity are interchangeable but for what they hold.

    So it is enough to choose how many of each, largest first: (slots, ranks held) -> most kept.
    """
    classes: dict[int, list[int]] = defaultdict(list)
    for i, size in enumerate(capacity):
        if size:
            classes[size].append(i)
    sizes = sorted(classes, reverse=True)
    keeps = [min(len(place.ranks), size) for place, size in zip(places, capacity, strict=True)]
    for size in sizes:
        classes[size].sort(key=keeps.__getitem__, reverse=True)
    tops = [size for size in sizes for _ in classes[size]]

    # state: (slots chosen, ranks they can hold) -> (ranks kept, slots chosen per class)
    states: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(0, 0): (0, ())}
    passed = 0
    for size in sizes:
        members = classes[size]
        passed += len(members)
        rest = [0, *accumulate(tops[passed : passed + needed])]
        kept = [0, *accumulate(keeps[i] for i in members)]
        states = _choose(states, size=size, kept=kept, rest=rest, needed=needed, n=n)
    chosen = max(
        (state for (count, held), state in states.items() if count == needed and held >= n),
        key=lambda state: (state[0], state[1]),
    )[1]
    return sorted(i for size, k in zip(sizes, chosen, strict=True) for i in classes[size][:k])


def _choose(
    states: Mapping[tuple[int, int], tuple[int, tuple[int, ...]]],
    *,
    size: int,
    kept: Sequence[int],
    rest: Sequence[int],
    needed: int,
    n: int,
) -> dict[tuple[int, int], tuple[int, tuple[int, ...]]]:
    """Extend every state by 0, 1, ... slots of one capacity while it can still reach n."""
    following: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
    for (count, held), (value, choice) in states.items():
        for k in range(min(len(kept) - 1, needed - count), -1, -1):
            left = needed - count - k
            if left >= len(rest) or held + k * size + rest[left] < n:
                break  # fewer large slots only make it worse
            key = (count + k, held + k * size)
            state = (value + kept[k], (*choice, k))
            if key not in following or following[key] < state:
                following[key] = state
    return following


# --- which ranks -------------------------------------------------------------------------------


def _deal(
    slots: Sequence[Slot], choices: Sequence[list[int]], n: int
) -> tuple[list[int], Sequence[Sequence[int]], Sequence[int]]:
    """Of several choices that of the fewest subtrees: its slots, their ranks and what moves."""
    best: tuple[list[int], Sequence[Sequence[int]], Sequence[int]] = [], [], []
    fewest, states = n + 1, MOST_WORK // n
    for chosen in choices:
        own = tuple(slots[i] for i in chosen)
        dealt, moved = deal_between(own, n)
        if n > MOST_SEARCHED:
            return chosen, dealt, moved
        made = partials(dealt, n)
        if made < fewest:
            fewest, best = made, (chosen, dealt, moved)
        if states > 0 and least_subtrees(own, n) < fewest:
            fewer, took = fewer_subtrees(own, n, found=fewest, states=states)
            states -= took
            if fewer is not None:
                fewest, best = partials(fewer, n), (chosen, fewer, _moved(own, fewer, n))
    return best


def _moved(slots: Sequence[Slot], dealt: Sequence[Sequence[int]], n: int) -> list[int]:
    """The ranks that are not where they were."""
    kept = (set(slot.held).intersection(ranks) for slot, ranks in zip(slots, dealt, strict=True))
    return sorted(set(range(n)).difference(*kept))
