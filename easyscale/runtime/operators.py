"""Watches every operator of a stretch of code: digests of what goes in and of what comes out.

Two such logs of the same stretch name the first operator that gives other bits for equal inputs
(EasyScale, SC'23, section 3, found such operators the same way).
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from easyscale.recording import Entry, Operator
from easyscale.runtime.outside import is_own, tensor_bytes, value_digest

#: Operators that give no values of their own: their outputs are views, sizes or garbage.
_WITHOUT_VALUES = frozenset(
    {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"}
)


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, each call of an operator becomes an entry."""

    def __init__(self, folder: Path, write: Callable[[Entry], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder = folder
        self._write_entry = write
        self._place = ""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        inputs = _digest_of((args, kwargs))
        result = func(*args, **kwargs)
        name = str(func)
        if name.rpartition(".")[0] not in _WITHOUT_VALUES:
            # In place: what came out is what now stands in the argument.
            entry = Operator(
                name=name, inputs=inputs, outputs=_digest_of(result), place=self._own_place()
            )
            self._write_entry(entry)
        return result

    def _own_place(self) -> str:
        """The innermost line of the script, which in a backward is the line that called it."""
        frame = sys._getframe(2)  # noqa: SLF001 - `inspect.stack` reads files
        while frame is not None:
            if is_own(frame.f_code.co_filename, self._folder):
                self._place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                break
            frame = frame.f_back  # type: ignore[assignment]
        return self._place


def _digest_of(tree: Any) -> str:  # noqa: ANN401 - whatever operators take and give
    return value_digest(" ".join(_texts(tree)).encode())


def _texts(tree: Any) -> Iterator[str]:  # noqa: ANN401
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is torch.strided and leaf.device.type != "meta":
                yield f"{leaf.dtype} {tuple(leaf.shape)} {value_digest(tensor_bytes(leaf))}"
        elif isinstance(leaf, (bool, int, float, str)):
            yield repr(leaf)
