"""The fewest subtrees there can be, searched for: exact, for few enough ranks and slots.

Ranks are dealt from left to right, node by node: a shortest path (A*) over states, each the next
rank and the room that is left on each slot.
"""

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from easyscale.agent.balance.dealing import Slot, owners_of

#: What a slot that holds nothing yet is called: such slots differ only by their room.
_FRESH = -1
#: Whose ranks a node holds that may not move: those of no slot, and of more than one.
_NOBODY, _SEVERAL = -1, -2
#: Up to so many ranks a search is worth its time.
MOST_SEARCHED = 64
#: States that are looked at, times ranks, before what was found without a search has to do: 10 ms.
MOST_WORK = 10_000

#: The ranks of each slot.
Dealt = tuple[tuple[int, ...], ...]
#: The next rank; the room of each slot that holds something; that of the others, sorted.
_State = tuple[int, tuple[int, ...], tuple[int, ...]]


class _Option(NamedTuple):
    """The node from a rank up to `end` for one slot, and how much room it takes there."""

    end: int
    slot: int
    room: int


def least_subtrees(slots: Sequence[Slot], n: int) -> int:
    """No deal has fewer: a bound that counts the nodes above leaves that could be of one slot."""
    owners = owners_of((slot.held if len(slot.held) <= slot.most else () for slot in slots), n)
    own: list[tuple[int, int]] = [(owner, 1 if owner >= 0 else 0) for owner in owners]
    rooms = [slot.most - len(slot.held) for slot in slots]
    widest = max(slot.most for slot in slots)
    whole = 0
    for level in range(1, (n - 1).bit_length() + 1):
        size = 1 << level
        below, own = own, list(map(_both, own[::2], own[1::2]))
        if len(below) % 2:
            own.append(below[-1])
        full = ragged = 0
        for place, (owner, held) in enumerate(own):
            length = min(size, n - place * size)
            fits = length <= widest if owner == _NOBODY else length - held <= rooms[owner]
            if owner != _SEVERAL and fits:
                full += length == size
                ragged += size // 2 < length < size
        whole += min(full, sum(slot.most // size for slot in slots)) + ragged
    return n - whole


def _both(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """Whose ranks lie in two nodes, and how many."""
    if _NOBODY in {left[0], right[0]}:
        return max(left, right)
    return (left[0], left[1] + right[1]) if left[0] == right[0] else (_SEVERAL, 0)


@lru_cache(maxsize=256)
def fewer_subtrees(
    slots: tuple[Slot, ...], n: int, *, found: int, states: int
) -> tuple[Dealt | None, int]:
    """The fewest subtrees, if less than `found`, with no more moves; and how many states it took.

    If it took all it was given there may be fewer; else there are not.
    """
    search = _Search(slots, n)
    return search.run(found, states), search.looked_at


class _Search:
    def __init__(self, slots: Sequence[Slot], n: int) -> None:
        self._n = n
        self._slots = slots
        self._holding = [i for i, slot in enumerate(slots) if slot.held]
        self._fresh = [i for i, slot in enumerate(slots) if not slot.held]
        self._over = {
            k: i for k, i in enumerate(self._holding) if len(slots[i].held) > slots[i].most
        }
        self._owner = [-1] * n
        for k, i in enumerate(self._holding):
            for rank in slots[i].held:
                self._owner[rank] = k
        self._rooms = tuple(
            slots[i].most - (0 if k in self._over else len(slots[i].held))
            for k, i in enumerate(self._holding)
        )
        self._fresh_rooms = tuple(sorted(slots[i].most for i in self._fresh))
        self._options = [self._options_from(rank) for rank in range(n)]
        self._left = self._own_ranks_left()
        self._least = self._least_from()
        self.looked_at = 0

    def _options_from(self, start: int) -> list[_Option]:
        found: list[_Option] = []
        size, end = 1, start
        while end < self._n and not start & (size - 1):
            end = min(start + size, self._n)
            owners = set(self._owner[start:end])
            bound = {k for k in owners if k >= 0 and k not in self._over}
            if len(bound) > 1:
                break
            found += self._takers(start, end, owners, bound)
            size *= 2
        return found

    def _takers(self, start: int, end: int, owners: set[int], bound: set[int]) -> list[_Option]:
        size = end - start
        if bound:
            k = next(iter(bound))
            room = size - self._owner[start:end].count(k)
            return [_Option(end, k, room)] if room <= self._rooms[k] else []
        found = [
            _Option(end, k, size)
            for k, room in enumerate(self._rooms)
            if room >= size and (k not in self._over or owners == {k})
        ]
        if self._fresh_rooms and self._fresh_rooms[-1] >= size:
            found.append(_Option(end, _FRESH, size))
        return found

    def _own_ranks_left(self) -> dict[int, list[int]]:
        """How many of the ranks that a slot with too many holds lie from each rank on."""
        left = {k: [0] * (self._n + 1) for k in self._over}
        for k, counts in left.items():
            for rank in range(self._n - 1, -1, -1):
                counts[rank] = counts[rank + 1] + (self._owner[rank] == k)
        return left

    def _least_from(self) -> list[int]:
        """How many nodes it takes from each rank on, were there no end of room."""
        least = [0] * (self._n + 1)
        for rank in range(self._n - 1, -1, -1):
            least[rank] = 1 + min(
                (least[option.end] for option in self._options[rank]), default=self._n
            )
        return least

    def run(self, found: int, states: int) -> Dealt | None:
        start: _State = (0, self._rooms, self._fresh_rooms)
        came: dict[_State, tuple[int, _State, _Option | None, int]] = {start: (0, start, None, 0)}
        waiting = [(self._least[0], 0, start)]
        while waiting and self.looked_at < states:
            total, _, state = heappop(waiting)
            if total >= found:
                return None
            rank = state[0]
            if rank == self._n:
                return self._dealt(state, came)
            passed = came[state][0]
            if total > passed + self._least[rank]:
                continue
            self.looked_at += 1
            for option in self._options[rank]:
                for following, room in self._after(state, option):
                    known = came.get(following)
                    if known is not None and known[0] <= passed + 1:
                        continue
                    total = passed + 1 + self._least[option.end]
                    if total < found:
                        came[following] = (passed + 1, state, option, room)
                        heappush(waiting, (total, -option.end, following))
        return None

    def _after(self, state: _State, option: _Option) -> list[tuple[_State, int]]:
        """The states that an option leads to, and the room of the slot that took it."""
        _, rooms, fresh = state
        if option.slot == _FRESH:
            if any(rooms[k] > left[option.end] for k, left in self._left.items()):
                return []
            return [
                ((option.end, rooms, _less(fresh, room, option.room)), room)
                for room in sorted(set(fresh))
                if room >= option.room
            ]
        room = rooms[option.slot]
        if room < option.room:
            return []
        k = option.slot
        rooms = (*rooms[:k], room - option.room, *rooms[k + 1 :])
        if any(rooms[k] > left[option.end] for k, left in self._left.items()):
            return []  # who holds too much must keep as many as it can
        return [((option.end, rooms, fresh), room)]

    def _dealt(
        self, state: _State, came: dict[_State, tuple[int, _State, _Option | None, int]]
    ) -> Dealt:
        steps = []
        while True:
            _, before, option, room = came[state]
            if option is None:
                break
            steps.append((before[0], option, room))
            state = before
        dealt: list[list[int]] = [[] for _ in self._slots]
        left = {i: self._slots[i].most for i in self._fresh}
        for start, option, room in reversed(steps):
            if option.slot == _FRESH:
                i = next(i for i in self._fresh if left[i] == room)
                left[i] -= option.room
            else:
                i = self._holding[option.slot]
            dealt[i] += range(start, option.end)
        return tuple(map(tuple, dealt))


def _less(rooms: tuple[int, ...], room: int, taken: int) -> tuple[int, ...]:
    rest = list(rooms)
    rest.remove(room)
    return tuple(sorted([*rest, room - taken]))
