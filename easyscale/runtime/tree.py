"""The canonical tree: pure arithmetic on logical ranks that fixes how a sum is bracketed.

A node covers the ranks [lo, hi) and is split at the largest power of two strictly below its
length; its sum is left + right. Which process adds which node never changes the sum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from easyscale.model import Span


@dataclass(frozen=True, slots=True)
class Merge:
    """One addition on the way to the root: `into` = `left` + `right`, in this operand order."""

    left: Span
    right: Span
    into: Span


def leaf(rank: int) -> Span:
    """Return the node that holds one logical rank alone."""
    return Span(rank, rank + 1)


def children(span: Span) -> tuple[Span, Span] | None:
    """Return the two nodes whose sum is `span`, or None for a leaf."""
    if len(span) == 1:
        return None
    middle = span.lo + (1 << ((len(span) - 1).bit_length() - 1))
    return Span(span.lo, middle), Span(middle, span.hi)


def path(span: Span, n: int) -> list[Span]:
    """Return the nodes from the root over [0, n) down to `span`, both included."""
    nodes = [Span(0, n)]
    while nodes[-1] != span:
        below = children(nodes[-1])
        if below is None or not 0 <= span.lo < span.hi <= n:
            raise ValueError(f"{span} is no node of the tree over [0, {n})")
        nodes.append(below[0] if span.lo < below[0].hi else below[1])
    return nodes


@cache
def ascent(span: Span, n: int) -> tuple[tuple[Span, Span], ...]:
    """Return the way up from a node: each time its sibling, and the parent that both make."""
    steps = []
    for above in path(span, n)[-2::-1]:
        left, right = children(above) or (span, span)
        steps.append((right if span == left else left, above))
        span = above
    return tuple(steps)


def parent(span: Span, n: int) -> Span | None:
    """Return the node that `span` is added into, or None for the root."""
    nodes = path(span, n)
    return nodes[-2] if len(nodes) > 1 else None


def sibling(span: Span, n: int) -> Span | None:
    """Return the node that `span` is added to, or None for the root."""
    above = parent(span, n)
    below = children(above) if above is not None else None
    if below is None:
        return None
    left, right = below
    return right if span == left else left


def is_node(span: Span, n: int) -> bool:
    """Tell whether `span` is a node of the tree over [0, n)."""
    try:
        path(span, n)
    except ValueError:
        return False
    return True


def maximal_subtrees(ranks: Iterable[int], n: int) -> tuple[Span, ...]:
    """Return the largest nodes that lie wholly inside `ranks`, from left to right."""
    wanted = frozenset(ranks)
    found: list[Span] = []
    open_nodes = [Span(0, n)] if n and wanted else []
    while open_nodes:
        node = open_nodes.pop()
        inside = sum(rank in wanted for rank in range(node.lo, node.hi))
        if inside == len(node):
            found.append(node)
        elif inside and (below := children(node)) is not None:
            open_nodes += (below[1], below[0])
    return tuple(found)


def merges(spans: Iterable[Span], n: int) -> tuple[Merge, ...]:
    """Return the additions that turn a partition of [0, n) into the root, children first."""
    held = frozenset(spans)
    order: list[Merge] = []

    def visit(node: Span) -> None:
        if node in held:
            return
        below = children(node)
        if below is None:
            raise ValueError(f"logical rank {node.lo} is in no subtree of {sorted(held)}")
        left, right = below
        visit(left)
        visit(right)
        order.append(Merge(left, right, node))

    visit(Span(0, n))
    if len(order) != len(held) - 1:
        raise ValueError(f"{sorted(held)} is no partition of [0, {n}) into subtrees")
    return tuple(order)


def pairing(layout: Sequence[Sequence[Span]], n: int) -> tuple[int, ...] | None:
    """Return the process ranks in tree order where halving-doubling gives the tree's sum.

    That is so where every process holds exactly one subtree and the tree above them is a perfect
    binary tree: partners in round r are then the processes whose places differ in bit r.
    """
    size = len(layout)
    if size in {0, 1} or size & (size - 1) or any(len(spans) != 1 for spans in layout):
        return None
    depth = size.bit_length() - 1
    if any(len(path(spans[0], n)) != depth + 1 for spans in layout):
        return None
    return tuple(sorted(range(size), key=lambda process: layout[process][0]))
