"""What a process holds of the running step: sums of gradients over complete subtrees of the tree.

A micro-step's gradients enter as a leaf; two siblings become their parent at once, in place, left
operand first. A gradient that is absent counts as +0.0 wherever another rank has one.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch

from easyscale.model import Span
from easyscale.runtime import tree

#: What torch's allocators give on a CPU; on devices more.
ALIGNMENT_BYTES = 64
#: One entry per parameter, in the order of the layout; None where autograd left no gradient.
Gradients = Sequence[torch.Tensor | None]
#: The same, as real numbers in memory of our own.
Sums = list[torch.Tensor | None]


class Partials:
    """The partial sums of one step; frozen from an arrival until the record is held."""

    def __init__(self, n: int, *, offload: bool = False) -> None:
        self._n = n
        self._offload = offload
        self._sums: dict[Span, Sums] = {}
        self._deferred: dict[Span, tuple[Sums, float]] = {}
        #: Parameters whose gradients are complex and held as pairs of real numbers.
        self._complex: frozenset[int] = frozenset()

    @property
    def ranks(self) -> frozenset[int]:
        """The logical ranks counted in what is held."""
        spans = (*self._sums, *self._deferred)
        return frozenset(rank for span in spans for rank in range(span.lo, span.hi))

    @property
    def held(self) -> tuple[Span, ...]:
        """The subtrees held, as they stand once everything deferred has been added."""
        return tree.maximal_subtrees(self.ranks, self._n)

    @property
    def presence(self) -> tuple[bool, ...]:
        """Which parameters have a gradient in some held leaf; empty while nothing is held."""
        entries = (*self._sums.values(), *(sums for sums, _ in self._deferred.values()))
        return tuple(
            any(sum_ is not None for sum_ in column) for column in zip(*entries, strict=True)
        )

    def sums(self, span: Span) -> Sums:
        """Return the sums of a subtree that is held as such, deferred leaves not counted."""
        return self._sums[span]

    def push(self, rank: int, gradients: Gradients, *, factor: float = 1.0) -> None:
        """Take over a micro-step's gradients times `factor` and add what can be added."""
        self._refuse_second(rank)
        self._add(tree.leaf(rank), self._owned(gradients), factor)

    def defer(self, rank: int, gradients: Gradients, *, factor: float = 1.0) -> None:
        """Take over a micro-step's gradients and leave them as they are until `settle`.

        The last micro-step of a step whose exchange is already under way: mostly its sums are
        never needed here, since the record arrives.
        """
        self._refuse_second(rank)
        self._deferred[tree.leaf(rank)] = (self._owned(gradients), factor)

    def deferred(self, rank: int) -> Sums | None:
        """Return the gradients deferred for a logical rank, as they were left."""
        sums, _ = self._deferred.get(tree.leaf(rank), (None, 1.0))
        return sums

    def settle(self) -> None:
        """Add what was deferred."""
        while self._deferred:
            leaf, (sums, factor) = self._deferred.popitem()
            self._add(leaf, sums, factor)

    def take(self) -> list[torch.Tensor | None]:
        """Return the sums over all logical ranks as gradients, and hold nothing any more."""
        self.settle()
        sums = [_aligned(sum_) for sum_ in self._sums.pop(Span(0, self._n))]
        return [
            torch.view_as_complex(sum_) if sum_ is not None and index in self._complex else sum_
            for index, sum_ in enumerate(sums)
        ]

    def drop(self, spans: Iterable[Span]) -> None:
        """Forget subtrees that another process counts."""
        self.settle()
        for span in spans:
            del self._sums[span]

    def clear(self) -> None:
        """Forget everything: the record of the step is held."""
        self._sums.clear()
        self._deferred.clear()

    def _refuse_second(self, rank: int) -> None:
        if any(span.lo <= rank < span.hi for span in (*self._sums, *self._deferred)):
            raise ValueError(f"logical rank {rank} is already held in {self.held}")

    def _owned(self, gradients: Gradients) -> Sums:
        sums = _owned(gradients)
        complex_ = [
            index
            for index, (gradient, own) in enumerate(zip(gradients, sums, strict=True))
            if gradient is not own and gradient is not None and gradient.is_complex()
        ]
        if complex_:
            self._complex |= frozenset(complex_)
        return sums

    def _add(self, span: Span, sums: Sums, factor: float) -> None:
        scale(sums, factor)
        for other, parent in tree.ascent(span, self._n):
            there = self._sums.pop(other, None)
            if there is None:
                break
            sums = _merged(sums, there) if span < other else _merged(there, sums)
            span = parent
        self._sums[span] = _parked(sums) if self._offload else sums


