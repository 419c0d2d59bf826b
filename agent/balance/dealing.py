"""Which logical ranks each slot computes: what may stay stays, and few subtrees of the sum.

A process sends one partial sum for each largest subtree that it holds whole. The nodes of the tree
over [0, n) are the aligned powers of two, cut off at n (docs/decisions/0004-reduction-tree.md).
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace

import msgspec

#: Whose a node is: an index of a slot, or nobody's yet, or of several.
_FREE, _MIXED = -1, -2
#: (minus how many ranks, the first of them, level): nodes in their order are large ones first.
Node = tuple[int, int, int]


class Slot(msgspec.Struct, frozen=True, gc=False):
    """What a slot holds now, in order, and how many ranks it may hold."""

    held: tuple[int, ...]
    most: int
    micro_step: int


def levels(owners: Sequence[int], *, highest: int) -> list[list[int]]:
    """Whose each node is, from the leaves up; the last of an odd level has no sibling there."""
    found = [list(owners)]
    while len(found[-1]) > 1 and len(found) <= highest:
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


def subtrees(ranks: Sequence[int], n: int) -> list[Node]:
    """The largest nodes that some ranks, in order, are: each as high as the tree has it."""
    found = []
    count, at = len(ranks), 0
    while at < count:
        start = ranks[at]
        size, level, end = 1, 0, start + 1
        ahead = at - start - 1
        # While its sibling follows whole: ranks are in order, so the last one says it of all.
        while not start & size and size < n:
            beyond = start + 2 * size
            if beyond > n:  # noqa: PLR1730 - a call would take as long as all the rest
                beyond = n
            if ahead + beyond >= count or ranks[ahead + beyond] != beyond - 1:
                break
            size, level, end = 2 * size, level + 1, beyond
        found.append((start - end, start, level))
        at += end - start
    return found


def partials(dealt: Iterable[Sequence[int]], n: int) -> int:
    """How many partial sums all slots together make: their largest whole subtrees."""
    return sum(len(subtrees(sorted(ranks), n)) for ranks in dealt)


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


def deal_between(slots: Sequence[Slot], n: int) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
    """Each slot keeps what it can, in large subtrees; the rest goes beside it where it can.

    The ranks of each slot, and those that move.
    """
    held = sum([len(slot.held) for slot in slots])
    if held == n and all(len(slot.held) <= slot.most for slot in slots):
        return [slot.held for slot in slots], ()
    dealing = _Dealing(slots, n)
    dealing.deal()
    return dealing.dealt, dealing.free


class _Dealing:
    """The tree while ranks are given to slots, largest subtrees first."""

    def __init__(self, slots: Sequence[Slot], n: int) -> None:
        self._n = n
        rooms = [slot.most - len(slot.held) for slot in slots]
        self._rooms = [room if room > 0 else 0 for room in rooms]  # noqa: FURB136 - a third of the time
        self._widest = max(self._rooms)
        #: Lists of those that were given some, and what the others hold as it is.
        self.dealt: list[tuple[int, ...] | list[int]] = [
            slot.held if len(slot.held) <= slot.most else self._keep(slot.held, slot.most)
            for slot in slots
        ]
        owners = owners_of(self.dealt, n)
        self.free = [rank for rank, owner in enumerate(owners) if owner == _FREE]
        self._nodes = subtrees(self.free, n)
        #: Nothing above this level is asked for any more: whatever is left is smaller.
        self._highest = max([level for _, _, level in self._nodes])
        self._tree = levels(owners, highest=self._highest)

    def _halves(self, node: Node) -> tuple[Node, Node]:
        _, start, level = node
        level -= 1
        while start + (1 << level) >= self._n:  # cut off: the same node as its left half
            level -= 1
        middle = start + (1 << level)
        return (-1 << level, start, level), (max(-1 << level, middle - self._n), middle, level)

    def _keep(self, held: tuple[int, ...], room: int) -> tuple[int, ...]:
        """Who holds too much keeps the largest subtrees, and gives whole ones away if it can."""
        if not room:
            return ()
        if len({rank >> 1 for rank in held}) == len(held):  # no two have the same parent
            return held[:room]
        nodes = sorted(subtrees(held, self._n))
        kept: list[int] = []
        for which, first, end in _largest(tuple([n[0] for n in nodes]), room, self._widest):
            start = nodes[which][1]
            kept += range(start + first, start + end)
        return tuple(kept)

    # What is free goes beside its like, else to who has most room, and in halves if it must.

    def deal(self) -> None:
        by_size: dict[int, list[Node]] = defaultdict(list)
        for node in self._nodes:
            by_size[-node[0]].append(node)
        rooms = self._rooms
        # Of the cut-off end of the tree, a small node may stand on a high level.
        cut_off = self._nodes[-1][2]
        roomy = [(-room, i) for i, room in enumerate(rooms) if room]
        heapify(roomy)
        while by_size:
            size = max(by_size)
            self._highest = max(size.bit_length() - 1, cut_off)
            for node in [node for node in by_size.pop(size) if not self._give_beside(node, size)]:
                least, i = roomy[0]
                while -least != rooms[i]:  # it was given something beside
                    heapreplace(roomy, (-rooms[i], i))
                    least, i = roomy[0]
                if rooms[i] >= size:
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
        ranks = self.dealt[i]
        if isinstance(ranks, tuple):
            ranks = self.dealt[i] = list(ranks)
        ranks += range(start, start - minus)
        self._rooms[i] += minus
        place = start >> level
        for row in self._tree[level : self._highest + 1]:
            row[place] = i
            beside = place ^ 1
            if beside < len(row) and row[beside] != i:
                return
            place >>= 1


@lru_cache(maxsize=1024)
def _largest(
    minus_sizes: tuple[int, ...], room: int, widest: int
) -> Sequence[tuple[int, int, int]]:
    """What to keep of subtrees of such sizes, large ones first: which, and which part of it.

    ``widest`` is the most room there is for one that goes.
    """
    nodes = [(minus, which, 0) for which, minus in enumerate(minus_sizes)]
    rest = -sum(minus_sizes)
    kept = []
    at = 0
    while room:
        minus, which, first = nodes[at]
        size = -minus
        if size <= room:
            kept.append((which, first, first + size))
            room -= size
            rest -= size
        elif rest - size >= room and size <= widest:
            # The last one of this size: what stays, and what goes, are neighbours.
            del nodes[bisect_left(nodes, (minus + 1,), at) - 1]
            rest -= size
            continue
        else:
            left = 1 << (size - 1).bit_length() - 1  # of the one that is cut off, too
            insort(nodes, (-left, which, first))
            insort(nodes, (left - size, which, first + left))
        at += 1
    return kept
