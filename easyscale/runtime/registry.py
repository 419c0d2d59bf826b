"""What a script registered, by name, and the refusal of what would break the promise of equal bits.

Everything in here is replicated: each process holds all of it, at every boundary with equal bits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph

#: Wrappers that reduce gradients or shard weights by process, by the name of their class.
_WRAPPERS = {
    "DataParallel": "torch.nn.DataParallel",
    "DistributedDataParallel": "DistributedDataParallel",
    "FSDPModule": "fully_shard",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
}


@runtime_checkable
class Stateful(Protocol):
    """Optimizers, schedulers, GradScaler and whatever else follows torch's custom."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...  # noqa: ANN401


#: Tensors by themselves, or in lists and dicts.
TensorTree = torch.Tensor | dict[str, Any] | list[Any] | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """Where a module keeps a buffer; the tensor in it may be replaced by the script."""

    path: str
    module: nn.Module
    name: str

    @property
    def tensor(self) -> torch.Tensor:
        tensor = self.module._buffers[self.name]  # noqa: SLF001 - torch has no public way by slot
        assert tensor is not None, f"buffer {self.path} has been taken away"
        return tensor


@dataclass(slots=True)
class Registry:
    """All that was registered, sorted into what each part of the runtime needs of it."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    stateful: dict[str, Stateful] = field(default_factory=dict)
    tensors: dict[str, TensorTree] = field(default_factory=dict)
    #: Each parameter once, at the first of its names, in the order of registration.
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: list[BufferSlot] = field(default_factory=list)
    #: How many parameter groups each optimizer had.
    _groups: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Mapping[str, object]) -> "Registry":
        """Take in what `register` was given; raises ScriptError for what cannot be kept equal."""
        registry = cls()
        for name, thing in objects.items():
            registry._add(name, thing)
        registry._index()
        return registry

    def prepare(self, device: torch.device) -> None:
        """Make what torch would make in the first micro-step: a worker may have none of them."""
        for thing in self.stateful.values():
            if isinstance(thing, torch.amp.GradScaler) and thing.is_enabled():
                thing.scale(torch.zeros((), device=device))

    @property
    def trained_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers, and the tensors that were registered by themselves."""
        by_itself = (leaves(tree, name) for name, tree in self.tensors.items())
        return {
            **self.parameters,
            **{slot.path: slot.tensor for slot in self.buffers},
            **{path: tensor for tree in by_itself for path, tensor in tree},
        }

    def in_turn(self, number: int) -> tuple[str, torch.Tensor, int] | None:
        """One of `trained_tensors`, and how often all have had their turn before; None of none."""
        by_itself = [pair for name, tree in self.tensors.items() for pair in leaves(tree, name)]
        count = len(self.parameters) + len(self.buffers) + len(by_itself)
        if not count:
            return None
        turn, number = divmod(number, count)
        if number < len(self.parameters):
            return (*next(islice(self.parameters.items(), number, None)), turn)
        number -= len(self.parameters)
        if number < len(self.buffers):
            return self.buffers[number].path, self.buffers[number].tensor, turn
        return (*by_itself[number - len(self.buffers)], turn)

    def refuse_new_groups(self) -> None:
        """Refuse a parameter group that came after `register`: a process that joins lacks it."""
        for name, optimizer in self.optimizers.items():
            if len(optimizer.param_groups) != self._groups[name]:
                raise ScriptError(
                    f"{name} had {self._groups[name]} parameter groups in job.register and has "
                    f"{len(optimizer.param_groups)} now: a process that joins or goes on from a "
                    "snapshot would not have them",
                    hint="make all groups before job.register, and freeze what is not trained yet: "
                    "parameter.requires_grad_(False)",
                    see=Paragraph.STATE,
                )

    @property
    def names(self) -> list[str]:
        return sorted({*self.modules, *self.optimizers, *self.stateful, *self.tensors})

    def _add(self, name: str, thing: object) -> None:
        match thing:
            case nn.Module():
                refuse_module(name, thing)
                self.modules[name] = thing
            case torch.optim.Optimizer():
                self.optimizers[name] = thing
            case torch.Tensor() | dict() | list() | tuple():
                for path, tensor in leaves(thing, name):
                    if not isinstance(tensor, torch.Tensor):
                        raise ScriptError(
                            f"register({name}=...): {path} is a {type(tensor).__name__}; "
                            "lists and dicts that are registered hold tensors",
                            hint="plain values live in job.state(...)",
                        )
                self.tensors[name] = thing
            case _ if isinstance(thing, Stateful):
                self.stateful[name] = thing
            case _:
                raise ScriptError(
                    f"register({name}=...) got a {type(thing).__name__}, which has no state_dict "
                    "and load_state_dict",
                    hint="plain values live in job.state(...)",
                )

    def _index(self) -> None:
        seen: set[int] = set()
        for name, module in self.modules.items():
            for path, parameter in module.named_parameters(prefix=name):
                if id(parameter) not in seen:
                    _refuse_tensor(path, parameter)
                    seen.add(id(parameter))
                    self.parameters[path] = parameter
            for path, owner in module.named_modules(prefix=name):
                for buffer, tensor in owner._buffers.items():  # noqa: SLF001 - as BufferSlot
                    if tensor is not None and id(tensor) not in seen:
                        _refuse_tensor(f"{path}.{buffer}", tensor)
                        seen.add(id(tensor))
                        self.buffers.append(BufferSlot(f"{path}.{buffer}", owner, buffer))
        for name, tree in self.tensors.items():
            for path, tensor in leaves(tree, name):
                _refuse_tensor(path, tensor)
                if tensor.requires_grad and tensor.is_leaf and id(tensor) not in seen:
                    seen.add(id(tensor))
                    self.parameters[path] = tensor
        for name, optimizer in self.optimizers.items():
            _refuse_strangers(name, optimizer, seen)
            self._groups[name] = len(optimizer.param_groups)


