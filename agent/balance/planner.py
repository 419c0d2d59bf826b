"""Logical workers onto slots: the least step time, exactly; then fewest slots, least movement.

A slot that takes t per micro-step does floor(F / t) of them in F. The optimum is the least F in
which all slots together do N: a step function of F, searched over integers (EasyScale, section 3).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby
from operator import attrgetter

from easyscale.errors import UsageError
from easyscale.model import LogicalRank, WorkerId


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
    """The best layout of `logical_workers` ranks; the order of `places` decides nothing.

    With `use_all` no slot is emptied to use fewer: after a loss only what was lost shall move.
    """
    _check(places, logical_workers)
    ordered = sorted(places, key=attrgetter("worker"))
    step = least_step(ordered, logical_workers)
    capacity = [_capacity(place, step) for place in ordered]
    used = (
        [i for i, size in enumerate(capacity) if size]
        if use_all
        else _fewest_slots(ordered, capacity, logical_workers)
    )
    counts = _share_out(ordered, used, capacity, logical_workers)
    ranks = _place_ranks(ordered, counts, logical_workers)
    before = {rank: place.worker for place in ordered for rank in place.ranks}
    moved = sorted(r for worker, held in ranks.items() for r in held if before.get(r) != worker)
    busiest = max(count * ordered[i].micro_step for i, count in counts.items())
    reason = f"{logical_workers} = {shares(counts.values())}"
    return Layout(ranks, busiest, tuple(moved), reason)


def step_of(places: Iterable[Place]) -> int:
    """What a step takes with the ranks that the places hold now."""
    return max((len(place.ranks) * place.micro_step for place in places), default=0)


def shares(counts: Iterable[int]) -> str:
    """Per-slot counts, largest first: `4+4+3`, and `500x2` for long runs of one count."""
    runs = [(n, len(list(run))) for n, run in groupby(sorted(counts, reverse=True))]
    longest = 8
    if sum(length for _, length in runs) <= longest:
        return "+".join("+".join([str(n)] * length) for n, length in runs)
    return "+".join(f"{length}×{n}" if length > 1 else str(n) for n, length in runs)  # noqa: RUF001


def least_step(places: Sequence[Place], logical_workers: int) -> int:
    """The least F with sum of floor(F / t) >= N, by bisection; capacity only grows with F."""
    kinds = Counter((place.micro_step, place.most) for place in places)

    def fits(step: int) -> bool:
        total = 0
        for (t, most), slots in kinds.items():
            each = step // t
            total += slots * (each if most is None or each < most else most)
        return total >= logical_workers

    low, high = 0, max(t for t, _ in kinds) * logical_workers
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


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


def _fewest_slots(places: Sequence[Place], capacity: Sequence[int], n: int) -> list[int]:
    """The fewest slots that hold n, and among such sets the one that keeps most ranks in place.

    Slots of one capacity are interchangeable but for what they hold, so it is enough to choose how
    many of each capacity, largest first: (slots, ranks held) -> most ranks kept.
    """
    classes: dict[int, list[int]] = defaultdict(list)
    for i, size in enumerate(capacity):
        if size:
            classes[size].append(i)
    sizes = sorted(classes, reverse=True)
    for size in sizes:
        classes[size].sort(key=lambda i: -min(len(places[i].ranks), capacity[i]))
    tops = [size for size in sizes for _ in classes[size]]
    needed = next(k for k, total in enumerate(accumulate(tops), 1) if total >= n)

    # state: (slots chosen, ranks they can hold) -> (ranks kept, slots chosen per class)
    states: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(0, 0): (0, ())}
    passed = 0
    for size in sizes:
        members = classes[size]
        passed += len(members)
        rest = [0, *accumulate(tops[passed : passed + needed])]
        kept = [0, *accumulate(min(len(places[i].ranks), size) for i in members)]
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


# --- how many each -----------------------------------------------------------------------------


def _share_out(
    places: Sequence[Place], used: Sequence[int], capacity: Sequence[int], n: int
) -> dict[int, int]:
    """Everybody keeps what it can; the rest goes, one by one, to whoever would be done first.

    All that are done by some time come first, so that time is searched for and not counted up to.
    """
    shapes = {i: (places[i].micro_step, len(places[i].ranks), capacity[i]) for i in used}
    kinds = Counter(shapes.values())

    def by(time: int) -> int:
        return sum(slots * _taken(time, *shape) for shape, slots in kinds.items())

    assert by(0) <= n, "a logical rank is held by two slots"
    low, high = 0, max(t for t, _, _ in kinds) * n + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if by(middle) <= n else (low, middle)
    counts = {i: _taken(low, *shape) for i, shape in shapes.items()}
    rest = n - sum(counts.values())
    for i, (t, _, most) in shapes.items():  # they would all be done at the same time
        if rest and counts[i] < most and (counts[i] + 1) * t == high:
            counts[i] += 1
            rest -= 1
    return counts


def _taken(time: int, micro_step: int, kept: int, most: int) -> int:
    """How many ranks a slot holds that keeps what it can and may work until then."""
    return min(max(time // micro_step, kept), most)


# --- which ranks -------------------------------------------------------------------------------


def _place_ranks(
    places: Sequence[Place], counts: Mapping[int, int], n: int
) -> dict[WorkerId, tuple[LogicalRank, ...]]:
    """Keep what may stay, in whole subtrees; deal the rest in aligned powers of two."""
    held = {i: _keep(places[i].ranks, count) for i, count in counts.items()}
    wanted: dict[int, list[int]] = defaultdict(list)
    for i, count in counts.items():
        for size in _powers(count - len(held[i])):
            wanted[size].append(i)
    kept = set().union(*held.values())
    if kept:
        _deal_between(held, wanted, set(range(n)) - kept)
    else:
        _deal_in_turn(held, wanted)
    return {places[i].worker: tuple(sorted(ranks)) for i, ranks in held.items()}


def _deal_in_turn(
    held: Mapping[int, set[LogicalRank]], wanted: Mapping[int, Sequence[int]]
) -> None:
    """Blocks of falling size one behind the other are all aligned."""
    start = 0
    for size in sorted(wanted, reverse=True):
        for i in wanted[size]:
            held[i].update(_block(start, size))
            start += size


def _deal_between(
    held: Mapping[int, set[LogicalRank]], wanted: dict[int, list[int]], free_ranks: set[int]
) -> None:
    """Blocks of falling size between what is kept, beside what the same worker holds."""
    free = _FreeRanks(free_ranks)
    size = max(wanted, default=0)
    while size:
        for i in wanted[size]:
            start = free.take(size, held[i])
            if start is None:  # the free ranks are more scattered than that: halves do as well
                wanted[size // 2] += [i, i]
            else:
                held[i].update(_block(start, size))
        size //= 2


def _block(start: int, size: int) -> Iterable[LogicalRank]:
    return map(LogicalRank, range(start, start + size))


class _FreeRanks:
    """Ranks to be dealt, as aligned blocks; sizes must be taken in falling order."""

    def __init__(self, ranks: set[int]) -> None:
        self._blocks: dict[int, dict[int, None]] = defaultdict(dict)
        for low, size in _blocks(ranks):
            self._blocks[size][low] = None

    def take(self, size: int, held: Iterable[int]) -> int | None:
        """The start of a block of that size, beside what the worker holds where there is one."""
        fitting = self._blocks[size]
        if fitting and held:
            beside = next((r ^ size for r in held if not r % size and r ^ size in fitting), None)
            if beside is not None:
                del fitting[beside]
                return beside
        if fitting:
            start = next(iter(fitting))
            del fitting[start]
            return start
        larger = min(
            (other for other, lows in self._blocks.items() if other > size and lows), default=0
        )
        if not larger:
            return None
        start = next(iter(self._blocks[larger]))
        del self._blocks[larger][start]
        while larger > size:
            larger //= 2
            self._blocks[larger][start + larger] = None
        return start


def _keep(ranks: Sequence[LogicalRank], count: int) -> set[LogicalRank]:
    """The `count` ranks that stay: whole subtrees first, the largest ones."""
    if count >= len(ranks):
        return set(ranks)
    kept: set[LogicalRank] = set()
    for low, size in sorted(_blocks(set(ranks)), key=lambda block: (-block[1], block[0])):
        kept.update(_block(low, min(size, count - len(kept))))
    return kept


def _blocks(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """The largest aligned powers of two that make up a set of ranks, as (low, size)."""
    found = []
    for low, high in _runs(sorted(ranks)):
        start = low
        while start < high:
            size = start & -start or 1 << (high - start).bit_length()
            while start + size > high:
                size //= 2
            found.append((start, size))
            start += size
    return found


def _runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank:
            runs[-1] = (runs[-1][0], rank + 1)
        else:
            runs.append((rank, rank + 1))
    return runs


@cache
def _powers(count: int) -> list[int]:
    return [1 << bit for bit in range(count.bit_length()) if count >> bit & 1]
