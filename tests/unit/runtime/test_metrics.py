"""Means of reports: one value in every layout, summed in the tree's order."""

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from easyscale.errors import ScriptError
from easyscale.runtime.metrics import Means, Reports, checked, tree_sum

numbers = st.floats(-1e30, 1e30, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_the_mean_does_not_depend_on_who_reported(values: list[float], chance: Random) -> None:
    n = len(values)
    parts = [Reports() for _ in range(3)]
    shares: list[list[int]] = [[], [], []]
    for rank, value in enumerate(values):
        holder = chance.randrange(3)
        parts[holder].add(rank, {"loss": value})
        shares[holder].append(rank)
    together = Reports()
    for rank, value in enumerate(values):
        together.add(rank, {"loss": value})
    said = [one for part, share in zip(parts, shares, strict=True) for one in part.settle(share)]
    here = Means(together.settle(range(n)), n).values["loss"]
    assert Means(said, n).values["loss"] == here


def test_the_sum_is_bracketed_as_the_tree() -> None:
    a, b, c = 1e16, 1.0, 1.0
    assert tree_sum([a, b, c]) == (a + b) + c
    assert tree_sum([b, c, a]) == (b + c) + a
    assert tree_sum([b, a, c, -a]) == (b + a) + (c + -a)


def test_ranks_that_report_nothing_do_not_count() -> None:
    reports = Reports()
    reports.add(1, {"accuracy": 0.5})
    reports.add(3, {"accuracy": 1.0})
    means = Means(reports.settle(range(4)), 4)
    assert means.values == {"accuracy": 0.75}


def test_weights_count_as_many_times() -> None:
    reports = Reports()
    for rank, weight in enumerate((1.0, 3.0)):
        reports.add(rank, {"loss": float(rank)})
        reports.weigh(rank, weight)
    means = Means(reports.settle(range(2)), 2)
    assert means.weighted
    assert means.total_weight == 4.0
    assert means.values == {"loss": 0.75}


@pytest.mark.parametrize("value", [math.inf, -0.0, 5e-324, 0.1])
def test_numbers_travel_without_loss(value: float) -> None:
    reports = Reports()
    reports.add(0, {"x": value})
    assert Means(reports.settle([0]), 1).values["x"] == value


@pytest.mark.parametrize("value", [torch.ones(2), "3", None, [1.0]])
def test_a_report_that_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(ScriptError, match=r"step.report\(speed=...\)"):
        checked({"speed": value})


def test_dropped_ranks_start_over() -> None:
    reports = Reports()
    reports.add(0, {"x": 1.0})
    reports.weigh(0, 2.0)
    reports.drop([0])
    (said,) = reports.settle([0])
    assert (said.weight, said.values) == (None, {})
