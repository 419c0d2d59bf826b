"""Halving-doubling among processes that hold one sibling subtree each, cell by cell.

In round r a process adds its sibling's half to its own and gives the other half away; afterwards
the sums travel back. A cell goes on as soon as it is summed, so that additions and rounds overlap:

    place 0   gives 2 3, keeps 0 1      gives 1 to place 2, keeps 0     sends 0 to 2 and 1
    place 1   gives 0 1, keeps 2 3      gives 3 to place 3, keeps 2     sends 2 to 3 and 0
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from easyscale.runtime.transport import Pending, Transport

#: Elements of a cell. More cells overlap additions better, but each wakes two more threads:
#: on a busy machine few were best, see benchmarks/exchange.py --cell.
CELL_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """One partner and the halves of what was left, as numbers of cells."""

    peer: int
    is_right: bool
    kept: range
    given: range


def plan_rounds(order: Sequence[int], place: int, cells: int) -> tuple[Round, ...]:
    """Return the rounds of the process at `place`; partners differ in one bit of their places."""
    whole = range(cells)
    rounds = []
    for bit in range(len(order).bit_length() - 1):
        is_right = bool(place >> bit & 1)
        half = len(whole) // 2
        kept, given = (whole[half:], whole[:half]) if is_right else (whole[:half], whole[half:])
        rounds.append(Round(order[place ^ 1 << bit], is_right, kept, given))
        whole = kept
    return tuple(rounds)


class Siblings:
    """The reduction of one flat bucket among siblings.

    A sum comes back only after the part it was made of has arrived there, so a cell may be
    received into while gloo still counts its sending as under way.
    """

    def __init__(
        self,
        transport: Transport,
        order: Sequence[int],
        flat: torch.Tensor,
        received: torch.Tensor,
        *,
        first_tag: int,
    ) -> None:
        self._transport = transport
        shard = flat.numel() // len(order)
        per_shard = max(1, round(shard / CELL_ELEMENTS))
        while shard % per_shard:
            per_shard -= 1
        self._cells = per_shard * len(order)
        self._own = flat.view(self._cells, -1).unbind()
        self._rounds = plan_rounds(order, order.index(transport.rank), self._cells)
        self._first_tag = first_tag
        self._sends: list[Pending] = []
        # Each round receives the half that it keeps: together all cells but one shard.
        free = iter(received.view(self._cells, -1).unbind())
        self._theirs = [{cell: next(free) for cell in one.kept} for one in self._rounds]

    @property
    def tags(self) -> int:
        """How many tags are used, from the first one on: two per round and cell."""
        return 2 * len(self._rounds) * self._cells

    def reduce(self) -> None:
        """Sum the bucket in place; every process ends with the same bits."""
        parts = [
            {cell: self._receive(number, one.peer, cell, theirs[cell]) for cell in one.kept}
            for number, (one, theirs) in enumerate(zip(self._rounds, self._theirs, strict=True))
        ]
        sums = [
            {cell: self._receive(~number, one.peer, cell, self._own[cell]) for cell in one.given}
            for number, one in enumerate(self._rounds)
        ]
        for cell in self._rounds[0].given:
            self._send(0, cell)
        for number in range(len(self._rounds)):
            self._halve(number, parts[number])
        for number in reversed(range(len(self._rounds))):
            for cell, coming in sums[number].items():
                coming.wait()
                self._send_sum(cell, rounds=number)
        for send in self._sends:
            send.wait()

    def _halve(self, number: int, parts: dict[int, Pending]) -> None:
        one, theirs = self._rounds[number], self._theirs[number]
        is_last = number + 1 == len(self._rounds)
        given_next = range(0) if is_last else self._rounds[number + 1].given
        # What the next partner waits for is added first.
        for cell in sorted(one.kept, key=lambda cell: cell not in given_next):
            parts[cell].wait()
            own = self._own[cell]
            left, right = (theirs[cell], own) if one.is_right else (own, theirs[cell])
            torch.add(left, right, out=own)
            if is_last:
                self._send_sum(cell, rounds=len(self._rounds))
            elif cell in given_next:
                self._send(number + 1, cell)

    def _send_sum(self, cell: int, *, rounds: int) -> None:
        """Send a finished cell back to the partners of the first `rounds` rounds."""
        for number in reversed(range(rounds)):
            self._send(~number, cell)

    def _send(self, number: int, cell: int) -> None:
        peer = self._rounds[number if number >= 0 else ~number].peer
        tag = self._tag(number, cell)
        self._sends.append(self._transport.post_send(peer, self._own[cell], tag=tag))

    def _receive(self, number: int, peer: int, cell: int, into: torch.Tensor) -> Pending:
        return self._transport.post_receive(peer, into, tag=self._tag(number, cell))

    def _tag(self, number: int, cell: int) -> int:
        """Number a transfer: `number` is the round, its complement that round's way back."""
        way = number if number >= 0 else len(self._rounds) + ~number
        return self._first_tag + way * self._cells + cell
