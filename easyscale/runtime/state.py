"""The training state: captured at a boundary, restored with checks by name, named by a digest.

One form serves snapshots and joiners: nests of tensors and plain values, which `torch.load` reads
with `weights_only=True`, so that no code can hide in it.
"""

import io
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import torch

from easyscale.errors import FormatError, ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.optimizers import refuse_other_optimizer
from easyscale.runtime.registry import Registry, leaves

FORMAT = 1
#: A state travels to a joiner in pieces of this size.
CHUNK_BYTES = 4 * 1024 * 1024

#: Integers of each size, to compare bits as numbers.
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job is: everything that names its next step."""

    #: Steps completed over the job's life, which is the number of the step that comes next.
    step: int = 0
    epoch: int = 0
    #: Index within the epoch of the step that comes next.
    index: int = 0
    #: Operations completed: steps, evaluations, the end.
    position: int = 0
    finished: bool = False


class Moment(StrEnum):
    """How much of its script a process had run by the time that its state was taken."""

    #: What the script has built, inside `register` of a start: nothing that comes after it.
    START = "start"
    #: Up to the loader's `next()` that begins the step.
    BOUNDARY = "boundary"
    #: The top of the step as well. The random stream and `job.state` are as before it all the same:
    #: who takes them runs it again; what is registered is as after it.
    STEP = "step"
    #: All epochs: the top of another one has been run by nobody.
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a process needs to go on where another one stands; everything in host memory."""

    place: Place
    #: N, seed, determinism, threads: what another value would change the bits of.
    fixed: Plain
    objects: Plain
    #: requires_grad of each parameter, which scripts that freeze layers change.
    trainable: dict[str, bool]
    #: Optimizers' and schedulers' values as the script first passed them.
    passed: Plain
    user: Plain
    metrics: dict[str, float]
    outer_stream: Plain
    #: Of the training loader: what decides which samples a step has.
    data: Plain = field(default_factory=dict)
    #: States that were written before it was known of are of boundaries.
    moment: Moment = Moment.BOUNDARY
    #: Which parts of modules are in training mode, and which in eval mode; older states do not say.
    modes: dict[str, bool] = field(default_factory=dict)

    @property
    def is_between_epochs(self) -> bool:
        """Whether the top of the epoch that comes next is still to be run, by everybody.

        Who left the loop early is in the midst of an epoch, whose top counts.
        """
        return (self.place.finished or self.moment is Moment.END) and self.place.index == 0

    @property
    def digest(self) -> str:
        return digest(self.objects)

    def write(self, file: IO[bytes]) -> None:
        """Write the torch zip."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        place = {name: getattr(self.place, name) for name in Place.__dataclass_fields__}
        plain = {"format": FORMAT, **values, "place": place, "moment": self.moment.value}
        torch.save(plain, file)

    @classmethod
    def read(cls, file: IO[bytes] | Path, *, source: str) -> Self:
        """Read it back; raises FormatError that names `source`.

        By its path a file is mapped: what nobody looks at is not read from the disk.
        """
        try:
            by_path = isinstance(file, Path)
            values = torch.load(file, map_location="cpu", weights_only=True, mmap=by_path or None)
            if values.pop("format") > FORMAT:
                raise FormatError(
                    f"{source} was written by a newer easyscale",
                    hint="pip install -U easyscale-torch",
                )
            known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
            moment = Moment(known.get("moment", Moment.BOUNDARY))
            return cls(**{**known, "place": Place(**known["place"]), "moment": moment})
        except FormatError:
            raise
        except Exception as error:
            # torch.load raises what its zip reader and its unpickler raise: many kinds.
            raise FormatError(f"{source} holds no training state: {error}") from error

    def chunks(self) -> Iterator[bytes]:
        """The same bytes for a joiner, piece by piece."""
        buffer = io.BytesIO()
        self.write(buffer)
        view = buffer.getbuffer()
        for start in range(0, len(view), CHUNK_BYTES):
            yield bytes(view[start : start + CHUNK_BYTES])

    @classmethod
    def from_chunks(cls, chunks: Iterable[bytes], *, source: str) -> Self:
        buffer = io.BytesIO()
        for chunk in chunks:
            buffer.write(chunk)
        buffer.seek(0)
        return cls.read(buffer, source=source)


def captured(registry: Registry) -> Plain:
    """Copy what is registered to host memory."""
    return {name: captured_thing(registry, name) for name in _in_turn(registry)}


def _in_turn(registry: Registry) -> list[str]:
    """What a scheduler refers to comes before it."""
    return [*registry.modules, *registry.optimizers, *registry.stateful, *registry.tensors]


def captured_thing(registry: Registry, name: str) -> Any:  # noqa: ANN401 - as it was registered
    """Copy one thing that is registered to host memory."""
    return _copied(live(registry, name), name)


def live(registry: Registry, name: str) -> Any:  # noqa: ANN401 - as it was registered
    """The state of one thing as it stands, tensors and all: nothing is copied."""
    if (module := registry.modules.get(name)) is not None:
        tensors = dict(module.state_dict())
        # Non-persistent buffers are state as well: a joiner must not start from fresh ones.
        for path, buffer in module.named_buffers():
            tensors.setdefault(path, buffer)
        return tensors
    if name in registry.tensors:
        return registry.tensors[name]
    return {**registry.optimizers, **registry.stateful}[name].state_dict()


def restore(registry: Registry, objects: Plain, *, names: Container[str] | None = None) -> None:
    """Set what is registered, or `names` of it, to a captured state, and keep nothing of that.

    Raises ScriptError where the two do not fit.
    """
    refuse_unequal(registry, objects)
    chosen = [name for name in _in_turn(registry) if names is None or name in names]
    for name in chosen:
        _set(registry, name, objects[name])
    _refuse_inexact(registry, objects, chosen)


def _set(registry: Registry, name: str, saved: Any) -> None:  # noqa: ANN401 - as it was registered
    if (module := registry.modules.get(name)) is not None:
        own = module.state_dict().keys()
        module.load_state_dict({path: _given(saved[path], path) for path in own})
        with torch.no_grad():
            for path, buffer in module.named_buffers():
                if path not in own:
                    buffer.copy_(saved[path])
    elif (optimizer := registry.optimizers.get(name)) is not None:
        _set_optimizer(optimizer, saved, name)
    elif (thing := registry.stateful.get(name)) is not None:
        # A copy: it may go on with what it is given, and write it in place.
        thing.load_state_dict(_copied(saved, name))
    else:
        tensors = dict(leaves(saved, name))
        with torch.no_grad():
            for path, tensor in leaves(registry.tensors[name], name):
                tensor.copy_(tensors[path])


def _given(value: Any, path: str) -> Any:  # noqa: ANN401 - a module's extra state may be anything
    return value if isinstance(value, torch.Tensor) else _copied(value, path)


def _set_optimizer(optimizer: torch.optim.Optimizer, saved: Plain, name: str) -> None:
    """Load a copy; the groups stay the dicts that the script may hold on to."""
    groups, copy = optimizer.param_groups, _copied(saved, name)
    optimizer.load_state_dict(copy)
    _keep_dtypes(optimizer, copy)
    loaded = optimizer.param_groups
    if loaded is groups or "param_groups" not in vars(optimizer):
        return
    for own, group in zip(groups, loaded, strict=True):
        if own is not group:
            own.clear()
            own.update(group)
    optimizer.param_groups = groups


def _keep_dtypes(optimizer: torch.optim.Optimizer, saved: Plain) -> None:
    """Undo the cast to the parameter's type: NAdam counts in float32 beside double parameters."""
    numbers = [n for group in saved.get("param_groups", ()) for n in group.get("params", ())]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, number in zip(parameters, numbers, strict=False):
        own, kept = optimizer.state.get(parameter), saved.get("state", {}).get(number)
        if isinstance(own, dict) and isinstance(kept, dict):
            own.update(_with_dtypes(own, kept))