def leaves(tree: object, path: str) -> Iterator[tuple[str, Any]]:
    """Walk lists and dicts; names and values of what is in them."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}.{index}")
    else:
        yield path, tree


def refuse_module(name: str, module: nn.Module) -> None:
    """Refuse modules whose numbers depend on which processes there are."""
    for path, part in module.named_modules(prefix=name):
        wrapper = next((known for known in _class_names(part) if known in _WRAPPERS), None)
        if wrapper is not None:
            raise ScriptError(
                f"{path} is wrapped in {_WRAPPERS[wrapper]}, which works by process",
                hint="register the bare module: easyscale adds the gradients of logical ranks",
                see=Paragraph.WRAPPERS,
            )
        if isinstance(part, nn.SyncBatchNorm):
            raise ScriptError(
                f"{path} is a SyncBatchNorm, whose statistics span processes that come and go",
                hint="BatchNorm: every logical rank normalises its own batch",
                see=Paragraph.SYNC_BATCH_NORM,
            )
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
            raise ScriptError(
                f"{path} is an embedding with sparse gradients, which have no fixed order of sums",
                hint="sparse=False",
                see=Paragraph.SPARSE,
            )
    for path, parameter in module.named_parameters(prefix=name):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ScriptError(
                f"{path} has no shape yet (a lazy module)",
                hint="run one batch through the model before job.register",
            )


def _refuse_tensor(path: str, tensor: torch.Tensor) -> None:
    """Refuse what cannot be copied into, byte for byte, where it stands."""
    if tensor.layout is not torch.strided:
        fact = f"has the layout {str(tensor.layout).removeprefix('torch.')}"
        hint = "to_dense()"
    elif tensor.is_meta:
        fact, hint = "is on the meta device and holds no numbers", "to_empty(...) and fill it"
    elif tensor.is_quantized:
        fact, hint = "is quantized", "int_repr() and the scale beside it"
    elif tensor.is_conj() or tensor.is_neg():
        fact, hint = "is a conjugate or negated view", "resolve_conj().resolve_neg()"
    elif _has_overlap(tensor):
        fact, hint = "is expanded: several of its numbers share one place", "contiguous()"
    else:
        return
    raise ScriptError(
        f"{path} {fact}: its bytes cannot be kept equal in all processes",
        hint=f"register it as tensor.{hint}",
        see=Paragraph.STATE,
    )


def _has_overlap(tensor: torch.Tensor) -> bool:
    return any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def refuse_sparse(parameters: Mapping[str, torch.Tensor]) -> None:
    """Refuse gradients that autograd left sparse."""
    for path, parameter in parameters.items():
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise ScriptError(
                f"{path} has a sparse gradient, which has no fixed order of sums",
                hint="sparse=False in the module that it belongs to",
                see=Paragraph.SPARSE,
            )


def refuse_process_group() -> None:
    """Refuse torch.distributed: its ranks are processes."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        raise group_refusal(
            "torch.distributed is initialised: its ranks are processes, which come and go here"
        )


def group_refusal(fact: str) -> ScriptError:
    """The error for a process group, with what does its work here."""
    return ScriptError(
        fact,
        hint="leave out init_process_group: job.loader, step.mean and job.evaluate do its work",
        see=Paragraph.PROCESS_GROUP,
    )


def _class_names(module: nn.Module) -> Iterator[str]:
    return (cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("torch."))


def _refuse_strangers(name: str, optimizer: torch.optim.Optimizer, known: set[int]) -> None:
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise ScriptError(
                    f"{name} updates a parameter of shape {tuple(parameter.shape)} "
                    f"(param_groups[{group_index}], number {index}) of no registered module",
                    hint="job.register(...) all modules whose weights are trained",
                )
