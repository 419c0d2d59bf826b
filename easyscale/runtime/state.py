"""The training state: captured at a boundary, restored with checks by name, named by a digest.

One form serves snapshots and joiners: nests of tensors and plain values, which `torch.load` reads
with `weights_only=True`, so that no code can hide in it.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import IO, Any, Self

import numpy as np
import torch

from easyscale.errors import FormatError, ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.registry import Registry, leaves

FORMAT = 1
#: A state travels to a joiner in pieces of this size.
CHUNK_BYTES = 4 * 1024 * 1024

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

    @property
    def digest(self) -> str:
        return digest(self.objects)

    def write(self, file: IO[bytes]) -> None:
        """Write the torch zip."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        place = {name: getattr(self.place, name) for name in Place.__dataclass_fields__}
        torch.save({"format": FORMAT, **values, "place": place}, file)

    @classmethod
    def read(cls, file: IO[bytes], *, source: str) -> Self:
        """Read it back; raises FormatError that names `source`."""
        try:
            values = torch.load(file, map_location="cpu", weights_only=True)
            if values.pop("format") > FORMAT:
                raise FormatError(
                    f"{source} was written by a newer easyscale",
                    hint="pip install -U easyscale-torch",
                )
            known = {name: values[name] for name in cls.__dataclass_fields__}
            return cls(**{**known, "place": Place(**known["place"])})
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
    objects: Plain = {}
    for name, module in registry.modules.items():
        tensors = dict(module.state_dict())
        # Non-persistent buffers are state as well: a joiner must not start from fresh ones.
        for path, buffer in module.named_buffers():
            tensors.setdefault(path, buffer)
        objects[name] = _copied(tensors, name)
    for name, thing in (*registry.optimizers.items(), *registry.stateful.items()):
        objects[name] = _copied(thing.state_dict(), name)
    for name, tree in registry.tensors.items():
        objects[name] = _copied(tree, name)
    return objects


def restore(registry: Registry, objects: Plain) -> None:
    """Set what is registered to a captured state; raises ScriptError where the two do not fit."""
    refuse_unequal(registry, objects)
    for name, module in registry.modules.items():
        own = module.state_dict().keys()
        module.load_state_dict({path: objects[name][path] for path in own})
        with torch.no_grad():
            for path, buffer in module.named_buffers():
                if path not in own:
                    buffer.copy_(objects[name][path])
    for name, thing in (*registry.optimizers.items(), *registry.stateful.items()):
        thing.load_state_dict(objects[name])
    for name, tree in registry.tensors.items():
        saved = dict(leaves(objects[name], name))
        with torch.no_grad():
            for path, tensor in leaves(tree, name):
                tensor.copy_(saved[path])


def refuse_unequal(registry: Registry, objects: Plain) -> None:
    """Name the first thing that the script and the state do not share."""
    missing = sorted(objects.keys() - set(registry.names))
    unexpected = sorted(set(registry.names) - objects.keys())
    if missing or unexpected:
        raise ScriptError(
            f"the state holds {_named(objects)}; the script registers {_named(registry.names)}",
            hint="register the same names, or start a new job: --job-id NAME",
        )
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
                if key not in {"params", "initial_lr"}:  # the latter follows from lr
                    values[f"{name}.{key}{suffix}"] = _copied(value, f"{name}.{key}")
    for name, thing in registry.stateful.items():
        for key, value in thing.state_dict().items():
            if key.startswith("_") or key in {"base_lrs", "last_epoch"}:
                continue  # follows from the optimizer's lr, or counts
            if isinstance(value, (bool, int, float, str, list, tuple)):
                values[f"{name}.{key}"] = _copied(value, f"{name}.{key}")
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
    match value:
        case torch.Tensor():
            return value.detach().to("cpu", copy=True)
        case np.generic():  # before float, of which NumPy's is one
            return value.item()
        case None | bool() | int() | float() | str() | bytes() | complex():
            return value
        case np.ndarray():
            return torch.from_numpy(value.copy())
        case Counter():
            return Counter(value)
        case Mapping():
            return {key: _copied(item, f"{path}.{key}") for key, item in value.items()}
        case tuple():
            return tuple(_copied(item, f"{path}.{n}") for n, item in enumerate(value))
        case list():
            return [_copied(item, f"{path}.{n}") for n, item in enumerate(value)]
        case _:
            raise ScriptError(
                f"{path} is a {type(value).__name__}: a state holds tensors, numbers, strings, "
                "lists and dicts, since nothing is unpickled",
                hint="give its class a state_dict of plain values",
                see=Paragraph.STATE,
            )


def plain_value(name: str, value: Any) -> Any:  # noqa: ANN401
    """Check a value of `job.state`: plain, so that it can be written down and read back."""
    for path, item in leaves(value, name):
        if not (item is None or isinstance(item, (bool, int, float, str))):
            raise ScriptError(
                f"job.state holds plain values, and {path} is a {type(item).__name__}",
                hint="numbers, strings, lists and dicts; tensors are registered",
                see=Paragraph.STATE,
            )
    return value


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
