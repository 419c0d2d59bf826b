"""Waste in the paper's two terms, against recorded cases and the identity that holds for all."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    loads = [
        Load(str(kind), t, count) for kind, (t, _, counts) in enumerate(kinds) for count in counts
    ]
    sums = unused(loads)
    assert (sums.idle, sums.padding) == (Fraction(idle), Fraction(padding))


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 5)), min_size=1
    ).filter(lambda rows: any(count for _, _, count in rows))
)
def test_throughput_and_waste_make_up_the_capability(rows: list[tuple[str, int, int]]) -> None:
    sums = unused(Load(*row) for row in rows)
    step = max(t * count for _, t, count in rows)
    assert sums.throughput == Fraction(sum(count for _, _, count in rows), step)
    assert sums.throughput + sums.idle + sums.padding == sums.capability
    assert sums.idle >= 0
    assert sums.padding >= 0
    assert 0 <= sums.share < 1
