"""Claims about the canonical tree: any partition and any order give the bits of all leaves."""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from easyscale.model import Span
from easyscale.runtime import tree


def summed(values: Mapping[Span, torch.Tensor], n: int) -> torch.Tensor:
    held = dict(values)
    for merge in tree.merges(held, n):
        held[merge.into] = held[merge.left] + held[merge.right]
    return held[Span(0, n)]


def leaves(n: int, seed: int) -> dict[Span, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-6, 6, (n, 7), generator=generator).float()
    values = torch.randn(n, 7, generator=generator) * scale
    return {tree.leaf(rank): values[rank] for rank in range(n)}


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    n = draw(st.integers(1, 24))
    owners = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    return n, [[rank for rank in range(n) if owners[rank] == owner] for owner in range(5)]


@given(partitions(), st.integers(0, 2**20))
def test_partials_of_any_partition_sum_to_the_bits_of_all_leaves(
    partition: tuple[int, list[list[int]]], seed: int
) -> None:
    n, shares = partition
    values = leaves(n, seed)
    partials: dict[Span, torch.Tensor] = {}
    for share in shares:
        for span in tree.maximal_subtrees(share, n):
            inside = {
                Span(leaf.lo - span.lo, leaf.hi - span.lo): values[leaf]
                for leaf in values
                if span.lo <= leaf.lo < span.hi
            }
            partials[span] = summed(inside, len(span))
    assert torch.equal(summed(partials, n), summed(values, n))


@given(partitions())
def test_maximal_subtrees_cover_the_ranks_once_and_cannot_grow(
    partition: tuple[int, list[list[int]]],
) -> None:
    n, shares = partition
    for share in shares:
        spans = tree.maximal_subtrees(share, n)
        assert [rank for span in spans for rank in range(span.lo, span.hi)] == share
        assert all(tree.is_node(span, n) for span in spans)
        assert not any(tree.sibling(span, n) in spans for span in spans)


@given(st.integers(1, 64))
def test_children_parent_and_sibling_agree(n: int) -> None:
    for merge in tree.merges([tree.leaf(rank) for rank in range(n)], n):
        assert tree.children(merge.into) == (merge.left, merge.right)
        for side, other in ((merge.left, merge.right), (merge.right, merge.left)):
            assert tree.parent(side, n) == merge.into
            assert tree.sibling(side, n) == other
    assert tree.parent(Span(0, n), n) is None
    assert tree.sibling(Span(0, n), n) is None


@pytest.mark.parametrize(
    ("span", "parts"),
    (
        (Span(0, 8), (Span(0, 4), Span(4, 8))),
        (Span(0, 5), (Span(0, 4), Span(4, 5))),
        (Span(4, 7), (Span(4, 6), Span(6, 7))),
        (Span(0, 2), (Span(0, 1), Span(1, 2))),
        (Span(3, 4), None),
    ),
)
def test_a_node_is_split_at_the_largest_power_of_two_below_its_length(
    span: Span, parts: tuple[Span, Span] | None
) -> None:
    assert tree.children(span) == parts


@pytest.mark.parametrize("spans", ([Span(0, 2)], [Span(0, 4), Span(2, 4)], [Span(1, 3)], []))
def test_spans_that_do_not_partition_the_ranks_have_no_order(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match=r"subtree"):
        tree.merges(spans, 4)


@pytest.mark.parametrize("span", (Span(1, 3), Span(0, 9), Span(2, 2), Span(-1, 0)))
def test_a_range_across_the_tree_is_no_node(span: Span) -> None:
    assert not tree.is_node(span, 8)


@pytest.mark.parametrize(
    ("shares", "n", "order"),
    (
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 8, (0, 1)),
        ([[4, 5, 6, 7], [0, 1, 2, 3]], 8, (1, 0)),
        ([[0, 1, 2, 3], [4, 5]], 6, (0, 1)),
        ([[2, 3], [0, 1], [6, 7], [4, 5]], 8, (1, 0, 3, 2)),
        ([[0], [1], [2]], 3, None),
        ([[0, 1], [2, 3], [4], [5]], 6, (0, 1, 2, 3)),
        ([[0], [1], [2, 3], [4]], 5, None),
        ([[0, 2], [1, 3]], 4, None),
        ([[0, 1, 2, 3], []], 4, None),
        ([[0, 1, 2, 3]], 4, None),
    ),
)
def test_halving_doubling_fits_one_subtree_each_under_a_perfect_tree(
    shares: list[list[int]], n: int, order: tuple[int, ...] | None
) -> None:
    layout = [tree.maximal_subtrees(share, n) for share in shares]
    assert tree.pairing(layout, n) == order
