"""What a script keeps beside what it registered is found where scripts keep things."""

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from easyscale.runtime.outside import Found, Outside, lasting_names
from easyscale.runtime.registry import Registry

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """A module of the person's own, which stands beside the script."""
    names = []

    def loaded(text: str) -> ModuleType:
        path = tmp_path / "own_module.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location("own_module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["own_module"] = module
        names.append("own_module")
        spec.loader.exec_module(module)
        return module

    yield loaded
    for name in names:
        sys.modules.pop(name, None)


def look(folder: Path, registry: Registry | None = None) -> dict[str, Found]:
    return Outside(registry or Registry(), folder).look(None)


def texts(folder: Path, registry: Registry | None = None) -> dict[str, str]:
    return {path: found.text for path, found in look(folder, registry).items()}


def test_globals_are_found_and_names_that_live_for_one_turn_are_not(
    tmp_path: Path, load: Load
) -> None:
    load(
        """
        calls, scale = 3, 0.5
        for x in range(4):
            loss = x * 2
        """
    )
    found = texts(tmp_path)
    assert found["own_module.calls"] == "int 3"
    assert found["own_module.scale"] == f"float {(0.5).hex()}"
    assert "own_module.x" not in found
    assert "own_module.loss" not in found


def test_state_on_objects_classes_functions_and_closures_is_found(
    tmp_path: Path, load: Load
) -> None:
    load(
        """
        import itertools

        class Data:
            served = 7
            def __init__(self):
                self.seen = [1, 2]

        def counted():
            n = 4
            def step():
                nonlocal n
                n += 1
            step.calls = 9
            return step

        data, step, tickets = Data(), counted(), itertools.count(5)
        """
    )
    found = texts(tmp_path)
    assert found["own_module.Data.served"] == "int 7"
    assert found["own_module.data.seen[1]"] == "int 2"
    assert found["own_module.step.n"] == "int 4"
    assert found["own_module.step.calls"] == "int 9"
    assert found["own_module.tickets"] == "int 5"


@pytest.mark.parametrize(
    "made",
    [
        "np.random.default_rng(0)",
        "np.random.RandomState(0)",
        "random.Random(0)",
        "torch.Generator()",
    ],
)
def test_a_generator_is_another_one_when_it_was_drawn_from(
    tmp_path: Path, load: Load, made: str
) -> None:
    module = load(f"import random, torch\nimport numpy as np\nrng = {made}")
    before = texts(tmp_path)["own_module.rng"]
    assert before.startswith("generator ")
    assert texts(tmp_path)["own_module.rng"] == before
    rng = module.rng
    if isinstance(rng, torch.Generator):
        torch.rand(1, generator=rng)
    else:
        rng.random() if hasattr(rng, "random") else rng.random_sample()
    assert texts(tmp_path)["own_module.rng"] != before


def test_a_plain_tensor_of_a_module_is_found_and_what_is_registered_is_not(tmp_path: Path) -> None:
    net = nn.BatchNorm1d(4)
    net.scale = torch.ones(2)
    found = texts(tmp_path, Registry.of({"net": net}))
    assert found["net.scale"].startswith("tensor torch.float32 (2,) ")
    assert not any("running_mean" in path or "weight" in path for path in found)
    net.scale += 1
    assert texts(tmp_path, Registry.of({"net": net}))["net.scale"] != found["net.scale"]


def test_code_of_others_is_not_looked_into(tmp_path: Path) -> None:
    assert texts(tmp_path) == {}


def test_what_refers_to_itself_is_gone_through_once(tmp_path: Path, load: Load) -> None:
    load("things = [1]\nthings.append(things)")
    assert texts(tmp_path)["own_module.things[0]"] == "int 1"


def test_names_of_a_function_that_last_are_its_arguments_and_what_stands_before_its_loops(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "def main(n):\n    total = 0\n    for x in n:\n        total += x\n        y = 1\n"
    )
    assert lasting_names(str(path), "main", 1) == {"n", "total"}
