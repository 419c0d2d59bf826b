"""The cover, half of which the suite runs instead of the whole matrix, leaves no pair out."""

from itertools import combinations

from tests.support.cover import pairwise

FACTORS = {"model": ("a", "b", "c"), "n": (1, 2, 3, 5), "layout": ("x", "y"), "workers": (0, 2)}


def test_every_pair_of_values_meets_in_some_row() -> None:
    rows = pairwise(FACTORS)
    for first, second in combinations(FACTORS, 2):
        met = {(row[first], row[second]) for row in rows}
        assert met == {(a, b) for a in FACTORS[first] for b in FACTORS[second]}


def test_the_cover_is_smaller_than_the_whole_and_always_the_same() -> None:
    assert len(pairwise(FACTORS)) < 3 * 4 * 2 * 2
    assert pairwise(FACTORS) == pairwise(FACTORS)
