"""Which tensors have been written since a moment, as torch's version counters tell.

Two times at which nothing that is registered may be written: between `job.register` and the first
step of a start, which a process that joins then runs over a state that has it; and in a micro-step,
of which each process runs only some.
"""

from collections.abc import Iterable, Mapping
from typing import Any

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


class Marks:
    """Says cheaply that no entry of a state has been written since; "perhaps" where it is unsure.

    By the place and version of each tensor and by each plain value. The tensors are kept, so that
    no other one can take the place of one that was replaced.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[str, Any]]) -> None:
        self._entries = [_marked(path, value) for path, value in entries]

    def may_differ(self, entries: Iterable[tuple[str, Any]]) -> bool:
        return self._entries != [_marked(path, value) for path, value in entries]


class _Mark:
    """A tensor as it stood at one moment."""

    __slots__ = ("_place", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._place = None
        if not tensor.is_inference() and tensor.layout is torch.strided:
            self._place = (tensor.data_ptr(), tensor._version)  # noqa: SLF001 - as `Versions`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mark) and self._place is not None and self._place == other._place

    __hash__ = None  # type: ignore[assignment]  # two marks of a tensor that was written differ


def _marked(path: str, value: Any) -> tuple[str, Any]:  # noqa: ANN401 - whatever a state holds
    return path, _Mark(value) if isinstance(value, torch.Tensor) else (type(value), repr(value))
