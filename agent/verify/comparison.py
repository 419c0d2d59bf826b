"""Where two recorded runs of one training first differ, and what follows from it. Pure."""

import struct
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

import msgspec

from easyscale.recording import Evaluated, Kept, MicroStep, Point, Run, Stage, result_name


class ValuePair(msgspec.Struct, frozen=True, kw_only=True):
    """The first element in which two tensors differ, with its bits: decimals may look equal."""

    index: tuple[int, ...]
    expected: str
    expected_bits: str
    got: str
    got_bits: str


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first point at which a run is another one, and how it goes on."""

    point: Point
    #: Whether what its micro-step was given is what it was given in the fixed run.
    same_batch: bool
    #: `loss of rank 12 at step 9`, in the order in which they follow.
    then: tuple[str, ...]


def compare(fixed: Run, other: Run) -> Divergence | None:
    """The first point in which `other` is not `fixed`; None where all that both did is equal."""
    points = sorted((*other.torn, *_unequal(fixed, other)))
    if not points:
        return None
    first = points[0]
    return Divergence(
        point=first, same_batch=first.stage is not Stage.BATCH, then=_then(first, fixed, other)
    )


def unequal_reports(fixed: Run, other: Run) -> tuple[str, ...]:
    """Names of reported numbers that differ, in whatever micro-step."""
    names = {
        name
        for key, step in fixed.micro_steps.items()
        if (same := other.micro_steps.get(key)) is not None
        for name in step.reports.keys() | same.reports.keys()
        if step.reports.get(name) != same.reports.get(name)
    }
    return tuple(sorted(names))


def _unequal(fixed: Run, other: Run) -> Iterator[Point]:
    """The first unequal point of each kind, in every step that both runs have come to."""
    for key in sorted(fixed.micro_steps.keys() & other.micro_steps.keys()):
        point = _unequal_micro_step(fixed.micro_steps[key], other.micro_steps[key])
        if point is not None:
            yield point
            break
    for step in sorted(fixed.reduced.keys() & other.reduced.keys()):
        name = first_unequal(fixed.reduced[step].gradients, other.reduced[step].gradients)
        if name is not None:
            yield Point(step, Stage.REDUCED, -1, name)
            break
    for key in sorted(fixed.evaluations.keys() & other.evaluations.keys()):
        point = _unequal_evaluation(fixed.evaluations[key], other.evaluations[key])
        if point is not None:
            yield point
            break
    for step in sorted(fixed.boundaries.keys() & other.boundaries.keys()):
        name = first_unequal(fixed.boundaries[step].state, other.boundaries[step].state)
        if name is not None:
            # What stands at a boundary was made in the step before it; at 0, by the script's top.
            yield Point(step - 1, Stage.STATE, -1, name)
            break


def _unequal_micro_step(one: MicroStep, other: MicroStep) -> Point | None:
    if one.batch != other.batch:
        return Point(one.step, Stage.BATCH, one.rank, "batch")
    name = first_unequal(one.gradients, other.gradients)
    return None if name is None else Point(one.step, Stage.GRADIENT, one.rank, name)


def _unequal_evaluation(one: Evaluated, other: Evaluated) -> Point | None:
    name = first_unequal(one.state, other.state)
    if name is not None:  # other results follow from it
        return Point(one.step, Stage.STATE, -1, name)
    pairs = zip_longest(one.results, other.results)
    batch = next((batch for batch, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    if batch is None:
        return None
    return Point(one.step, Stage.EVALUATION, -1, result_name(one.number, batch))


def first_unequal(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The first name, in the order of `one`, under which the two hold something else."""
    return next(
        (name for name in {**one, **other} if one.get(name) != other.get(name)),
        None,
    )


def count_unequal(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    return sum(one.get(name) != other.get(name) for name in one.keys() | other.keys())


def _then(point: Point, fixed: Run, other: Run) -> tuple[str, ...]:
    said: list[str] = []
    key = (point.step, point.rank)
    mine, theirs = fixed.micro_steps.get(key), other.micro_steps.get(key)
    if mine is not None and theirs is not None:
        unequal = [name for name in mine.reports if mine.reports[name] != theirs.reports.get(name)]
        said += [f"{name} of rank {point.rank} at step {point.step:,}" for name in unequal[:1]]
        if (count := count_unequal(mine.gradients, theirs.gradients)) > 1:
            of = f"{count:,} of {len(mine.gradients):,}"
            said.append(f"{of} gradients of rank {point.rank}")
    one, two = fixed.boundaries.get(point.step + 1), other.boundaries.get(point.step + 1)
    if one is not None and two is not None:
        count = count_unequal(one.state, two.state)
        if count:
            said.append(f"{count:,} of {len(one.state):,} tensors and values of the state")
    return tuple(said)


# --- values ---------------------------------------------------------------------------------------

#: struct's letter and the size of an element, by torch's name.
_FORMS = {
    "float32": ("f", 4),
    "float64": ("d", 8),
    "float16": ("e", 2),
    "int64": ("q", 8),
    "int32": ("i", 4),
    "int16": ("h", 2),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "bool": ("?", 1),
}
_BLOCK = 1 << 16


def first_value(expected: Kept, got: Kept, *, fixed: Path, other: Path) -> ValuePair | None:
    """The first unequal element of two kept tensors; None where their shapes do not fit."""
    if (expected.dtype, expected.shape) != (got.dtype, got.shape):
        return None
    letter, size = _FORMS.get(expected.dtype, ("", 2 if expected.dtype == "bfloat16" else 1))
    one, two = (fixed / expected.file).read_bytes(), (other / got.file).read_bytes()
    place = _first_byte(one, two)
    if place is None:
        return None
    number = place // size
    first, second = (data[number * size : (number + 1) * size] for data in (one, two))
    return ValuePair(
        index=_index(number, expected.shape),
        expected=_text(first, letter, expected.dtype),
        expected_bits=f"0x{first[::-1].hex()}",
        got=_text(second, letter, expected.dtype),
        got_bits=f"0x{second[::-1].hex()}",
    )


def _first_byte(one: bytes, two: bytes) -> int | None:
    for start in range(0, min(len(one), len(two)), _BLOCK):
        left, right = one[start : start + _BLOCK], two[start : start + _BLOCK]
        if left != right:
            return next(
                start + n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b
            )
    return None


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        number, rest = divmod(number, size)
        index.insert(0, rest)
    return tuple(index)


def _text(data: bytes, letter: str, dtype: str) -> str:
    if dtype == "bfloat16":
        return f"{struct.unpack('<f', bytes(2) + data)[0]:.4g}"
    if not letter:
        return data.hex()
    value = struct.unpack(f"<{letter}", data)[0]
    return f"{value:.8g}" if isinstance(value, float) else str(value)
