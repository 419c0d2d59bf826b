"""Whether an optimizer can go on from the state of the one that a job began with, told by name.

Its class is in no state, but the values of its parameter groups are as good as a name.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.optim import Optimizer

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph

#: Of a group, but not of its optimizer: its parameters, and what schedulers write into it.
_OF_GROUPS = frozenset({"params", "param_names", "initial_lr"})


def refuse_other_optimizer(name: str, optimizer: Optimizer, saved: Any) -> None:  # noqa: ANN401
    """Raise ScriptError for another optimizer, other groups or other numbers of parameters."""
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    if not groups:
        raise ScriptError(
            f"{name} is {type(optimizer).__name__} here; the state holds no optimizer of that name",
            hint="register the same things by the same names, or start a new job: --job-id NAME",
        )
    _refuse_other_class(name, optimizer, groups[0])
    own = optimizer.param_groups
    if len(own) != len(groups):
        raise ScriptError(
            f"{name} has {_count(len(own), 'parameter group')} here and {len(groups)} in the state",
            hint="make the groups that the job began with before job.register, or start a new job: "
            "--job-id NAME",
            see=Paragraph.STATE,
        )
    for index, (ours, theirs) in enumerate(zip(own, groups, strict=True)):
        here, there = len(ours["params"]), len(theirs.get("params", ()))
        if here != there:
            label = f"{name}.param_groups[{index}]" if len(own) > 1 else name
            raise ScriptError(
                f"{label} has {_count(here, 'parameter')} here and {there} in the state",
                hint="give it all the parameters that it had, and freeze some by "
                "parameter.requires_grad_(False), or start a new job: --job-id NAME",
                see=Paragraph.STATE,
            )


def _refuse_other_class(name: str, optimizer: Optimizer, saved: dict[str, Any]) -> None:
    here, there = (group.keys() - _OF_GROUPS for group in (optimizer.param_groups[0], saved))
    if here == there:
        return
    own = type(optimizer)
    began = sorted(_torch_optimizers(saved))
    is_stock = own.__module__.startswith("torch.optim.")
    # Some optimizers of others write values into their groups later: more of them is no sign.
    if (here - there and there - here) or (is_stock and began and own.__name__ not in began):
        before = " or ".join(began) or "another optimizer"
        lacks = "" if began else f", which had no {', '.join(sorted(here - there))}"
        raise ScriptError(
            f"{name} is {own.__name__} here; this job began with {before}{lacks}",
            hint="the optimizer that the job began with, or a new job: --job-id NAME",
        )


def _torch_optimizers(saved: dict[str, Any]) -> Iterator[str]:
    """The classes of torch.optim whose groups have exactly these values."""
    names = saved.keys() - _OF_GROUPS
    for cls in vars(torch.optim).values():
        if not isinstance(cls, type) or not issubclass(cls, Optimizer) or cls is Optimizer:
            continue
        with suppress(Exception):  # one that takes more than parameters is not recognised
            defaults = cls([torch.nn.Parameter(torch.zeros(1, 1))]).defaults  # type: ignore[call-arg]
            decoupled = "decoupled_weight_decay"  # all that AdamW differs from Adam in
            if defaults.keys() == names and defaults.get(decoupled) == saved.get(decoupled):
                yield cls.__name__


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
