"""The seam where tensors leave the process: what an exchange asks of gloo today, of NCCL elsewhere.

Calls block until the memory they name is settled. Any error of any text, on submission or on
wait, is one fact: the generation is broken.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import BroadcastOptions, ProcessGroupGloo, Store

from easyscale.errors import GenerationBroken

#: gloo takes tags of 31 bits; they only have to differ among what is under way.
_TAGS = 1 << 29
_SINGLE = 1 << 30


#: Told which part of a receive lies in memory now.
Arrived = Callable[[int], object]


def nothing(_: int) -> None:
    """Do nothing with a part that has arrived."""


class Transport(Protocol):
    """Moves contiguous tensors between the members of one generation.

    All members make the same calls in the same order, from one thread.
    """

    rank: int
    size: int
    #: Where the tensors must lie.
    device: torch.device

    def all_gather(self, into: torch.Tensor, part: torch.Tensor) -> None:
        """Concatenate the members' parts, by process rank."""

    def all_to_all(
        self,
        into: torch.Tensor,
        parts: torch.Tensor,
        *,
        into_sizes: Sequence[int],
        part_sizes: Sequence[int],
    ) -> None:
        """Send the q-th part to process q and receive process q's into the q-th place."""

    def swap(
        self,
        peer: int,
        *,
        send: Sequence[torch.Tensor],
        into: Sequence[torch.Tensor],
        arrived: Arrived = nothing,
    ) -> None:
        """Send to one peer while receiving from it, telling of each part that has arrived."""

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        """Send to a peer that receives."""

    def receive(self, peer: int, into: torch.Tensor) -> None:
        """Receive from a peer that sends."""

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        """Give everybody the source's bytes."""


@contextmanager
def _breaking(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise GenerationBroken(f"{what} failed: {error}") from error


class GlooTransport:
    """gloo, called from the exchange thread: send and receive report nothing without a wait."""

    device = torch.device("cpu")

    def __init__(self, gloo: ProcessGroupGloo, *, rank: int, size: int, store: Store) -> None:
        # torch's stub of the class leaves its collectives out.
        self._gloo: Any = gloo
        # gloo refers to it from C++ alone.
        self._store = store
        self.rank = rank
        self.size = size
        self._tag = 0

    def all_gather(self, into: torch.Tensor, part: torch.Tensor) -> None:
        with _breaking("an all-gather"):
            self._gloo._allgather_base(  # noqa: SLF001  the one that takes a flat tensor
                _bytes(into), _bytes(part)
            ).wait()

    def all_to_all(
        self,
        into: torch.Tensor,
        parts: torch.Tensor,
        *,
        into_sizes: Sequence[int],
        part_sizes: Sequence[int],
    ) -> None:
        width = into.element_size()
        with _breaking("an all-to-all"):
            self._gloo.alltoall_base(
                _bytes(into),
                _bytes(parts),
                [size * width for size in into_sizes],
                [size * width for size in part_sizes],
            ).wait()

    def swap(
        self,
        peer: int,
        *,
        send: Sequence[torch.Tensor],
        into: Sequence[torch.Tensor],
        arrived: Arrived = nothing,
    ) -> None:
        with _breaking(f"an exchange with process {peer}"):
            receives = [
                self._gloo.recv([_bytes(part)], peer, self._tag + index)
                for index, part in enumerate(into)
            ]
            sends = [
                self._gloo.send([_bytes(part)], peer, self._tag + index)
                for index, part in enumerate(send)
            ]
        for index, receive in enumerate(receives):
            with _breaking(f"receiving from process {peer}"):
                receive.wait()
            arrived(index)
        for work in sends:
            with _breaking(f"sending to process {peer}"):
                work.wait()
        self._tag = (self._tag + len(into)) % _TAGS

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        with _breaking(f"sending to process {peer}"):
            self._gloo.send([_bytes(tensor)], peer, _SINGLE).wait()

    def receive(self, peer: int, into: torch.Tensor) -> None:
        with _breaking(f"receiving from process {peer}"):
            self._gloo.recv([_bytes(into)], peer, _SINGLE).wait()

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        options = BroadcastOptions()
        options.rootRank = source
        with _breaking(f"a broadcast from process {source}"):
            self._gloo.broadcast([_bytes(tensor)], options).wait()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # gloo sums nothing here, so it need not know the type; and it does not know them all.
    return tensor.view(torch.uint8)
