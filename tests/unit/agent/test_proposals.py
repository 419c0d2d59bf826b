"""Proposals for more slots against recorded cases and against exhaustive search."""

import json
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.agent.balance.planner import Place, plan
from easyscale.agent.balance.proposals import MOST_WASTE, Kind, propose
from easyscale.model import WorkerId

CASES = json.loads((Path(__file__).parent / "cases" / "proposals.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_recorded_cases_give_their_proposals_in_order(case: dict[str, Any]) -> None:
    speeds = [Fraction(each) for each in case["capability"]]
    unit = lcm(*(speed.numerator for speed in speeds))
    kinds = [
        Kind(str(i), int(unit / speed), slots)
        for i, (speed, slots) in enumerate(zip(speeds, case["slots"], strict=True))
    ]
    n = case["logical_workers"]
    assert [
        (int(o.kind), o.slots, o.score, Fraction(n * unit, o.step), o.waste)
        for o in propose(kinds, n)
    ] == [
        (p["kind"], p["slots"], *(Fraction(p[each]) for each in ("score", "throughput", "waste")))
        for p in case["proposals"]
    ]


def step_of(kinds: list[Kind], n: int) -> int:
    places = [
        Place(WorkerId(kind.name, "i", str(i), 0), kind.micro_step)
        for kind in kinds
        for i in range(kind.slots)
    ]
    return plan(places, logical_workers=n).step


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3)), min_size=1, max_size=3),
    st.integers(1, 12),
)
def test_each_proposal_is_the_best_increment_of_its_kind(
    shapes: list[tuple[int, int]], n: int
) -> None:
    kinds = [Kind(str(i), t, slots) for i, (t, slots) in enumerate(shapes)]
    total = sum(kind.slots for kind in kinds)
    if not total:
        assert propose(kinds, n) == ()
        return
    now = step_of(kinds, n)
    best: dict[str, tuple[Fraction, int]] = {}
    for i, kind in enumerate(kinds):
        for more in range(1, total + 1):
            grown = [
                *kinds[:i],
                Kind(kind.name, kind.micro_step, kind.slots + more),
                *kinds[i + 1 :],
            ]
            step = step_of(grown, n)
            capability = sum(Fraction(each.slots, each.micro_step) for each in grown)
            if step < now and 1 - Fraction(n, step) / capability <= MOST_WASTE:
                score = (Fraction(now, step) - 1) / more + 1
                best[kind.name] = max(best.get(kind.name, (Fraction(0), 0)), (score, more))
    assert {o.kind: (o.score, o.slots) for o in propose(kinds, n, top=9)} == best


@pytest.mark.parametrize(("period", "wasted", "is_made"), [(3, "3/10", True), (4, "4/11", False)])
def test_what_would_waste_more_than_thirty_percent_is_not_proposed(
    period: int, wasted: str, is_made: bool
) -> None:
    """The rank moves to the faster slot, and all that the other can do is wasted."""
    offers = propose([Kind("slow", 7, 1, grows=False), Kind("fast", period, 0)], 1)
    assert [(o.kind, o.waste) for o in offers] == [("fast", Fraction(wasted))][: int(is_made)]


def test_the_best_three_kinds_are_proposed() -> None:
    kinds = [Kind("a", 100, 1), *(Kind(str(t), t, 0) for t in (10, 20, 30, 40))]
    everything = propose(kinds, 40, top=99)
    assert len(everything) == 5
    assert propose(kinds, 40) == everything[:3]
