"""Which ranks each slot computes: the least of all maps in every respect, by exhaustive search."""

from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.agent.balance.dealing import Slot, deal_at_first, levels, partials, subtrees
from easyscale.agent.balance.planner import Layout, Place, plan
from easyscale.agent.balance.searching import (
    MOST_SEARCHED,
    MOST_WORK,
    fewer_subtrees,
    least_subtrees,
)
from easyscale.model import LogicalRank, WorkerId
from easyscale.runtime.tree import maximal_subtrees

Worth = tuple[int, int, int, int]


def worker(index: int, name: str = "n") -> WorkerId:
    return WorkerId(f"{name}{index:02}", "1", "cpu:0", 1)


def place(
    index: int, micro_step: int, held: tuple[int, ...] = (), most: int | None = None
) -> Place:
    return Place(worker(index), micro_step, tuple(map(LogicalRank, held)), most)


def held_by(layout: Layout, index: int) -> tuple[int, ...]:
    return layout.ranks.get(worker(index), ())


@cache
def trees_in(mask: int, n: int) -> int:
    """The tree of the sums itself says how many partials a set of ranks takes."""
    return len(maximal_subtrees((rank for rank in range(n) if mask >> rank & 1), n))


def worth(places: list[Place], owners: tuple[int, ...], *, use_all: bool = False) -> Worth | None:
    """Step, slots, moves and partial sums of a whole map; None where memory forbids it."""
    counts, masks = [0] * len(places), [0] * len(places)
    for rank, i in enumerate(owners):
        counts[i] += 1
        masks[i] |= 1 << rank
    if any(p.most is not None and c > p.most for c, p in zip(counts, places, strict=True)):
        return None
    before = {rank: i for i, each in enumerate(places) for rank in each.ranks}
    return (
        max(count * each.micro_step for count, each in zip(counts, places, strict=True)),
        0 if use_all else sum(count > 0 for count in counts),
        sum(before.get(LogicalRank(rank)) != i for rank, i in enumerate(owners)),
        sum(trees_in(mask, len(owners)) for mask in masks),
    )


def of_layout(places: list[Place], layout: Layout, n: int, *, use_all: bool = False) -> Worth:
    index = {each.worker: i for i, each in enumerate(places)}
    owner = {rank: index[worker] for worker, held in layout.ranks.items() for rank in held}
    found = worth(places, tuple(owner[LogicalRank(rank)] for rank in range(n)), use_all=use_all)
    assert found is not None
    return found


def least(places: list[Place], n: int, *, use_all: bool = False) -> Worth:
    maps = product(range(len(places)), repeat=n)
    return min(w for owners in maps if (w := worth(places, owners, use_all=use_all)) is not None)


@st.composite
def situations(draw: st.DrawFn, largest: int = 7) -> tuple[list[Place], int]:
    """Slots that hold nothing, some ranks or all, in runs or scattered, with memory for few."""
    n = draw(st.integers(1, largest))
    slots = draw(st.integers(1, 5 if n < 6 else 4 if n < 7 else 3))
    periods = draw(st.lists(st.integers(1, 6), min_size=slots, max_size=slots))
    anybody = st.integers(-1, slots - 1)
    owners = draw(
        st.just([-1] * n)
        | st.lists(anybody, min_size=n, max_size=n)
        | st.lists(anybody, min_size=n, max_size=n).map(sorted)
    )
    bounds = draw(st.lists(st.none() | st.integers(1, n), min_size=slots, max_size=slots))
    if sum(n if most is None else most for most in bounds) < n:
        bounds[0] = None
    return [
        place(i, period, tuple(r for r in range(n) if owners[r] == i), most)
        for i, (period, most) in enumerate(zip(periods, bounds, strict=True))
    ], n


@settings(max_examples=200, deadline=None)
@given(situations(), st.booleans())
def test_no_map_has_a_shorter_step_then_fewer_slots_then_fewer_moves_then_fewer_partials(
    situation: tuple[list[Place], int], use_all: bool
) -> None:
    places, n = situation
    layout = plan(places, logical_workers=n, use_all=use_all)
    assert of_layout(places, layout, n, use_all=use_all) == least(places, n, use_all=use_all)


