"""What the script may write between `register` and its first step, and what becomes of it.

In a start it may write nothing that is registered. A process that joins or goes on from a snapshot
runs there what the others had run before: where they were, it has what it took once more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.randomness import OuterStream
from easyscale.runtime.registry import Registry
from easyscale.runtime.state import (
    Moment,
    Plain,
    State,
    captured_thing,
    first_difference,
    passed_values,
    plain_leaves,
    restore,
)
from easyscale.runtime.versions import Versions


@dataclass(slots=True)
class Taken:
    """The state that a process took, until its script has come to where that was taken."""

    moment: Moment
    #: It is due before the next epoch, whose top has been run by nobody.
    is_between_epochs: bool
    #: What the outer code draws from.
    stream: OuterStream
    #: `job.state`.
    user: Plain
    #: What is registered, overrides included; no live tensor is in it.
    objects: Plain
    trainable: dict[str, bool]
    modes: dict[str, bool]
    #: Whether a snapshot was gone on from: what is put back is named then, once.
    tells: bool

    @classmethod
    def of(cls, state: State, registry: Registry, *, overridden: set[str], tells: bool) -> Self:
        """Right after `state` was restored and the overrides were applied."""
        changed = {name: captured_thing(registry, name) for name in overridden}
        return cls(
            moment=state.moment,
            is_between_epochs=state.is_between_epochs,
            stream=OuterStream.from_plain(state.outer_stream),
            user=state.user,
            objects={**state.objects, **changed},
            trainable=trainable(registry),
            modes=state.modes,
            tells=tells,
        )

    def put_back(self, registry: Registry) -> str | None:
        """Set what was written since to what was taken; the first of it, by name.

        Only what differs: others wait meanwhile.
        """
        registry.refuse_new_groups()
        written = self._written(registry)
        frozen = [path for path, on in trainable(registry).items() if on != self.trainable[path]]
        for path in frozen:
            registry.parameters[path].requires_grad_(self.trainable[path])
        switched = set_modes(registry, self.modes)
        if written:
            restore(registry, self.objects, names=written)
        flags = [f"{path}.requires_grad" for path in frozen]
        flags += [f"{path}.training" for path in switched]
        return next(iter((*written.values(), *flags)), None)

    def _written(self, registry: Registry) -> dict[str, str]:
        """The first difference of each thing that has one; a scheduler is named before its rate.

        By the bits: no version tells of what is written through `.data` or NumPy.
        """
        found = {}
        kinds = (registry.modules, registry.tensors, registry.stateful, registry.optimizers)
        for name in (name for kind in kinds for name in kind):
            path = first_difference(registry, self.objects, name)
            if path is not None:
                found[name] = _label(path, registry)
        return found


def trainable(registry: Registry) -> dict[str, bool]:
    """Which parameters are trained: scripts that freeze layers change it."""
    return {path: parameter.requires_grad for path, parameter in registry.parameters.items()}


def modes(registry: Registry) -> dict[str, bool]:
    """Training or eval mode of every part: scripts that freeze batch norms change it once."""
    return {path: part.training for path, part in _parts(registry)}


def set_modes(registry: Registry, wanted: dict[str, bool]) -> list[str]:
    """Put every part that is named into the mode that it had; those in which that was another."""
    switched = []
    for path, part in _parts(registry):
        if part.training != wanted.get(path, part.training):
            part.training = wanted[path]
            switched.append(path)
    return switched


def _parts(registry: Registry) -> Iterator[tuple[str, nn.Module]]:
    for name, module in registry.modules.items():
        for path, part in module.named_modules():
            yield f"{name}.{path}" if path else name, part


def told(written: str, registry: Registry, *, top: bool) -> str:
    """The line for what was put back after a snapshot."""
    where = "at the top of the first step" if top else "between job.register and the first step"
    name = written.partition("[")[0]
    line = (
        f"{written}: the restored value stands; it was written {where}, which the job had run "
        "before the snapshot"
    )
    if name.partition(".")[0] in registry.optimizers and ".state." not in name:
        line += f'. Set before job.register, register(..., override=["{name}"]) takes it'
    return line


def _label(path: str, registry: Registry) -> str:
    """`optimizer.param_groups.1.lr` as people call it: `optimizer.lr[1]`."""
    owner, _, rest = path.partition(".param_groups.")
    if owner not in registry.optimizers or not rest:
        return path
    index, key = rest.split(".")[:2]
    several = len(registry.optimizers[owner].param_groups) > 1
    return f"{owner}.{key}" + (f"[{index}]" if several else "")


@dataclass(frozen=True, slots=True)
class Fresh:
    """What is registered, as `register` returned with it where no state was taken."""

    registry: Registry
    versions: Versions
    passed: dict[str, Any]
    leaves: dict[str, str]

    @classmethod
    def of(cls, registry: Registry) -> Self:
        return cls(
            registry,
            Versions(registry.trained_tensors),
            passed_values(registry),
            plain_leaves(registry),
        )

    def refuse_training_without_steps(self, epoch: int) -> None:
        """Raise ScriptError where an epoch trained with a loop that is none of the job's."""
        written = self.versions.first_written() or self._first_passed_anew()
        if written is not None:
            raise ScriptError(
                f"{written} was written in epoch {epoch}, which went through no loader of this "
                "job: every process has trained on all of the data, and no step was counted",
                hint="for step in job.loader(dataset, batch_size=...), in place of a DataLoader",
                see=Paragraph.LOOPS,
            )

    def refuse_writes(self) -> None:
        """Raise ScriptError where the script has written between `register` and the first step."""
        written = self.versions.first_written() or self._first_leaf() or self._first_passed_anew()
        if written is not None:
            hint, owner = "do it before job.register", written.partition(".")[0]
            if hasattr(self.registry.stateful.get(owner), "step"):
                hint += f", or {owner}.step() at the end of the epoch's body"
            raise ScriptError(
                f"{written} was written between job.register and the first step: a process that "
                "joins or goes on from a snapshot has its value by then, and would lose it",
                hint=hint,
                see=Paragraph.STATE,
            )

    def _first_leaf(self) -> str | None:
        """What a class keeps to itself comes last, as it tells people the least."""
        now = plain_leaves(self.registry)
        changed = [path for path in now if now[path] != self.leaves.get(path)]
        first = min(changed, key=lambda path: "._" in path, default=None)
        return None if first is None else _label(first, self.registry)

    def _first_passed_anew(self) -> str | None:
        """A rate may be a tensor."""
        now = passed_values(self.registry)
        return next((name for name in now if now[name] != self.passed.get(name)), None)