def _with_dtypes(loaded: Any, saved: Any) -> Any:  # noqa: ANN401
    match loaded, saved:
        case torch.Tensor(), torch.Tensor() if loaded.dtype != saved.dtype:
            return saved.to(loaded.device)
        case dict(), dict():
            return {
                key: _with_dtypes(value, saved[key]) if key in saved else value
                for key, value in loaded.items()
            }
        case (list(), list()) | (tuple(), tuple()) if len(loaded) == len(saved):
            return type(saved)(map(_with_dtypes, loaded, saved))
        case _:
            return loaded


def _refuse_inexact(registry: Registry, objects: Plain, names: Iterable[str]) -> None:
    """Name the first thing that does not have the bits that it was given."""
    for name in names:
        path = first_difference(registry, objects, name)
        if path is not None:
            raise ScriptError(
                f"{path} is not what it was after it was restored: training would go on with "
                "other bits",
                hint="a load_state_dict that sets exactly what state_dict returned",
                see=Paragraph.STATE,
            )


def first_difference(registry: Registry, objects: Plain, name: str) -> str | None:
    """Which value of one thing has other bits now than in a captured state; None of none.

    What a class keeps to itself, by its name, comes last: it tells people the least.
    """
    now = dict(_comparable(registry, name))
    then = dict(entries(objects[name], name))
    differing = [
        path
        for path in now.keys() | then.keys()
        if path not in now or path not in then or not _is_equal(now[path], then[path])
    ]
    return min(differing, key=lambda path: ("._" in path, path), default=None)


