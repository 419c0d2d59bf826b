"""Starts a step's exchange while its last micro-step still runs backward.

A hook tells when a gradient has been accumulated; when all of a bucket are, the bucket is given
away. Whatever proves that wrong later (a second backward, a gradient that is not what was read)
makes the operation dirty, and all members exchange again from the untouched partial sums.
"""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import torch

from easyscale.model import Span
from easyscale.runtime import tree
from easyscale.runtime.buckets import Bucket
from easyscale.runtime.partials import Partials, Sums, real, scale
from easyscale.runtime.state import has_equal_bits

_Seen = tuple[int, int]


class Overlap:
    """Watches one micro-step; entered around its forward and backward."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        parameters: Sequence[torch.nn.Parameter],
        *,
        rank: int | None,
        factor: float,
    ) -> None:
        self._buckets = buckets
        self._parameters = parameters
        self.rank = rank
        self._factor = factor
        self._changed = threading.Condition()
        self._leaf: Sums = [None] * len(parameters)
        #: Place and version of each gradient when it was taken for final.
        self._seen: dict[int, _Seen] = {}
        #: What was read of gradients before the micro-step had ended, by parameter.
        self._read: dict[int, torch.Tensor] = {}
        self._is_reading = False
        self._bucket_of = {
            piece.index: number for number, bucket in enumerate(buckets) for piece in bucket.pieces
        }
        # A parameter that is not trained gets no gradient, and none is waited for.
        self._left = [
            sum(parameters[piece.index].requires_grad for piece in bucket.pieces)
            if rank is not None
            else 0
            for bucket in buckets
        ]
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._ended = rank is None
        self._given_up = False
        self.is_dirty = False
        #: The micro-step had exactly one backward, or there was none here to have two.
        self.had_one_backward = True

    @property
    def trained(self) -> tuple[bool, ...]:
        """Which parameters may get a gradient."""
        return tuple(parameter.requires_grad for parameter in self._parameters)

    def __enter__(self) -> Self:
        if self.rank is not None:
            for index, parameter in enumerate(self._parameters):
                if parameter.requires_grad:
                    handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        self._hook(index)
                    )
                    self._handles.append(handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            # Runs in a thread of autograd and must never raise: it would surface in the script.
            with self._changed:
                if index in self._seen:
                    self.had_one_backward = False
                    self.is_dirty = True
                    return
                gradient = parameter.grad
                if gradient is None or gradient.is_sparse:
                    self.is_dirty = True
                    return
                self._leaf[index] = real(gradient.detach())
                self._seen[index] = _identity(gradient)
                number = self._bucket_of[index]
                self._left[number] -= 1
                if not self._left[number]:
                    self._changed.notify_all()

        return accumulated

    def finish(self, gradients: Sums) -> None:
        """Compare what was given away with what the micro-step left, and give the rest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reading)
            for index, gradient in enumerate(gradients):
                if index in self._seen:
                    if gradient is None or _identity(gradient) != self._seen[index]:
                        self.is_dirty = True
                elif gradient is not None and not self._left[self._bucket_of[index]]:
                    # Given away as absent.
                    self.is_dirty = True
                else:
                    self._leaf[index] = gradient
            self._ended = True
            self._changed.notify_all()
        # While the exchange goes on: `p.grad.data` and `p.grad.numpy()` raise no version.
        if not self.is_dirty:
            self.is_dirty = not all(
                has_equal_bits(read, gradients[index]) for index, read in self._read.items()
            )
        self._read.clear()

    def give_up(self) -> None:
        """Free the exchange thread: the operation is abandoned."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def wait_for(self, number: int) -> bool:
        """Wait until a bucket may be read; False when the operation was given up meanwhile.

        What is ready last hides nothing any more: it is read when the micro-step has ended, and
        no copy of it is needed.
        """

        def may_be_read() -> bool:
            return self._ended or (not self._left[number] and any(self._left))

        with self._changed:
            self._changed.wait_for(lambda: self._given_up or may_be_read())
            return not self._given_up

    def fill(
        self, number: int, partials: Partials, span: Span, views: Sequence[torch.Tensor], n: int
    ) -> None:
        """Write a subtree's sums, the last leaf added out of place."""
        bucket = self._buckets[number]
        if self.rank is None or not span.lo <= self.rank < span.hi:
            bucket.fill(views, bucket.of(partials.sums(span)))
            return
        leaf = self._leaf_of(bucket)
        bucket.fill(views, leaf)
        present = [view for view, value in zip(views, leaf, strict=True) if value is not None]
        scale(present, self._factor)
        node = tree.leaf(self.rank)
        while node != span:
            parent, other = tree.parent(node, n), tree.sibling(node, n)
            assert parent is not None
            assert other is not None
            _add(views, bucket.of(partials.sums(other)), other_is_left=other.lo < node.lo)
            node = parent

    def _leaf_of(self, bucket: Bucket) -> Sums:
        """The last micro-step's gradients; a copy is kept of what may still be changed by hand."""
        with self._changed:
            leaf = bucket.of(self._leaf)
            if self._ended:
                return leaf
            self._is_reading = True
        try:
            # Read once: the script may be writing there, and what travels is what is compared.
            copies = [None if value is None else value.clone() for value in leaf]
            for piece, copy in zip(bucket.pieces, copies, strict=True):
                if copy is not None:
                    self._read[piece.index] = copy
            return copies
        finally:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()


def _add(views: Sequence[torch.Tensor], others: Sums, *, other_is_left: bool) -> None:
    for view, other in zip(views, others, strict=True):
        if other is None:
            view.add_(0.0)
        elif other_is_left:
            torch.add(other.to(view.device), view, out=view)
        else:
            view.add_(other.to(view.device))


def _identity(gradient: torch.Tensor) -> _Seen:
    # Views share the counter, and every change in place that autograd sees raises it.
    return gradient.data_ptr(), gradient._version  # noqa: SLF001
