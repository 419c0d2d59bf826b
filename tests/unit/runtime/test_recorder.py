"""Digests of whatever a batch may be, and the log of operators."""

from pathlib import Path

import numpy as np
import torch

from easyscale.recording import Entry, Operator
from easyscale.runtime.operators import OperatorLog
from easyscale.runtime.recorder import fingerprint


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
