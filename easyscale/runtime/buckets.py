"""Which tensors a step reduces, and how they lie one behind the other in flat buckets.

Sums are elementwise, so no bucket border can reach a bit. The last parameters come first, since
backward reaches their gradients first.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from easyscale.errors import ScriptError
from easyscale.runtime.partials import real

#: Elements per bucket: benchmarks/exchange.py compares 1M, 4M and 8M.
BUCKET_ELEMENTS = 4 << 20


class TensorSpec(msgspec.Struct, frozen=True):
    """What all processes must agree on about one tensor; not its device."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "TensorSpec":
        """Describe a tensor; what overlaps or has gaps counts as contiguous, as autograd does."""
        dense = _is_dense(tensor)
        stride = tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), stride)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.torch_dtype.itemsize

    def empty(self, device: torch.device) -> torch.Tensor:
        """Make a tensor of this form."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.torch_dtype, device=device)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor's elements fill its memory without gap or overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.is_contiguous()
        expected *= size
    return True


@dataclass(frozen=True)
class TensorLayout:
    """The parameters that are trained and the buffers of the registered modules, in fixed order."""

    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]

    @classmethod
    def of(
        cls,
        parameters: Iterable[tuple[str, torch.Tensor]],
        buffers: Iterable[tuple[str, torch.Tensor]],
    ) -> "TensorLayout":
        """Describe named tensors in the order in which they are given."""
        return cls(
            tuple(TensorSpec.of(name, tensor) for name, tensor in parameters),
            tuple(TensorSpec.of(name, tensor) for name, tensor in buffers),
        )

    @classmethod
    def read(cls, description: bytes) -> "TensorLayout":
        """Read a description back."""
        parameters, buffers = msgspec.json.decode(
            description, type=tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
        )
        return cls(parameters, buffers)

    @cached_property
    def description(self) -> bytes:
        """The whole layout as JSON, sent when digests differ."""
        return msgspec.json.encode((self.parameters, self.buffers))

    @cached_property
    def digest(self) -> str:
        return hashlib.blake2b(self.description, digest_size=16).hexdigest()

    def first_difference(self, other: bytes) -> str:
        """Name the first tensor that another process describes differently."""
        theirs = self.read(other)
        for kind, own, their in (
            ("parameter", self.parameters, theirs.parameters),
            ("buffer", self.buffers, theirs.buffers),
        ):
            for index in range(max(len(own), len(their))):
                mine = own[index] if index < len(own) else None
                other_one = their[index] if index < len(their) else None
                if mine != other_one:
                    return f"{kind} {index}: {_words(mine)} here, {_words(other_one)} there"
        return "no tensor differs"


def _words(spec: TensorSpec | None) -> str:
    if spec is None:
        return "none"
    return f"{spec.name!r} {spec.dtype}{list(spec.shape)} with strides {list(spec.stride)}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one parameter lies in its bucket."""

    index: int
    offset: int
    spec: TensorSpec

    @property
    def width(self) -> int:
        """How many real numbers an element is."""
        return 2 if self.spec.torch_dtype.is_complex else 1

    @property
    def numel(self) -> int:
        return self.width * torch.Size(self.spec.shape).numel()

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """View the parameter's part of a flat bucket in the parameter's form, as real numbers."""
        shape, stride = self.spec.shape, self.spec.stride
        if self.width == 2:  # noqa: PLR2004  a real and an imaginary part
            shape, stride = (*shape, 2), (*(2 * step for step in stride), 1)
        part = flat[self.offset : self.offset + self.numel]
        return part.as_strided(shape, stride) if self.numel else part.view(shape)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters of one real type that are reduced together."""

    dtype: torch.dtype
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        last = self.pieces[-1]
        return last.offset + last.numel

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [piece.view(flat) for piece in self.pieces]

    def of(self, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Pick this bucket's values from those of all parameters."""
        return [values[piece.index] for piece in self.pieces]

    def fill(self, views: Sequence[torch.Tensor], values: Sequence[torch.Tensor | None]) -> None:
        """Copy one value per piece; an absent one counts as zeros."""
        present = []
        for piece, view, value in zip(self.pieces, views, values, strict=True):
            if value is None:
                view.zero_()
            elif value.dtype != self.dtype:
                raise ScriptError(
                    f"the gradient of {piece.spec.name!r} is {value.dtype}, the parameter "
                    f"{piece.spec.dtype}: a sum of both would depend on the layout"
                )
            else:
                present.append((view, value))
        if present:
            targets, sources = zip(*present, strict=True)
            torch._foreach_copy_(targets, sources)


def plan_buckets(layout: TensorLayout, elements: int = BUCKET_ELEMENTS) -> tuple[Bucket, ...]:
    """Fill buckets of at least `elements` numbers, the last parameters first."""
    done: list[Bucket] = []
    filling: dict[torch.dtype, list[Piece]] = {}
    for index, spec in reversed(list(enumerate(layout.parameters))):
        dtype = real(torch.empty(0, dtype=spec.torch_dtype, device="meta")).dtype
        pieces = filling.setdefault(dtype, [])
        offset = pieces[-1].offset + pieces[-1].numel if pieces else 0
        pieces.append(Piece(index, offset, spec))
        if offset + pieces[-1].numel >= elements:
            done.append(Bucket(dtype, tuple(filling.pop(dtype))))
    done += [Bucket(dtype, tuple(pieces)) for dtype, pieces in filling.items()]
    return tuple(done)