def _comparable(registry: Registry, name: str) -> Iterator[tuple[str, Any]]:
    """The entries of one thing; the tensors of most are not copied on the host."""
    if name in registry.stateful:
        yield from entries(captured_thing(registry, name), name)
        return
    for path, value in entries(live(registry, name), name):
        is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
        # The room on a device is the script's.
        yield path, value.cpu() if is_dense else _copied(value, path)


def _is_equal(one: Any, other: Any) -> bool:  # noqa: ANN401
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return has_equal_bits(one, other)
    return type(one) is type(other) and _text(one) == _text(other)


def has_equal_bits(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Compare two dense tensors bit for bit: a NaN equals itself, zeros have signs."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = (_as_words(tensor) for tensor in (one, other))
    if one.device.type == other.device.type == "cpu":
        # A third of the time that `torch.equal` takes.
        return np.array_equal(one.numpy(), other.numpy())
    return torch.equal(one, other.to(one.device))


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.view(_WORDS[tensor.element_size()])


def refuse_unequal(registry: Registry, objects: Plain) -> None:
    """Name the first thing that the script and the state do not share."""
    missing = sorted(objects.keys() - set(registry.names))
    unexpected = sorted(set(registry.names) - objects.keys())
    if missing or unexpected:
        raise ScriptError(
            f"the state holds {_named(objects)}; the script registers {_named(registry.names)}",
            hint="register the same names, or start a new job: --job-id NAME",
        )
    for name, optimizer in registry.optimizers.items():
        refuse_other_optimizer(name, optimizer, objects[name])
    for name, module in registry.modules.items():
        own = {**dict(module.named_buffers()), **module.state_dict()}
        _refuse_unequal_tensors(name, own, objects[name])
    for name, tree in registry.tensors.items():
        _refuse_unequal_tensors(name, dict(leaves(tree, "")), dict(leaves(objects[name], "")))


def _refuse_unequal_tensors(name: str, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    hint = "the model that the job began with, or a new job: --job-id NAME"
    for path in sorted(own.keys() | saved.keys()):
        label = f"{name}.{path}".replace("..", ".")
        if path not in own:
            raise ScriptError(
                f"the state holds {label}; the script's {name} has no such", hint=hint
            )
        if path not in saved:
            raise ScriptError(
                f"the script's {name} has {label}; the state holds no such", hint=hint
            )
        ours, theirs = own[path], saved[path]
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
            if ours.shape != theirs.shape:
                sizes = f"{tuple(ours.shape)} here and {tuple(theirs.shape)} in the state"
                raise ScriptError(f"{label} is {sizes}", hint=hint)
            if ours.dtype != theirs.dtype:
                raise ScriptError(
                    f"{label} is {ours.dtype} here and {theirs.dtype} in the state", hint=hint
                )


def passed_values(registry: Registry) -> Plain:
    """Plain values of optimizers and schedulers by name, before anything is restored."""
    values: Plain = {}
    for name, optimizer in registry.optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            suffix = f"[{index}]" if len(optimizer.param_groups) > 1 else ""
            for key, value in group.items():
                if key in {"params", "initial_lr"}:  # the latter follows from lr
                    continue
                if all(tensor.numel() == 1 for tensor in _tensors(value)):  # a rate may be one
                    values[f"{name}.{key}{suffix}"] = _copied(value, f"{name}.{key}")
    for name, thing in registry.stateful.items():
        for key, value in thing.state_dict().items():
            if key.startswith("_") or key in {"base_lrs", "last_epoch"}:
                continue  # follows from the optimizer's lr, or counts
            if isinstance(value, (bool, int, float, str, list, tuple)) and not _tensors(value):
                values[f"{name}.{key}"] = _copied(value, f"{name}.{key}")
    return values


def _tensors(value: Any) -> list[torch.Tensor]:  # noqa: ANN401
    return [each for _, each in entries(value) if isinstance(each, torch.Tensor)]


def plain_leaves(registry: Registry) -> dict[str, str]:
    """Every plain value of schedulers and optimizers, those that count included, as texts.

    But for what a scheduler that is made later leaves in a group: it follows from the rate.
    """
    values = {}
    for name in (*registry.stateful, *registry.optimizers):
        for path, value in entries(live(registry, name), name):
            if path.endswith(".initial_lr"):
                continue
            if value is None or isinstance(value, (bool, int, float, str, bytes, complex)):
                values[path] = f"{type(value).__name__} {_text(value)}"
    return values


def digest(objects: Plain) -> str:
    """SHA-256 over name, dtype, shape and bytes of all tensors and over the plain values."""
    sink = sha256()
    for path, value in sorted(entries(objects)):
        sink.update(path.encode() + b"\0")
        _feed(value, sink.update)
    return sink.hexdigest()


def entry_digests(objects: Plain) -> dict[str, str]:
    """A short digest of each entry, to name the first one in which two processes differ."""
    digests = {}
    for path, value in sorted(entries(objects)):
        sink = sha256()
        _feed(value, sink.update)
        digests[path] = sink.hexdigest()[:16]
    return digests


def _feed(value: Any, update: Callable[[bytes | memoryview], None]) -> None:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        update(f"{value.dtype} {tuple(value.shape)}\0".encode())
        update(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]
    else:
        update(f"{type(value).__name__} {_text(value)}\0".encode())


def _text(value: Any) -> str:  # noqa: ANN401
    # An empty container is an entry of its own; all else is a number, a string or None.
    return value.hex() if isinstance(value, float) else repr(value)


class _Entry(tuple[str, Any]):
    """Sorts by its path alone; tensors have no order."""

    __slots__ = ()

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return bool(self[0] < other[0])


def entries(value: Any, path: str = "") -> Iterator[_Entry]:  # noqa: ANN401
    """What the digest covers, each with its name: tensors, plain values, empty containers."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from entries(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from entries(item, f"{path}.{index}")
    else:
        yield _Entry((path, value))


def _copied(value: Any, path: str) -> Any:  # noqa: ANN401
    """Copy to host memory, as plain as `weights_only` wants it; raises ScriptError by name."""
    match _plain(value):
        case torch.Tensor() as tensor if tensor.layout is torch.strided:
            return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg()
        case None | bool() | int() | float() | str() | bytes() | complex() as plain:
            return plain
        case np.ndarray() as array if array.dtype.kind in "biufc":
            return torch.from_numpy(array.copy())
        case Counter() as counter:
            return Counter({_key(key, path): _copied(n, path) for key, n in counter.items()})
        case Mapping() as mapping:
            return {
                _key(key, path): _copied(item, f"{path}.{key}") for key, item in mapping.items()
            }
        case tuple() as items:
            return tuple(_copied(item, f"{path}.{n}") for n, item in enumerate(items))
        case list() as items:
            return [_copied(item, f"{path}.{n}") for n, item in enumerate(items)]
        case torch.Tensor() as tensor:
            raise ScriptError(
                f"{path} is a tensor of layout {tensor.layout}: a state holds dense ones",
                hint=f"{path.rpartition('.')[2]}.to_dense()",
                see=Paragraph.STATE,
            )
        case _:
            raise ScriptError(
                f"{path} is a {type(value).__name__}: a state holds tensors, numbers, strings, "
                "lists and dicts, since nothing is unpickled",
                hint="give its class a state_dict of plain values",
                see=Paragraph.STATE,
            )


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Turn NumPy's numbers and subclasses of Python's (enums) into Python's own numbers and texts.

    Subclasses are pickled by the name of their class, which the safe loader does not look up.
    """
    if isinstance(value, np.generic):  # before float, of which NumPy's is one
        value = value.item()
    match value:
        case bool() | np.generic():
            return value
        case int():
            return int.__index__(value)
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
        case bytes():
            return b"".join((value,))
        case complex():
            return complex(value.real, value.imag)
        case _:
            return value


def _key(key: Any, path: str) -> Any:  # noqa: ANN401
    plain = _plain(key)
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    if isinstance(plain, tuple):
        return tuple(_key(part, path) for part in plain)
    raise ScriptError(
        f"{path} has the key {key!r}, a {type(key).__name__}: a state has numbers and strings as "
        "keys, since nothing is unpickled",
        see=Paragraph.STATE,
    )


def plain_value(path: str, value: Any) -> Any:  # noqa: ANN401
    """Copy a value of `job.state` as plain as it is read back; raises ScriptError by name."""
    match _plain(value):
        case None | bool() | int() | float() | str() as plain:
            return plain
        case dict() as mapping:
            return {
                _key(key, f"job.state: {path}"): plain_value(f"{path}.{key}", item)
                for key, item in mapping.items()
            }
        case list() as items:
            return [plain_value(f"{path}.{n}", item) for n, item in enumerate(items)]
        case tuple() as items:
            return tuple(plain_value(f"{path}.{n}", item) for n, item in enumerate(items))
        case _:
            raise ScriptError(
                f"job.state holds plain values, and {path} is a {type(value).__name__}",
                hint="numbers, strings, lists and dicts; tensors are registered",
                see=Paragraph.STATE,
            )


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
