"""A state of another optimizer is refused by its name, before anything of it is loaded."""

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RAdam

from easyscale.errors import ScriptError
from easyscale.runtime.registry import Registry
from easyscale.runtime.state import captured, restore


class Counting(SGD):
    """As optimizers of others do, it writes a value into its groups in its first step."""

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 - as torch has it
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


class Tuned(Optimizer):
    """Nobody's of torch."""

    def __init__(self, params: list[Any], lr: float = 0.1, warmth: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "warmth": warmth})

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 - as torch has it
        del closure


def registry_of(kind: type[Optimizer], *, groups: int = 1, frozen: bool = False) -> Registry:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    parts = [model.weight] if frozen else list(model.parameters())
    grouped = [{"params": [part]} for part in parts] if groups > 1 else [{"params": parts}]
    return Registry.of({"model": model, "opt": kind(grouped)})  # type: ignore[call-arg]


def trained(registry: Registry) -> dict[str, Any]:
    model, optimizer = registry.modules["model"], registry.optimizers["opt"]
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return captured(registry)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (Adam, SGD, "opt is SGD here; this job began with Adam"),
        (SGD, Adam, "opt is Adam here; this job began with SGD"),
        (AdamW, SGD, "opt is SGD here; this job began with AdamW"),
        (Adam, RAdam, "opt is RAdam here; this job began with Adam"),
        (RAdam, Adam, "opt is Adam here; this job began with RAdam"),
        (Tuned, AdamW, "opt is AdamW here; this job began with another optimizer, which had no"),
        (Adam, Tuned, "opt is Tuned here; this job began with Adam"),
    ],
)
def test_another_optimizer_is_named_with_the_one_that_the_job_began_with(
    before: type[Optimizer], now: type[Optimizer], told: str
) -> None:
    objects = trained(registry_of(before))
    other = registry_of(now)
    untouched = captured(other)["model"]
    with pytest.raises(ScriptError, match=rf"^{re.escape(told)}") as refused:
        restore(other, objects)
    assert refused.value.hint == (
        "the optimizer that the job began with, or a new job: --job-id NAME"
    )
    assert torch.equal(untouched["weight"], captured(other)["model"]["weight"])


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RAdam, Counting, Tuned])
def test_the_same_optimizer_goes_on(kind: type[Optimizer]) -> None:
    objects = trained(registry_of(kind))
    restore(registry_of(kind), objects)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({}, {"groups": 2}, "opt has 2 parameter groups here and 1 in the state"),
        ({"groups": 2}, {}, "opt has 1 parameter group here and 2 in the state"),
        ({}, {"frozen": True}, "opt has 1 parameter here and 2 in the state"),
    ],
)
def test_other_groups_or_numbers_of_parameters_are_one_sentence(
    before: dict[str, Any], now: dict[str, Any], told: str
) -> None:
    objects = trained(registry_of(Adam, **before))
    with pytest.raises(ScriptError, match=rf"^{re.escape(told)}$"):
        restore(registry_of(Adam, **now), objects)


def test_a_state_in_which_the_name_is_no_optimizers_is_refused() -> None:
    registry = registry_of(SGD)
    objects = captured(registry) | {"opt": {"weight": torch.zeros(1)}}
    with pytest.raises(ScriptError, match="opt is SGD here; the state holds no optimizer"):
        restore(registry, objects)
