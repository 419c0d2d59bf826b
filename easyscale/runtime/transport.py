"""The seam where tensors leave the process: what an exchange asks of gloo today, of NCCL elsewhere.

Calls block until the memory they name is settled. Any error of any text, on submission or on
wait, is one fact: the generation is broken.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import BroadcastOptions, ProcessGroupGloo, Store

from easyscale.errors import GenerationBroken

#: gloo takes tags of 31 bits; they only have to differ among what is under way.
_TAGS = 1 << 30
#: Transfers that are waited for one by one share a tag; numbered ones begin at 0.
_SINGLE = _TAGS - 1

#: What gloo adds as the processor does; the smaller types it rounds by code of its own.
_SUMMED = (torch.float32, torch.float64)


class Pending(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Return when the memory is settled, or raise GenerationBroken."""


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

    def post_send(self, peer: int, tensor: torch.Tensor, *, tag: int) -> Pending:
        """Begin to send; the peer receives with the same tag, which nothing else under way has."""

    def post_receive(self, peer: int, into: torch.Tensor, *, tag: int) -> Pending:
        """Begin to receive."""

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        """Send to a peer that receives."""

    def receive(self, peer: int, into: torch.Tensor) -> None:
        """Receive from a peer that sends."""

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        """Give everybody the source's bytes."""

    def sum_of_two(self, tensor: torch.Tensor) -> bool:
        """Sum in place among two members, or do nothing and return False for another type."""


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

    def post_send(self, peer: int, tensor: torch.Tensor, *, tag: int) -> Pending:
        what = f"sending to process {peer}"
        with _breaking(what):
            return _Work(self._gloo.send([_bytes(tensor)], peer, tag % _TAGS), what)

    def post_receive(self, peer: int, into: torch.Tensor, *, tag: int) -> Pending:
        what = f"receiving from process {peer}"
        with _breaking(what):
            return _Work(self._gloo.recv([_bytes(into)], peer, tag % _TAGS), what)

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        self.post_send(peer, tensor, tag=_SINGLE).wait()

    def receive(self, peer: int, into: torch.Tensor) -> None:
        self.post_receive(peer, into, tag=_SINGLE).wait()

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        options = BroadcastOptions()
        options.rootRank = source
        with _breaking(f"a broadcast from process {source}"):
            self._gloo.broadcast([_bytes(tensor)], options).wait()

    def sum_of_two(self, tensor: torch.Tensor) -> bool:
        assert self.size == 2  # noqa: PLR2004  with three, gloo's order would reach the bits
        if tensor.dtype not in _SUMMED:
            return False
        with _breaking("a sum of two"):
            self._gloo.allreduce([tensor]).wait()
        return True


@dataclass(frozen=True, slots=True)
class _Work:
    work: Any
    what: str

    def wait(self) -> None:
        with _breaking(self.what):
            self.work.wait()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # gloo sums nothing here, so it need not know the type; and it does not know them all.
    return tensor.view(torch.uint8)
