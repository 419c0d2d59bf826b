"""A small set of rows in which every pair of values of any two factors meets."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

Row = tuple[object, ...]
Pair = tuple[int, object, int, object]


def pairwise(factors: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Rows, greedily the one that shows most unseen pairs first; the same for the same factors."""
    names, values = list(factors), list(factors.values())
    rows = list(product(*values))
    unseen = {pair for row in rows for pair in _pairs(row)}
    chosen: list[Row] = []
    while unseen:
        best = max(rows, key=lambda row: len(unseen & _pairs(row)))
        chosen.append(best)
        unseen -= _pairs(best)
    return [dict(zip(names, row, strict=True)) for row in chosen]


def _pairs(row: Row) -> set[Pair]:
    return {(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(row), 2)}
