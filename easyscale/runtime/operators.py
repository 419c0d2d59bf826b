"""Watches every operator of a stretch of code: digests of what goes in and of what comes out.

Two such logs of the same stretch name the first operator that gives other bits for equal inputs
(EasyScale, SC'23, section 3, found such operators the same way).
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from easyscale.recording import Entry, Operator
from easyscale.runtime.fingerprint import fingerprint
from easyscale.runtime.outside import is_own

#: Operators that give no values of their own: their outputs are garbage.
_WITHOUT_VALUES = frozenset(
    {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"}
)
#: What they write to is no input: nobody knows what stood there before, nor does it matter.
_OVERWRITING = frozenset(
    f"aten.{name}"
    for name in (
        "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_",
        "normal_", "random_", "uniform_", "zero_", "_foreach_copy_", "_foreach_zero_",
    )
)  # fmt: skip


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered and on, each call of an operator becomes an entry."""

    def __init__(self, folder: Path, write: Callable[[Entry], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_on = True
        #: Whose micro-step runs; -1 outside of them.
        self.rank = -1
        self._folder = folder
        self._write_entry = write
        self._place = ""
        #: A loader worker that is forked while it is on inherits it.
        self._pid = os.getpid()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        name = str(func)
        kind = name.rpartition(".")[0]
        if not self.is_on or kind in _WITHOUT_VALUES or os.getpid() != self._pid:
            return func(*args, **kwargs)
        call = _Call(func._schema.arguments, args, kwargs)  # noqa: SLF001 - torch's only way
        inputs = _digests(call.read(overwrites=kind in _OVERWRITING))
        result = func(*args, **kwargs)
        entry = Operator(
            name=name,
            inputs=inputs,
            # Some that work in place return nothing.
            outputs=_digests((result, call.written)),
            place=self._own_place(),
            rank=self.rank,
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


class _Call:
    """The arguments of one call, by what its schema says that it does to them."""

    def __init__(
        self, schema: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        by_name = {argument.name: argument for argument in schema}
        given = [*zip(schema, args, strict=False)]
        given += [(by_name[name], value) for name, value in kwargs.items() if name in by_name]
        self._given = given
        self.written = [value for argument, value in given if _is_written(argument)]

    def read(self, *, overwrites: bool) -> list[Any]:
        """What the result may depend on."""
        return [
            _forms(value) if _is_written(argument) and (overwrites or argument.is_out) else value
            for argument, value in self._given
        ]


def _is_written(argument: Any) -> bool:  # noqa: ANN401 - torch gives it no type
    return argument.alias_info is not None and argument.alias_info.is_write


def _forms(tree: Any) -> list[str]:  # noqa: ANN401
    return [
        f"{leaf.dtype} {tuple(leaf.shape)}"
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
    ]


def _digests(tree: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever operators take and give
    """Of each value by itself, so that it can be followed from one operator to the next."""
    return tuple(fingerprint(leaf) for leaf in tree_leaves(tree) if _counts(leaf))


def _counts(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided and leaf.device.type != "meta"
    return isinstance(leaf, (bool, int, float, str))
