"""Waste in the paper's two terms, against recorded cases and the identity that holds for all."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.agent.balance.explain import KindOfSlot, of_kinds
from easyscale.agent.balance.waste import Load, unused

#: (micro-step, slots, ranks of each) by kind -> idle, padding.
CASES = {
    "a slow slot stays empty": ([(1, 1, [4]), (2, 2, [2, 2]), (4, 1, [0])], "1/4", "0"),
    "an exact fit wastes nothing": ([(1, 1, [4]), (2, 1, [2]), (4, 2, [1, 1])], "0", "0"),
    "three equal slots for eight": ([(1, 3, [3, 3, 2])], "0", "1/3"),
    "more slots than logical workers": ([(1, 5, [1, 1, 1, 0, 0])], "0", "2"),
}


@pytest.mark.parametrize("name", CASES)
def test_idle_and_padding_are_told_apart(name: str) -> None:
    kinds, idle, padding = CASES[name]
    loads = [Load(t, count) for t, _, counts in kinds for count in counts]
    sums = unused(loads)
    assert (sums.idle, sums.padding) == (Fraction(idle), Fraction(padding))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1).filter(
        lambda rows: any(count for _, count in rows)
    )
)
def test_throughput_and_waste_make_up_the_capability(rows: list[tuple[int, int]]) -> None:
    sums = unused(Load(*row) for row in rows)
    step = max(t * count for t, count in rows)
    assert sums.throughput == Fraction(sum(count for _, count in rows), step)
    assert sums.throughput + sums.idle + sums.padding == sums.capability
    assert sums.idle >= 0
    assert sums.padding >= 0
    assert 0 <= sums.share < 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 30),
    st.data(),
)
def test_a_kind_that_is_split_in_two_or_renamed_wastes_the_same(
    kinds: list[tuple[int, int]], n: int, data: st.DataObject
) -> None:
    whole = [
        KindOfSlot(str(i), slots, Fraction(1, period)) for i, (period, slots) in enumerate(kinds)
    ]
    which = data.draw(st.integers(0, len(kinds) - 1))
    period, slots = kinds[which]
    part = data.draw(st.integers(0, slots))
    split = [
        *(replace(kind, name=f"z{9 - i}") for i, kind in enumerate(whole) if i != which),
        KindOfSlot("a", part, Fraction(1, period)),
        KindOfSlot("b", slots - part, Fraction(1, period)),
    ]
    one, two = (of_kinds(each, n) for each in (whole, split))
    assert one.waste == two.waste
    assert one.step_seconds == two.step_seconds
