"""Reports of logical ranks, summed in the tree's order in float64: one value in every layout."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import torch

from easyscale.errors import ScriptError
from easyscale.model import Span
from easyscale.runtime import tree

#: What `step.report` takes.
Scalar = torch.Tensor | float | int


class RankReport(msgspec.Struct, array_like=True):
    """What one logical rank said in one step; numbers as hex text, which loses nothing."""

    rank: int
    weight: str | None
    values: dict[str, str]


class Reports:
    """The reports of the ranks that this process holds."""

    def __init__(self) -> None:
        self._values: dict[int, dict[str, Scalar]] = {}
        self._weights: dict[int, float] = {}

    def add(self, rank: int, values: Mapping[str, Scalar]) -> None:
        """Keep what a micro-step reports; the last word on a name counts."""
        self._values.setdefault(rank, {}).update(values)

    def weigh(self, rank: int, weight: float) -> None:
        self._weights[rank] = weight

    def weight(self, rank: int) -> float | None:
        return self._weights.get(rank)

    def drop(self, ranks: Iterable[int]) -> None:
        """Forget ranks that another process counts, or that start over."""
        for rank in ranks:
            self._values.pop(rank, None)
            self._weights.pop(rank, None)

    def settle(self, ranks: Iterable[int]) -> tuple[RankReport, ...]:
        """Return everything said by `ranks`; waits for their devices."""
        return tuple(
            RankReport(
                rank,
                self._weights[rank].hex() if rank in self._weights else None,
                {name: float(x).hex() for name, x in self._values.get(rank, {}).items()},
            )
            for rank in sorted(ranks)
        )


class Means:
    """The means over all logical ranks of one step."""

    def __init__(self, reports: Sequence[RankReport], n: int) -> None:
        self._n = n
        weights: list[float | None] = [None] * n
        values: dict[str, list[float | None]] = {}
        for report in reports:
            weight = None if report.weight is None else float.fromhex(report.weight)
            weights[report.rank] = weight
            for name, text in report.values.items():
                column = values.setdefault(name, [None] * n)
                column[report.rank] = float.fromhex(text)
        self.weighted = any(weight is not None for weight in weights)
        if self.weighted:
            _refuse_unsaid(weights)
        self.total_weight = tree_sum(weights) or 0.0
        self.values = {name: self._mean(values[name], weights) for name in sorted(values)}

    def _mean(self, column: list[float | None], weights: list[float | None]) -> float:
        """The mean over the ranks that reported, since a rank may have nothing to say."""
        if not self.weighted:
            count = sum(value is not None for value in column)
            return (tree_sum(column) or 0.0) / count
        shares = [
            None if value is None or weight is None else value * weight
            for value, weight in zip(column, weights, strict=True)
        ]
        present = [
            None if value is None else weight for value, weight in zip(column, weights, strict=True)
        ]
        total = tree_sum(present) or 0.0
        return (tree_sum(shares) or 0.0) / total if total else math.nan


def _refuse_unsaid(weights: Sequence[float | None]) -> None:
    """A sum of gradients that are weighted and of ones that are not has no meaning."""
    unsaid = [rank for rank, weight in enumerate(weights) if weight is None]
    if unsaid:
        said = next(rank for rank, weight in enumerate(weights) if weight is not None)
        raise ScriptError(
            f"step.weight was called in the micro-step of logical rank {said} and not in that of "
            f"logical rank {unsaid[0]}: a step is weighted in all of its micro-steps or in none",
            hint="step.weight(n) in every micro-step; 0 for one that does not count",
        )


def tree_sum(values: Sequence[float | None]) -> float | None:
    """Sum in the tree's order; what is absent is left out."""
    return _subtree_sum(values, Span(0, len(values)))


def _subtree_sum(values: Sequence[float | None], span: Span) -> float | None:
    parts = tree.children(span)
    if parts is None:
        return values[span.lo]
    left, right = (_subtree_sum(values, part) for part in parts)
    if left is None or right is None:
        return left if right is None else right
    return left + right


def checked(values: Mapping[str, object]) -> None:
    """Refuse a report that is not a number."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                shape = tuple(value.shape)
                raise ScriptError(
                    f"step.report({name}=...) got a tensor of shape {shape}; it takes one number",
                    hint=f"step.report({name}=value.mean())",
                )
        elif not isinstance(value, (int, float)):
            kind = type(value).__name__
            raise ScriptError(f"step.report({name}=...) got a {kind}; it takes one number")
