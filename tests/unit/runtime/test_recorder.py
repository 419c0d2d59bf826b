"""Digests of whatever a batch may be, and the log of operators."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from easyscale.recording import Entry, Operator
from easyscale.runtime.fingerprint import fingerprint
from easyscale.runtime.operators import OperatorLog


def test_equal_batches_have_equal_digests_and_one_bit_makes_another() -> None:
    batch = {"x": torch.tensor([1.0, 2.0]), "y": [1, (2, "a")], "z": np.arange(3)}
    same = {"x": torch.tensor([1.0, 2.0]), "y": [1, (2, "a")], "z": np.arange(3)}
    assert fingerprint(batch) == fingerprint(same)
    same["x"] = torch.nextafter(torch.tensor([1.0, 2.0]), torch.tensor([9.0, 2.0]))
    assert fingerprint(batch) != fingerprint(same)


def test_shape_dtype_and_kind_of_container_count() -> None:
    flat = torch.zeros(4)
    others = [flat.view(2, 2), flat.int(), [0.0] * 4, (0.0,) * 4, None, flat.bfloat16()]
    assert len({fingerprint(value) for value in (flat, *others)}) == len(others) + 1


def test_a_view_has_the_digest_of_its_copy() -> None:
    whole = torch.arange(12.0).view(3, 4)
    assert fingerprint(whole[:, 1]) == fingerprint(whole[:, 1].clone())


def operators(folder: Path) -> list[Operator]:
    said: list[Entry] = []
    weight = torch.arange(6.0).view(2, 3).requires_grad_()
    with OperatorLog(folder, said.append):
        (torch.ones(4, 2) @ weight).relu().sum().backward()  # type: ignore[no-untyped-call]
    assert all(isinstance(entry, Operator) for entry in said)
    return said  # type: ignore[return-value]


def test_operators_of_forward_and_backward_are_logged_alike_each_time() -> None:
    first = operators(Path(__file__).parent)
    assert first == operators(Path(__file__).parent)
    names = [entry.name for entry in first]
    assert "aten.mm.default" in names
    assert "aten.threshold_backward.default" in names
    assert any(entry.place.rpartition(":")[0] == __file__ for entry in first)


def logged(work: Callable[[], object]) -> list[Operator]:
    said: list[Entry] = []
    with OperatorLog(Path(__file__).parent, said.append):
        work()
    return [entry for entry in said if isinstance(entry, Operator)]


def test_what_stood_in_memory_that_is_written_over_is_no_input() -> None:
    """Two processes that build the same weight find other garbage there."""
    ones, twos = torch.ones(4), torch.full((4,), 2.0)
    for work in (
        torch.Tensor.zero_,
        lambda place: place.copy_(torch.arange(4.0)),
        lambda place: torch.mul(torch.arange(4.0), 3, out=place),
    ):
        one, other = (logged(partial(work, place.clone()))[-1] for place in (ones, twos))
        assert one == other
    one, other = (logged(partial(torch.Tensor.add_, place, 1))[-1] for place in (ones, twos))
    assert one.inputs != other.inputs


def test_what_is_written_in_place_is_a_result_even_of_an_operator_that_returns_nothing() -> None:
    def step(size: float) -> Operator:
        weights = [torch.ones(3), torch.ones(2)]
        return logged(lambda: torch._foreach_add_(weights, size))[-1]

    assert step(1.0).outputs == step(1.0).outputs
    assert step(1.0).outputs != step(2.0).outputs


def test_a_log_that_is_off_says_nothing_and_one_that_is_on_says_whose_micro_step_it_is() -> None:
    said: list[Entry] = []
    with OperatorLog(Path(__file__).parent, said.append) as log:
        log.is_on = False
        torch.ones(2).mul(2)
        log.is_on, log.rank = True, 3
        torch.ones(2)
    assert [(entry.name, entry.rank) for entry in said if isinstance(entry, Operator)] == [
        ("aten.ones.default", 3)
    ]
