"""Two states are compared bit by bit, and what differs is told with where and by how much."""

import math

import pytest
import torch

from easyscale.errors import FormatError
from easyscale.inspection import Inspected, Refusal, Request, read_answer
from easyscale.model import encode
from easyscale.runtime.inspection import answer, differences
from easyscale.runtime.state import Place, Plain, State


def state(**objects: object) -> State:
    fixed: Plain = {}
    return State(
        place=Place(), fixed=fixed, objects=objects, trainable={}, passed={}, user={},
        metrics={}, outer_stream={},
    )  # fmt: skip


def test_equal_states_differ_in_nothing() -> None:
    found = differences(state(w=torch.tensor([math.nan])), state(w=torch.tensor([math.nan])))
    assert (found.count, found.tensors, found.values) == (1, (), ())
    assert found.digests[0] == found.digests[1]


def test_a_sign_of_zero_is_a_difference_of_bits_and_of_no_size() -> None:
    [found] = differences(
        state(w=torch.zeros(2, 3)), state(w=torch.tensor([[0.0, 0, 0], [0, -0.0, 0]]))
    ).tensors
    assert (found.differing, found.elements, found.first) == (1, 6, "[1,1]")
    assert found.largest == 0.0


def test_the_largest_difference_comes_first_and_shapes_come_last() -> None:
    before = state(
        model={
            "a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2), "d": torch.zeros(1),
            "e": torch.zeros(1), "same": torch.ones(3, dtype=torch.bool),
        },
        optimizer={"lr": 0.1, "betas": (0.9, 0.99)},
    )  # fmt: skip
    after = state(
        model={
            "a": torch.tensor([0.0, 0.5]), "b": torch.tensor([2.0, 0.0]), "c": torch.zeros(3),
            "d": torch.zeros(1, dtype=torch.float64), "f": torch.zeros(()),
            "same": torch.ones(3, dtype=torch.bool),
        },
        optimizer={"lr": 0.2, "betas": (0.9, 0.99)},
    )  # fmt: skip
    found = differences(before, after)
    assert [each.name for each in found.tensors] == [
        "model.b", "model.a", "model.c", "model.d", "model.e", "model.f",
    ]  # fmt: skip
    assert found.count == 7
    b, a, c, d, e, f = found.tensors
    assert (b.largest, b.first, b.before, b.after) == (2.0, "[0]", 0.0, 2.0)
    assert (a.largest, a.first) == (0.5, "[1]")
    assert (c.shape, c.other_shape) == ("2", "3")
    assert (d.shape, d.other_shape) == ("1 float32", "1 float64")
    assert (e.only_in, f.only_in, f.shape) == (0, 1, "scalar")
    assert [(v.name, v.before, v.after) for v in found.values] == [("optimizer.lr", "0.1", "0.2")]


def test_what_is_no_number_has_no_size() -> None:
    [found] = differences(
        state(w=torch.tensor([1.0, 2.0])), state(w=torch.tensor([math.inf, 2.5]))
    ).tensors
    assert (found.differing, found.largest, found.before, found.after) == (2, None, 1.0, None)


@pytest.mark.parametrize("dtype", (torch.int64, torch.bfloat16, torch.complex64, torch.bool))
def test_every_type_is_compared(dtype: torch.dtype) -> None:
    one = torch.tensor([0, 1, 0]).to(dtype)
    [found] = differences(state(w=one), state(w=torch.tensor([1, 1, 0]).to(dtype))).tensors
    assert (found.differing, found.first, found.largest) == (1, "[0]", 1.0)


def test_a_snapshot_that_is_not_there_is_a_fault_of_one_and_refuses_a_comparison() -> None:
    [inspected] = answer(Request(paths=("/nowhere/step-1",)))
    assert isinstance(inspected, Inspected)
    assert "cannot be read" in inspected.fault
    [refused] = answer(Request(paths=("/nowhere/step-1", "/nowhere/step-2"), compare=True))
    assert isinstance(refused, Refusal)
    assert read_answer(f"Refusal {encode(refused)}") == refused


@pytest.mark.parametrize("line", ("", "Traceback (most recent call last):", "Inspected {"))
def test_other_words_than_answers_are_not_taken_for_one(line: str) -> None:
    with pytest.raises(FormatError):
        read_answer(line)
