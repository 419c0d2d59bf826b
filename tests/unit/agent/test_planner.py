"""The planner against exact optima, against exhaustive search, and on its promises."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from math import lcm
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.agent.balance.planner import Place, least_step, plan, shares
from easyscale.errors import UsageError
from easyscale.model import LogicalRank, WorkerId

CASES = json.loads((Path(__file__).parent / "cases" / "planner.json").read_text())
SOLVABLE = [case for case in CASES if case["step"]]


def worker(index: int) -> WorkerId:
    return WorkerId(f"n{index // 8:03}", "1", f"cuda:{index % 8}", 1)


def ranks(*values: int) -> tuple[LogicalRank, ...]:
    return tuple(LogicalRank(value) for value in values)


def places_of(case: dict[str, Any]) -> tuple[list[Place], list[int], int]:
    """The slots of a case, their kinds, and how many of their time units make a second."""
    speeds = [
        Fraction(c) * Fraction(factor)
        for c, factor in zip(
            case["capability"],
            case.get("interference", ["1"] * len(case["capability"])),
            strict=True,
        )
    ]
    unit = lcm(*(speed.numerator for speed in speeds))
    executors = case.get("executors", [1] * len(speeds))
    kinds = [
        kind
        for kind, (slots, each) in enumerate(zip(case["slots"], executors, strict=True))
        for _ in range(slots * each)
    ]
    periods = [int(unit / speeds[kind]) for kind in kinds]
    return [Place(worker(i), period) for i, period in enumerate(periods)], kinds, unit


@pytest.mark.parametrize("case", SOLVABLE, ids=lambda case: case["name"])
def test_a_step_takes_exactly_as_long_as_the_optimum(case: dict[str, Any]) -> None:
    places, _, unit = places_of(case)
    layout = plan(places, logical_workers=case["logical_workers"])
    assert Fraction(layout.step, unit) == Fraction(case["step"])
    throughput = case["logical_workers"] / Fraction(layout.step, unit)
    assert throughput == Fraction(case["throughput"])


@pytest.mark.parametrize("case", SOLVABLE, ids=lambda case: case["name"])
def test_the_counts_stay_within_an_optimum_of_the_case(case: dict[str, Any]) -> None:
    places, kinds, _ = places_of(case)
    layout = plan(places, logical_workers=case["logical_workers"])
    most = [0] * len(case["capability"])
    for place, kind in zip(places, kinds, strict=True):
        most[kind] = max(most[kind], len(layout.ranks.get(place.worker, ())))
    assert any(
        all(ours <= theirs for ours, theirs in zip(most, counts, strict=True))
        for counts in case["counts"]
    )


def test_no_slots_is_said_and_not_planned() -> None:
    with pytest.raises(UsageError, match="at least one slot"):
        plan([], logical_workers=8)


def test_equal_slots_get_equal_shares_in_aligned_runs() -> None:
    layout = plan([Place(worker(i)) for i in range(4)], logical_workers=16)
    assert [layout.ranks[worker(i)] for i in range(4)] == [
        tuple(range(4 * i, 4 * i + 4)) for i in range(4)
    ]
    assert layout.reason == "16 = 4+4+4+4"


def test_surplus_slots_are_left_as_standbys() -> None:
    layout = plan([Place(worker(i)) for i in range(7)], logical_workers=6)
    assert len(layout.ranks) == 6
    # Three slots of two are as fast as four of two, two, one and one: one more would not help.
    assert len(plan([Place(worker(i)) for i in range(5)], logical_workers=6).ranks) == 3


def test_a_slot_that_would_not_shorten_the_step_is_not_used() -> None:
    present = [Place(worker(i), 10, ranks(*range(4 * i, 4 * i + 4))) for i in range(4)]
    layout = plan([*present, Place(worker(4), 10)], logical_workers=16)
    assert layout.moved == ()
    assert worker(4) not in layout.ranks


def test_after_a_loss_only_its_ranks_move() -> None:
    present = [Place(worker(i), 1, ranks(*range(4 * i, 4 * i + 4))) for i in range(3)]
    layout = plan(present, logical_workers=16)
    assert layout.moved == ranks(12, 13, 14, 15)
    # 6+5+5 takes as long, and one partial sum more.
    assert shares(len(held) for held in layout.ranks.values()) == "6+6+4"


def test_who_gives_ranks_away_keeps_whole_subtrees() -> None:
    present = [Place(worker(0), 1, ranks(*range(8))), Place(worker(1), 1)]
    layout = plan(present, logical_workers=8)
    assert layout.ranks == {worker(0): ranks(0, 1, 2, 3), worker(1): ranks(4, 5, 6, 7)}


def test_counts_are_written_short() -> None:
    assert shares([1, 3, 1, 3, 3, 1, 3, 1]) == "3+3+3+3+1+1+1+1"
    assert shares([2] * 500) == "500×2"  # noqa: RUF001 - the sign people see
    assert shares([5, *[4] * 9]) == "5+9×4"  # noqa: RUF001


def test_a_thousand_slots_of_five_kinds_hold_each_rank_once() -> None:
    """How long it takes is what `benchmarks/planner.py` prints."""
    periods = [100, 131, 177, 260, 410]
    places = [Place(worker(i), periods[i % 5]) for i in range(1000)]
    layout = plan(places, logical_workers=4096)
    held = sorted(rank for ranks in layout.ranks.values() for rank in ranks)
    assert held == list(range(4096))
    assert layout.step == least_step(places, 4096)


SMALL = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def layouts(periods: list[int], n: int) -> list[tuple[int, ...]]:
    return [
        counts
        for counts in itertools.product(range(n + 1), repeat=len(periods))
        if sum(counts) == n
    ]


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Place], int]:
    n = draw(st.integers(1, 6))
    periods = draw(SMALL)
    owners = draw(st.lists(st.integers(-1, len(periods) - 1), min_size=n, max_size=n))
    places = [
        Place(worker(i), period, tuple(LogicalRank(r) for r in range(n) if owners[r] == i))
        for i, period in enumerate(periods)
    ]
    return places, n


@settings(max_examples=150, deadline=None)
@given(situations())
def test_the_plan_is_the_best_of_all_plans(situation: tuple[list[Place], int]) -> None:
    places, n = situation
    layout = plan(places, logical_workers=n)

    def worth(counts: tuple[int, ...]) -> tuple[int, int, int]:
        step = max(c * p.micro_step for c, p in zip(counts, places, strict=True))
        slots = sum(c > 0 for c in counts)
        kept = sum(min(c, len(p.ranks)) for c, p in zip(counts, places, strict=True))
        return step, slots, n - kept

    best = min(worth(counts) for counts in layouts([p.micro_step for p in places], n))
    # Fewest slots is meant among the layouts of the least step, movement among those again.
    assert (layout.step, len(layout.ranks), len(layout.moved)) == best


@settings(max_examples=150, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_every_rank_is_placed_once_whatever_the_order(
    situation: tuple[list[Place], int], random: Random
) -> None:
    places, n = situation
    layout = plan(places, logical_workers=n)
    assert sorted(rank for held in layout.ranks.values() for rank in held) == list(range(n))
    shuffled = list(places)
    random.shuffle(shuffled)
    assert plan(shuffled, logical_workers=n) == layout


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(1, 5000))
def test_the_least_step_is_a_multiple_of_some_micro_step(periods: list[int], n: int) -> None:
    step = least_step([Place(worker(i), period) for i, period in enumerate(periods)], n)
    assert sum(step // t for t in periods) >= n > sum((step - 1) // t for t in periods)
    assert any(step % t == 0 for t in periods)


@settings(max_examples=150, deadline=None)
@given(situations(), st.integers(1, 6))
def test_one_more_slot_never_makes_a_step_longer(
    situation: tuple[list[Place], int], period: int
) -> None:
    places, n = situation
    more = [*places, Place(worker(len(places)), period)]
    assert plan(more, logical_workers=n).step <= plan(places, logical_workers=n).step


@settings(max_examples=100, deadline=None)
@given(situations(), st.integers(1, 10**12))
def test_the_unit_of_time_decides_nothing(situation: tuple[list[Place], int], factor: int) -> None:
    places, n = situation
    scaled = [replace(place, micro_step=place.micro_step * factor) for place in places]
    layout, again = (plan(each, logical_workers=n) for each in (places, scaled))
    assert again == replace(layout, step=layout.step * factor)


@settings(max_examples=150, deadline=None)
@given(situations(), st.data())
def test_memory_bounds_what_a_slot_is_given_and_the_rest_is_the_best(
    situation: tuple[list[Place], int], data: st.DataObject
) -> None:
    places, n = situation
    bounds = [data.draw(st.none() | st.integers(0, n)) for _ in places]
    places = [replace(each, most=most) for each, most in zip(places, bounds, strict=True)]
    room = [n if most is None else most for most in bounds]
    if sum(room) < n:
        with pytest.raises(UsageError, match="memory for"):
            plan(places, logical_workers=n)
        return
    layout = plan(places, logical_workers=n)
    assert all(
        len(layout.ranks.get(each.worker, ())) <= most
        for each, most in zip(places, room, strict=True)
    )
    assert layout.step == min(
        max(count * each.micro_step for count, each in zip(counts, places, strict=True))
        for counts in layouts([each.micro_step for each in places], n)
        if all(count <= most for count, most in zip(counts, room, strict=True))
    )
