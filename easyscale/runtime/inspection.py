"""Reads snapshots for people: whether the state in one is what it claims, and how two differ.

A program of its own, so that the command line needs no torch: `python -m easyscale.runtime.
inspection` reads one JSON request from standard input and answers with one JSON line per snapshot.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from easyscale.errors import EasyScaleError, FormatError
from easyscale.inspection import (
    Difference,
    Differences,
    Inspected,
    Refusal,
    Request,
    ValueDifference,
)
from easyscale.model import decode, encode
from easyscale.runtime.snapshots import read_snapshot
from easyscale.runtime.state import State, entries


def inspect(path: Path) -> Inspected:
    """Read a snapshot with every check; what is wrong with it becomes `fault`."""
    began_s = time.monotonic()
    try:
        state = read_snapshot(path.parent, path.name)
    except EasyScaleError as error:
        seconds = time.monotonic() - began_s
        return Inspected(name=path.name, seconds=seconds, fault=error.message)
    found = [value for _, value in entries(state.objects) if isinstance(value, torch.Tensor)]
    return Inspected(
        name=path.name, tensors=len(found), seconds=time.monotonic() - began_s, digest=state.digest
    )


def compare(first: Path, second: Path) -> Differences:
    """Compare what the digest covers, bit by bit; raises SnapshotDamaged for an unsound one."""
    before, after = (read_snapshot(path.parent, path.name) for path in (first, second))
    return differences(before, after)


def differences(before: State, after: State) -> Differences:
    """The tensors and plain values in which two states differ, the largest difference first."""
    one, other = dict(entries(before.objects)), dict(entries(after.objects))
    tensors: list[Difference] = []
    values: list[ValueDifference] = []
    count = 0
    for name in sorted(one.keys() | other.keys()):
        ours, theirs = one.get(name, _ABSENT), other.get(name, _ABSENT)
        if isinstance(ours, torch.Tensor) or isinstance(theirs, torch.Tensor):
            count += 1
            found = _compare_tensors(name, ours, theirs)
            tensors += [found] if found is not None else []
        elif _text(ours) != _text(theirs):
            values.append(ValueDifference(name=name, before=_text(ours), after=_text(theirs)))
    tensors.sort(key=_largest_first)
    return Differences(
        count=count,
        tensors=tuple(tensors),
        values=tuple(values),
        digests=(before.digest, after.digest),
    )


class _Absent:
    """What the other snapshot has and this one has not."""


_ABSENT = _Absent()


def _compare_tensors(name: str, ours: object, theirs: object) -> Difference | None:
    if not isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor)
        return Difference(name=name, shape=_shape(ours), only_in=0)
    if not isinstance(ours, torch.Tensor):
        return Difference(name=name, shape=_shape(theirs), only_in=1)
    if ours.dtype != theirs.dtype:
        shapes = (f"{_shape(tensor)} {_dtype(tensor)}" for tensor in (ours, theirs))
        return Difference(name=name, shape=next(shapes), other_shape=next(shapes))
    if ours.shape != theirs.shape:
        return Difference(name=name, shape=_shape(ours), other_shape=_shape(theirs))
    return _compare_bits(name, ours, theirs)


def _compare_bits(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Difference | None:
    """Elements differ when their bytes do: -0.0 is not 0.0, and a nan equals itself."""
    one, other = ours.contiguous().reshape(-1), theirs.contiguous().reshape(-1)
    if one.numel() == 0:
        return None
    unequal = (_bytes(one) != _bytes(other)).any(dim=1)
    differing = int(unequal.sum())
    if differing == 0:
        return None
    first = int(unequal.to(torch.uint8).argmax())
    place = ",".join(
        str(int(index)) for index in torch.unravel_index(torch.tensor(first), ours.shape)
    )
    return Difference(
        name=name,
        shape=_shape(ours),
        differing=differing,
        elements=one.numel(),
        largest=_largest(one[unequal], other[unequal]),
        first=f"[{place}]" if place else "",
        before=_number(one[first]),
        after=_number(other[first]),
    )


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


def _largest(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """The largest distance of two elements; None where one of them is no number."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    distance = float((one.to(wide) - other.to(wide)).abs().max())
    return distance if math.isfinite(distance) else None


def _number(element: torch.Tensor) -> float | None:
    if element.is_complex():
        return None
    value = float(element)
    return value if math.isfinite(value) else None


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _text(value: Any) -> str:  # noqa: ANN401 - whatever an optimizer keeps
    if value is _ABSENT:
        return "absent"
    return "{}" if isinstance(value, Mapping) else repr(value)


def _largest_first(difference: Difference) -> tuple[bool, float, str]:
    is_valued = not difference.other_shape and difference.only_in is None
    largest = math.inf if difference.largest is None else difference.largest
    return (not is_valued, -largest, difference.name)


def answer(request: Request) -> Iterator[Inspected | Differences | Refusal]:
    """What is said to one request, in the order of its paths."""
    paths = [Path(path) for path in request.paths]
    try:
        if request.compare:
            yield compare(*paths)
        else:
            yield from map(inspect, paths)
    except EasyScaleError as error:
        yield Refusal(message=error.message, hint=error.hint)


def main() -> None:
    """Answer the one request on standard input."""
    try:
        request = decode(sys.stdin.buffer.read(), Request, source="the request")
    except FormatError as error:
        sys.exit(error.message)
    for line in answer(request):
        sys.stdout.write(f"{type(line).__name__} {encode(line)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
