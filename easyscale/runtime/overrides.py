"""Values of the script that win over the restored ones: `override=["optimizer.lr"]`."""

from dataclasses import dataclass
from typing import Any

import torch

from easyscale.errors import ScriptError
from easyscale.runtime.registry import Registry


class Overrides:
    """What the script passed under these names, kept until the state has been restored."""

    def __init__(self, registry: Registry, names: tuple[str, ...]) -> None:
        self._registry = registry
        self._names = names
        self._fields: list[tuple[Any, str, Any]] = []
        #: The registered things of which something is overridden.
        self.owners: set[str] = set()
        for name in names:
            owner, _, key = name.partition(".")
            if owner in registry.optimizers and key:
                self._keep_groups(owner, key, name)
            elif owner in registry.stateful and key in registry.stateful[owner].state_dict():
                thing = registry.stateful[owner]
                self._fields.append((thing, key, thing.state_dict()[key]))
            else:
                raise ScriptError(
                    f"register(override=[{name!r}]) names no value of a registered optimizer or "
                    "scheduler",
                    hint='override=["optimizer.lr"]',
                )
            self.owners.add(owner)

    def has(self, name: str) -> bool:
        return name.partition("[")[0] in self._names

    def names(self, passed: dict[str, Any]) -> list[str]:
        return [name for name in passed if self.has(name)]

    def apply(self) -> None:
        for thing, key, value in self._fields:
            thing.load_state_dict({**thing.state_dict(), key: value})

    def _keep_groups(self, owner: str, key: str, name: str) -> None:
        # By index and not by dict: a load_state_dict may make new ones.
        optimizer = self._registry.optimizers[owner]
        for index, group in enumerate(optimizer.param_groups):
            if key not in group:
                raise ScriptError(f"register(override=[{name!r}]): {owner} has no value {key!r}")
            self._fields.append((_Group(optimizer, index), key, group[key]))
            if key == "lr" and "initial_lr" in group:
                self._fields.append((_Group(optimizer, index), "initial_lr", group["initial_lr"]))
        for other, thing in self._registry.stateful.items():
            # A scheduler goes on from the rate that it began with, so it must begin anew.
            if key == "lr" and getattr(thing, "optimizer", None) is optimizer:
                state = thing.state_dict()
                if "base_lrs" in state:
                    self._fields.append((thing, "base_lrs", state["base_lrs"]))
                    self.owners.add(other)


@dataclass(frozen=True, slots=True)
class _Group:
    """One parameter group, with the two methods that values are set through."""

    optimizer: torch.optim.Optimizer
    index: int

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.index]

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.optimizer.param_groups[self.index].update(values)