def scale(sums: Gradients, factor: float) -> None:
    """Multiply the gradients that are there by `factor`, in place."""
    present = [sum_ for sum_ in sums if sum_ is not None]
    if factor == 1.0 or not present:
        return
    if any(sum_.device.type != "cpu" for sum_ in present):
        torch._foreach_mul_(present, factor)
    elif all(sum_.dtype is torch.float32 for sum_ in present):
        # The same product in a seventh of the time.
        torch._foreach_mul_(present, _as_tensor(factor))
    else:
        # Not by foreach: on a CPU it would round the factor to a smaller type first.
        for sum_ in present:
            sum_.mul_(factor)


@lru_cache(maxsize=64)
def _as_tensor(factor: float) -> torch.Tensor:
    return torch.tensor(factor, dtype=torch.float32)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real ones: torch multiplies a complex addend by 1+0j."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def divide(gradients: Sequence[torch.Tensor | None], total: float) -> None:
    """Divide in place number by number, as the flat sums of an exchange are divided.

    Torch's division of complex numbers rounds differently from that of their parts.
    """
    present = [real(gradient) for gradient in gradients if gradient is not None]
    if present:
        torch._foreach_div_(present, total)


def _owned(gradients: Gradients) -> Sums:
    """View gradients as real sums of which no two entries share a number."""
    sums: Sums = []
    seen: set[int] = set()
    for gradient in gradients:
        if gradient is None:
            sums.append(None)
            continue
        # Every micro-step of every parameter comes through here: most are plain, and stay.
        if gradient.requires_grad or gradient.is_complex():
            own = real(gradient.detach().resolve_conj())
        else:
            own = gradient
        place = own.data_ptr()
        # autograd clones whatever is expanded or shared; a gradient set by hand may be either.
        if (place and place in seen) or _expanded(own):
            own = own.contiguous() if _expanded(own) else own.clone()
        seen.add(place)
        sums.append(own)
    return sums


def _aligned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Move a view into another tensor's memory to where torch allocates.

    In a larger group `p.grad` is a tensor of its own, and alignment reaches the bits of some
    kernels, such as the norm that clipping takes.
    """
    if tensor is None or tensor.data_ptr() % ALIGNMENT_BYTES == 0:
        return tensor
    return tensor.clone()


def _expanded(tensor: torch.Tensor) -> bool:
    return not tensor.is_contiguous() and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _merged(left: Sums, right: Sums) -> Sums:
    """Return left + right in memory of theirs, on the device of the one that was computed last."""
    if all(
        one is not None and two is not None and one.device == two.device
        for one, two in zip(left, right, strict=True)
    ):
        torch._foreach_add_(left, right)  # type: ignore[arg-type]
        return left
    return [_added(one, two) for one, two in zip(left, right, strict=True)]


def _added(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        alone = left if right is None else right
        # Adding zeros turns -0.0 into +0.0: the bits must not tell how many ranks had a gradient.
        return None if alone is None else alone.add_(0.0)
    if left.device == right.device:
        return left.add_(right)
    # One of them is parked in host memory; it comes back a parameter at a time, and the sum goes
    # where the other one lies: of however many ranks, the device holds one set and a parameter.
    if left.device.type == "cpu":
        return torch.add(left.to(right.device), right, out=right)
    return left.add_(right.to(left.device))


def _parked(sums: Sums) -> Sums:
    """Move sums to pinned host memory; on a CPU they are there already."""
    return [
        sum_
        if sum_ is None or sum_.device.type == "cpu"
        else torch.empty_like(sum_, device="cpu", pin_memory=True).copy_(sum_)
        for sum_ in sums
    ]