@pytest.mark.parametrize(
    ("periods", "bounds", "n", "fewest"),
    [
        ((4, 2), (None, None), 5, 2),  # 1+4 and not 2+3
        ((101, 4, 3), (1, None, None), 6, 2),  # 4+2 and not 3+3, the first stays empty
        ((1,), (None,), 7, 1),  # all ranks are one subtree, of whatever number
        ((4, 3), (None, None), 7, 2),  # the last three are one, too
    ],
)
def test_counts_are_chosen_for_few_partials(
    periods: tuple[int, ...], bounds: tuple[int | None, ...], n: int, fewest: int
) -> None:
    places = [
        place(i, t, (), most) for i, (t, most) in enumerate(zip(periods, bounds, strict=True))
    ]
    found = of_layout(places, plan(places, logical_workers=n), n)
    assert found == least(places, n)
    assert found[-1] == fewest


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_the_first_deal_of_more_ranks_is_as_good_as_a_search(
    most: list[int], data: st.DataObject
) -> None:
    n = data.draw(st.integers(max(1, sum(most) - 5), sum(most)).filter(lambda n: n <= 40))
    slots = tuple(Slot((), each, 1) for each in most)
    dealt = deal_at_first(slots, n)
    assert sorted(rank for ranks in dealt for rank in ranks) == list(range(n))
    assert all(len(ranks) <= each for ranks, each in zip(dealt, most, strict=True))
    made = partials(dealt, n)
    assert made >= least_subtrees(slots, n)
    assert fewer_subtrees(slots, n, found=made, states=MOST_WORK)[0] is None


@given(st.integers(1, 80), st.data())
def test_whole_subtrees_are_those_of_the_tree_of_the_sums(n: int, data: st.DataObject) -> None:
    ranks = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    found = subtrees(ranks, n)
    assert [(start, start - minus) for minus, start, _ in found] == [
        (span.lo, span.hi) for span in maximal_subtrees(ranks, n)
    ]
    tree = levels([0 if rank in ranks else -1 for rank in range(n)], highest=n)
    for _, start, level in found:  # and no node above is whole
        assert tree[level][start >> level] == 0
        assert level + 1 == len(tree) or tree[level + 1][start >> level + 1] != 0


@settings(max_examples=120, deadline=None)
@given(situations(largest=24), st.randoms(use_true_random=False))
def test_other_names_give_as_good_a_map(situation: tuple[list[Place], int], random: Random) -> None:
    places, n = situation
    names = list(range(len(places)))
    random.shuffle(names)
    renamed = [
        replace(each, worker=worker(name, random.choice("abc")))
        for each, name in zip(places, names, strict=True)
    ]
    layout, again = (plan(each, logical_workers=n) for each in (places, renamed))
    assert of_layout(renamed, again, n) == of_layout(places, layout, n)


@pytest.mark.parametrize("n", [48, MOST_SEARCHED + 1, 400])
@pytest.mark.parametrize("seed", range(5))
def test_names_decide_nothing_where_a_search_gives_up_or_is_not_made(n: int, seed: int) -> None:
    random = Random(seed)
    owners = [random.randrange(-1, 12) for _ in range(n)]
    periods = [random.choice((3, 4, 7)) for _ in range(12)]
    places = [
        place(i, t, tuple(r for r in range(n) if owners[r] == i)) for i, t in enumerate(periods)
    ]
    names = random.sample(range(12), 12)
    renamed = [replace(p, worker=worker(name)) for p, name in zip(places, names, strict=True)]
    layout, again = (plan(each, logical_workers=n) for each in (places, renamed))
    assert {worker(names[i]): held for i in range(12) if (held := layout.ranks.get(worker(i)))} == (
        again.ranks
    )


# --- what is dealt without a search ------------------------------------------------------------

#: More than a search is made for.
MANY = 4 * MOST_SEARCHED


def test_who_must_give_away_keeps_its_largest_subtree() -> None:
    quarter = MANY // 4
    holding = (*range(3), *range(quarter, 2 * quarter))
    rest = tuple(rank for rank in range(MANY) if rank not in holding)
    layout = plan(
        [place(0, 1, holding, quarter), place(1, 1, rest, MANY - quarter)], logical_workers=MANY
    )
    assert held_by(layout, 0) == tuple(range(quarter, 2 * quarter))


def test_a_free_subtree_goes_beside_its_like() -> None:
    # The first has most room; the free pair at the start completes what the second holds.
    half = MANY // 2
    free = {0, 1, half, half + 1, half + 64, half + 65}
    places = [
        place(0, 1, tuple(rank for rank in range(half, MANY) if rank not in free)),
        place(1, 1, tuple(rank for rank in range(half) if rank not in free)),
    ]
    layout = plan(places, logical_workers=MANY)
    assert held_by(layout, 0) == tuple(range(half, MANY))
    assert held_by(layout, 1) == tuple(range(half))


def test_free_ranks_are_dealt_in_subtrees_and_not_one_by_one() -> None:
    # The step of 4 leaves room for what is free, in pieces of four.
    places = [
        *(place(i, 1, tuple(range(4 * i, 4 * i + 4))) for i in range(MANY // 8)),
        *(place(i, 1) for i in range(MANY // 8, MANY // 4)),
    ]
    layout = plan(places, logical_workers=MANY)
    assert of_layout(places, layout, MANY)[2:] == (MANY // 2, MANY // 4)
