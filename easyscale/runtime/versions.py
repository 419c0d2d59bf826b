"""Which tensors have been written since a moment, as torch's version counters tell.

Two times at which nothing that is registered may be written: between `job.register` and the first
step of a start, which a process that joins then runs over a state that has it; and in a micro-step,
of which each process runs only some.
"""

from collections.abc import Mapping

import torch


class Versions:
    """The versions of named tensors at one moment."""

    __slots__ = ("_tensors", "_versions")

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = {
            name: tensor for name, tensor in tensors.items() if not tensor.is_inference()
        }
        self._versions = self._now()

    def first_written(self) -> str | None:
        """The name of the first tensor that was written since; None where all stand still."""
        now = self._now()
        if now == self._versions:
            return None
        changed = zip(self._tensors, self._versions, now, strict=True)
        return next(name for name, before, after in changed if before != after)

    def _now(self) -> list[int]:
        return [tensor._version for tensor in self._tensors.values()]  # noqa: SLF001 - no other way
