"""The complete result of one operation, kept so that a member one behind can be served.

It never aliases `p.grad`: clipping works in place, and what is served must be the bits that the
exchange gave.
"""

from collections.abc import Sequence

import msgspec
import torch

from easyscale.model import GenerationNumber
from easyscale.runtime.buckets import Bucket, TensorLayout
from easyscale.runtime.headers import Operation, OperationKind, mask_text, united
from easyscale.runtime.partials import divide


class RecordHead(msgspec.Struct, frozen=True, kw_only=True):
    """What of a record is no tensor; travels before the tensors when a record is served."""

    kind: OperationKind
    position: int
    newest: tuple[GenerationNumber, ...]
    weighted: tuple[bool, ...]
    #: A bit per parameter: some member had a gradient.
    present: str = ""
    payload_sizes: tuple[int, ...] = ()
    divided: bool = False


class Record:
    """The result of one operation; its tensors are valid until the next operation's header."""

    def __init__(
        self,
        head: RecordHead,
        payloads: Sequence[bytes],
        layout: TensorLayout,
        tensors: "Held | Alone | None" = None,
    ) -> None:
        self.head = head
        self.payloads = tuple(payloads)
        self._layout = layout
        self.tensors = tensors
        #: False once a later operation has begun to write where the tensors lie; by then every
        #: member holds this record, so nobody can ask for it.
        self.is_intact = True

    @property
    def kind(self) -> OperationKind:
        return self.head.kind

    @property
    def position(self) -> int:
        return self.head.position

    @property
    def newest(self) -> tuple[GenerationNumber, ...]:
        """The newest commit that each member knew, by process rank."""
        return self.head.newest

    @property
    def weighted(self) -> tuple[bool, ...]:
        return self.head.weighted

    @property
    def present(self) -> tuple[bool, ...]:
        """Which parameters had a gradient in some logical rank."""
        return united([self.head.present], len(self._layout.parameters))

    def divide_(self, total: float) -> None:
        """Divide the reduced gradients, once: the sum of all weights of a weighted step."""
        if self.head.divided:
            return
        self.head = msgspec.structs.replace(self.head, divided=True)
        if self.tensors is not None:
            self.tensors.divide(total)

    def gradients(self, devices: Sequence[torch.device]) -> list[torch.Tensor | None]:
        """Return tensors for `p.grad` in the parameters' own forms; None where none had one."""
        if self.tensors is None:
            raise ValueError(f"an operation of kind {self.kind.value} has no gradients")
        return self.tensors.gradients(self.present, devices)

    def buffers(self, devices: Sequence[torch.device]) -> list[torch.Tensor]:
        """Return copies of logical rank 0's buffers."""
        if self.tensors is None:
            raise ValueError(f"an operation of kind {self.kind.value} has no buffers")
        return unpack_buffers(self._layout, self.tensors.buffers, devices)


class Alone:
    """The result in a group of one: nobody can be behind, so the sums become `p.grad`."""

    def __init__(self, gradients: Sequence[torch.Tensor | None], buffers: torch.Tensor) -> None:
        self._gradients = gradients
        self.buffers = buffers

    def divide(self, total: float) -> None:
        divide(self._gradients, total)

    def gradients(
        self, present: Sequence[bool], devices: Sequence[torch.device]
    ) -> list[torch.Tensor | None]:
        assert [gradient is not None for gradient in self._gradients] == list(present)
        return [
            None if gradient is None else gradient.to(device)
            for gradient, device in zip(self._gradients, devices, strict=True)
        ]


class Held:
    """The result as it lies in the flat buckets of an exchange."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        flats: Sequence[torch.Tensor],
        views: Sequence[Sequence[torch.Tensor]],
        buffers: torch.Tensor,
    ) -> None:
        self.buckets = tuple(buckets)
        self.flats = tuple(flats)
        self._views = views
        self.buffers = buffers

    def divide(self, total: float) -> None:
        torch._foreach_div_([flat for flat in self.flats if flat.numel()], total)

    def gradients(
        self, present: Sequence[bool], devices: Sequence[torch.device]
    ) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = [None] * len(present)
        targets, sources = [], []
        for bucket, views in zip(self.buckets, self._views, strict=True):
            for piece, view in zip(bucket.pieces, views, strict=True):
                if present[piece.index]:
                    fresh = piece.spec.empty(devices[piece.index])
                    found[piece.index] = fresh
                    targets.append(torch.view_as_real(fresh) if fresh.is_complex() else fresh)
                    sources.append(view)
        if targets:
            torch._foreach_copy_(targets, sources)
        return found


def buffer_bytes(layout: TensorLayout) -> int:
    """Return the size of all buffers one behind the other, each at a multiple of 16 bytes."""
    return sum(_padded(spec.nbytes) for spec in layout.buffers)


def pack_buffers(layout: TensorLayout, flat: torch.Tensor, buffers: Sequence[torch.Tensor]) -> None:
    """Copy buffers into flat bytes."""
    offset = 0
    for spec, buffer in zip(layout.buffers, buffers, strict=True):
        part = flat[offset : offset + spec.nbytes].view(spec.torch_dtype)
        part.view(spec.shape).copy_(buffer)
        offset += _padded(spec.nbytes)


def unpack_buffers(
    layout: TensorLayout, flat: torch.Tensor, devices: Sequence[torch.device]
) -> list[torch.Tensor]:
    """Copy buffers out of flat bytes."""
    found = []
    offset = 0
    for spec, device in zip(layout.buffers, devices, strict=True):
        part = flat[offset : offset + spec.nbytes].view(spec.torch_dtype)
        found.append(spec.empty(device).copy_(part.view(spec.shape)))
        offset += _padded(spec.nbytes)
    return found


def head_of(
    operation: Operation,
    *,
    newest: Sequence[GenerationNumber],
    weighted: Sequence[bool],
    present: Sequence[bool],
    payloads: Sequence[bytes],
) -> RecordHead:
    """Gather what of a result is no tensor."""
    return RecordHead(
        kind=operation.kind,
        position=operation.position,
        newest=tuple(newest),
        weighted=tuple(weighted),
        present=mask_text(present),
        payload_sizes=tuple(len(payload) for payload in payloads),
    )


def _padded(size: int) -> int:
    return -(-size // 16) * 16
