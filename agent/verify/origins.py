"""Which operator a difference between two runs comes from: followed back from where it is seen.

Operators that differ and lead nowhere, such as what fills a weight that is written over, are not
it (EasyScale, SC'23, section 3, compared operators bit by bit). Pure.
"""

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from easyscale.agent.verify import diagnosis
from easyscale.recording import Operator, Point, Run, Stage


class Origin(msgspec.Struct, frozen=True):
    """The operator at which a difference comes in."""

    operator: Operator
    #: It was given equal inputs; otherwise it only shows what no operator made.
    is_maker: bool = True


def origin(
    one: Sequence[Operator], other: Sequence[Operator], *, target: str | None
) -> Origin | None:
    """Follow a value of the first run, by its digest, back to the first operator that made it so.

    Without a target, or with one that no operator gave, it is what the last unequal one gave.
    """
    unequal = tuple(diagnosis.unequal_operators(one, other))
    if not unequal:
        return None
    needed = {target}
    if not any(target in _differing(mine.outputs, theirs.outputs) for mine, theirs in unequal):
        needed = set(_differing(unequal[-1][0].outputs, unequal[-1][1].outputs))
    maker: Operator | None = None
    shows = unequal[-1][0]
    for mine, theirs in reversed(unequal):
        made = _differing(mine.outputs, theirs.outputs)
        if not made & needed:
            continue
        given = _differing(mine.inputs, theirs.inputs)
        needed = (needed - made) | given
        if given:
            shows = mine
        else:
            maker = mine
    return Origin(shows, is_maker=False) if maker is None else Origin(maker)


def _differing(one: Sequence[str], other: Sequence[str]) -> set[str | None]:
    """What the first run had in places in which the other one had something else."""
    return {a for a, b in zip(one, other, strict=False) if a != b}


def leading_to(point: Point, operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """What ran before the point; for one of a step's end or of the script's top, all of it."""
    if point.step < 0:
        return tuple(takewhile(_is_outside, operators))
    if point.rank < 0:
        return tuple(operators)
    inside = [number for number, one in enumerate(operators) if not _is_outside(one)]
    if not inside:
        return tuple(operators)
    return tuple(operators[: inside[0] if point.stage is Stage.BATCH else inside[-1] + 1])


def _is_outside(operator: Operator) -> bool:
    return operator.rank < 0


def digest_at(point: Point, run: Run) -> str | None:
    """What the run has there, where that is a value by itself."""
    match point.stage:
        case Stage.GRADIENT:
            step = run.micro_steps.get((point.step, point.rank))
            return None if step is None else step.gradients.get(point.name)
        case Stage.REDUCED:
            reduced = run.reduced.get(point.step)
            return None if reduced is None else reduced.gradients.get(point.name)
        case Stage.STATE:
            boundary = run.boundaries.get(point.step + 1)
            return None if boundary is None else boundary.state.get(point.name)
        case _:
            return None
