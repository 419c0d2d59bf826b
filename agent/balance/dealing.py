"""Which logical ranks each slot computes: what may stay stays, and few subtrees of the sum.

A process sends one partial sum for each largest subtree that it holds whole. The nodes of the tree
over [0, n) are the aligned powers of two, cut off at n (docs/decisions/0004-reduction-tree.md).
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

#: Whose a node is: an index of a slot, or nobody's yet, or of several.
_FREE, _MIXED = -1, -2
#: (minus how many ranks, the first of them, level): nodes in their order are large ones first.
Node = tuple[int, int, int]


class Slot(NamedTuple):
    """What a slot holds now, in order, and how many ranks it may hold."""

    held: tuple[int, ...]
    most: int
    micro_step: int


def levels(owners: Sequence[int]) -> list[list[int]]:
    """Whose each node is, from the leaves up; the last of an odd level has no sibling there."""
    found = [list(owners)]
    while len(found[-1]) > 1:
        below = found[-1]
        above = [a if a == b else _MIXED for a, b in zip(below[::2], below[1::2], strict=False)]
        found.append(above + below[-1:] if len(below) % 2 else above)
    return found


def owners_of(dealt: Iterable[Sequence[int]], n: int) -> list[int]:
    """Whose each rank is, of what each slot holds."""
    owners = [_FREE] * n
    for i, ranks in enumerate(dealt):
        for rank in ranks:
            owners[rank] = i
    return owners


def subtrees(tree: Sequence[Sequence[int]], ranks: Iterable[int]) -> list[Node]:
    """The largest nodes that some ranks of one owner are, all of its or some whole nodes."""
    n, top = len(tree[0]), len(tree) - 1
    found = []
    end = 0
    for rank in ranks:
        if rank >= end:
            owner, level, place = tree[0][rank], 0, rank
            while level < top and tree[level + 1][place >> 1] == owner:
                level, place = level + 1, place >> 1
            start = place << level
            end = min(start + (1 << level), n)
            found.append((start - end, start, level))
    return found


def partials(dealt: Sequence[Sequence[int]], n: int) -> int:
    """How many partial sums all slots together make: their largest whole subtrees."""
    tree = levels(owners_of(dealt, n))
    return sum(len(subtrees(tree, sorted(ranks))) for ranks in dealt)


# --- nothing is held yet -----------------------------------------------------------------------


def deal_at_first(slots: Sequence[Slot], n: int) -> list[list[int]]:
    """The fewest subtrees there can be, where no rank has a place yet.

    Of blocks of 2^k and more, slots together hold no more than the sum of floor(most / 2^k), and
    n has no more than n / 2^k: with as many as both allow at each k, blocks are fewest. They are
    dealt by falling size, so all are aligned. One block more may be the cut-off end of the tree.
    """
    rooms = [slot.most for slot in slots]
    tail, room = _best_tail(rooms, n)
    able = (i for i, each in enumerate(rooms) if each == room)
    taker = min(able, key=lambda i: slots[i].micro_step)
    if tail:
        rooms[taker] -= tail
    dealt: list[list[int]] = [[] for _ in slots]
    start = 0
    for size, blocks in _blocks(Counter(rooms), n - tail):
        for i in _takers(slots, rooms, size=size, blocks=blocks):
            dealt[i] += range(start, start + size)
            start += size
            rooms[i] -= size
    dealt[taker] += range(n - tail, n)
    return dealt


def _best_tail(rooms: Sequence[int], n: int) -> tuple[int, int]:
    """How long the cut-off end is that one slot should hold, and with what room; 0 for none."""
    kinds = Counter(rooms)
    fewest = sum(blocks for _, blocks in _blocks(kinds, n))
    best = 0, rooms[0]
    ends = {n % (1 << level) for level in range(1, n.bit_length() + 1)}
    for tail in sorted(end for end in ends if end & (end - 1)):
        for room in sorted(room for room in kinds if room >= tail):
            rest = kinds - Counter([room]) + Counter([room - tail])
            blocks = 1 + sum(count for _, count in _blocks(rest, n - tail))
            if blocks < fewest:
                fewest, best = blocks, (tail, room)
    return best


def _blocks(rooms: Mapping[int, int], n: int) -> list[tuple[int, int]]:
    """(size, how many) by falling size: each time as many as slots and ranks allow."""
    found = []
    placed = 0
    for level in range(n.bit_length() - 1, -1, -1):
        most = min(sum((room >> level) * slots for room, slots in rooms.items()), n >> level)
        if most > 2 * placed:
            found.append((1 << level, most - 2 * placed))
        placed = most
    return found


def _takers(slots: Sequence[Slot], rooms: Sequence[int], *, size: int, blocks: int) -> list[int]:
    """Who takes the blocks of one size: everybody who can, and the rest who is done first."""
    found: list[int] = []
    able = [i for i, room in enumerate(rooms) if room >= size]
    taken = 0
    while blocks > len(able):
        found += able
        blocks -= len(able)
        taken += size
        able = [i for i in able if rooms[i] >= taken + size]
    if blocks < len(able):
        used = {i: slots[i].most - rooms[i] + taken for i in able}
        # Of those that are done at the same time the faster: their names decide nothing.
        able.sort(key=lambda i: ((used[i] + size) * slots[i].micro_step, slots[i].micro_step))
    return sorted(found + able[:blocks])


# --- some ranks have a place -------------------------------------------------------------------


def deal_between(slots: Sequence[Slot], n: int) -> Sequence[Sequence[int]]:
    """Each slot keeps what it can, in large subtrees; the rest goes beside it where it can."""
    if all(len(held) <= most for held, most, _ in slots) and sum(len(s.held) for s in slots) == n:
        return [slot.held for slot in slots]
    dealing = _Dealing(slots, n)
    dealing.drop()
    dealing.deal()
    return dealing.dealt


class _Dealing:
    """The tree while ranks are given to slots, largest subtrees first."""

    def __init__(self, slots: Sequence[Slot], n: int) -> None:
        self._n = n
        self._slots = slots
        self._owners = owners_of((slot.held for slot in slots), n)
        self._tree = levels(self._owners)
        self._rooms = [0 if len(held) > most else most - len(held) for held, most, _ in slots]
        self._widest = max(self._rooms)
        self.dealt = [list(held) for held, _, _ in slots]

    def _halves(self, node: Node) -> tuple[Node, Node]:
        _, start, level = node
        level -= 1
        while start + (1 << level) >= self._n:  # cut off: the same node as its left half
            level -= 1
        middle = start + (1 << level)
        return (-1 << level, start, level), (max(-1 << level, middle - self._n), middle, level)

    # Who holds too much keeps the largest subtrees, and gives whole ones away while it can.

    def drop(self) -> None:
        is_over = False
        for i, (held, most, _) in enumerate(self._slots):
            if len(held) > most:
                nodes = subtrees(self._tree, held)
                self.dealt[i] = kept = self._keep(nodes, rest=len(held), room=most)
                for rank in set(held).difference(kept):
                    self._owners[rank] = _FREE
                is_over = True
        if is_over:
            self._tree = levels(self._owners)

    def _keep(self, nodes: list[Node], *, rest: int, room: int) -> list[int]:
        nodes.sort()
        if nodes[0][0] == -1:
            return [start for _, start, _ in nodes[:room]]
        kept: list[int] = []
        at = 0
        while room:
            minus, start, _ = node = nodes[at]
            if -minus <= room:
                kept += range(start, start - minus)
                room += minus
                rest += minus
            elif rest + minus >= room and -minus <= self._widest:
                # The last one of this size: what stays, and what goes, are neighbours.
                del nodes[bisect_left(nodes, (minus + 1,), at) - 1]
                rest += minus
                continue
            else:
                for half in self._halves(node):
                    insort(nodes, half)
            at += 1
        return kept

    # What is free goes beside its like, else to who has most room, and in halves if it must.

    def deal(self) -> None:
        by_size: dict[int, list[Node]] = defaultdict(list)
        free = [rank for rank, owner in enumerate(self._owners) if owner == _FREE]
        for node in subtrees(self._tree, free):
            by_size[-node[0]].append(node)
        roomy = [(-room, i) for i, room in enumerate(self._rooms) if room]
        heapify(roomy)
        while by_size:
            size = max(by_size)
            for node in [node for node in by_size.pop(size) if not self._give_beside(node, size)]:
                while -roomy[0][0] != self._rooms[roomy[0][1]]:  # it was given something beside
                    i = roomy[0][1]
                    heapreplace(roomy, (-self._rooms[i], i))
                i = roomy[0][1]
                if self._rooms[i] >= size:
                    self._give(node, i)
                else:
                    self._tree[node[2]][node[1] >> node[2]] = _MIXED
                    for half in self._halves(node):
                        by_size[-half[0]].append(half)

    def _give_beside(self, node: Node, size: int) -> bool:
        _, start, level = node
        row, beside = self._tree[level], start >> level ^ 1
        owner = row[beside] if beside < len(row) else _FREE
        if owner < 0 or self._rooms[owner] < size:
            return False
        self._give(node, owner)
        return True

    def _give(self, node: Node, i: int) -> None:
        minus, start, level = node
        self.dealt[i] += range(start, start - minus)
        self._rooms[i] += minus
        place = start >> level
        self._tree[level][place] = i
        while level + 1 < len(self._tree):
            row = self._tree[level]
            if place ^ 1 < len(row) and row[place ^ 1] != i:
                return
            level, place = level + 1, place >> 1
            self._tree[level][place] = i
