"""What a script keeps beside what it registered, found by walking from its frames and modules.

It never decides whether two runs have the same bits: it names the likely cause where they do not.
"""

import ast
import itertools
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import nn

from easyscale.runtime.loader import Loader
from easyscale.runtime.registry import Registry, leaves

#: Bounds of one look: so deep, so many things, so many items of a container, so much of a tensor.
_DEPTH = 6
_MOST = 4000
_ITEMS = 24
_ELEMENTS = 1024
_TEXT = 120

#: Folders that hold nobody's own code, though a script may lie above them.
_FOREIGN = ("site-packages", "dist-packages")
_OURS = Path(__file__).parent.parent
_STDLIB = sysconfig.get_path("stdlib")
_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing outside: `kind value` as a record holds it, and the tensor itself if it is one."""

    text: str
    tensor: torch.Tensor | None = None


def value_digest(data: bytes | memoryview) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Its bytes in host memory, in the order of its elements."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def is_own(file: str, folder: Path) -> bool:
    """Whether a file is the script or lies beside it: code of the person who runs it."""
    path = Path(file).absolute()
    if not path.is_relative_to(folder) or any(part in _FOREIGN for part in path.parts):
        return False
    return not (path.is_relative_to(_OURS) or path.is_relative_to(_STDLIB))


@dataclass(slots=True)
class Outside:
    """Looks around one process; `look` is called before a micro-step."""

    registry: Registry
    folder: Path
    _known: set[int] = field(default_factory=set)
    _found: dict[str, Found] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _modules: list[tuple[str, str, types.ModuleType]] = field(default_factory=list)
    _module_count: int = 0

    def look(self, frame: types.FrameType | None) -> dict[str, Found]:
        """Everything outside of the registered that can be reached and compared, by its path."""
        self._found, self._seen = {}, set()
        self._known = set(self._registered())
        for path, value in itertools.chain(self._of_modules(), self._of_frames(frame)):
            self._visit(value, path, 0)
        return self._found

    def _registered(self) -> Iterator[int]:
        registry = self.registry
        yield from (id(thing) for thing in registry.parameters.values())
        yield from (id(slot.tensor) for slot in registry.buffers)
        yield from (id(thing) for thing in registry.optimizers.values())
        yield from (id(thing) for thing in registry.stateful.values())
        for name, tree in registry.tensors.items():
            yield from (id(tensor) for _, tensor in leaves(tree, name))

    # --- where it begins -------------------------------------------------------------------------

    def _of_modules(self) -> Iterator[tuple[str, object]]:
        for name, module in self.registry.modules.items():
            for path, part in module.named_modules(prefix=name):
                self._seen.add(id(part))
                yield from ((f"{path}.{key}", value) for key, value in _attributes(part))
        for label, file, own in self._own_modules():
            lasting = lasting_names(file, "<module>", 0)
            for key, value in list(vars(own).items()):
                if key in lasting:
                    yield f"{label}.{key}", value

    def _own_modules(self) -> list[tuple[str, str, types.ModuleType]]:
        if len(sys.modules) != self._module_count:
            self._module_count = len(sys.modules)
            self._modules = []
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and is_own(file, self.folder):
                    label = Path(file).stem if name == "__main__" else name
                    self._modules.append((label, file, module))
        return self._modules

    def _of_frames(self, frame: types.FrameType | None) -> Iterator[tuple[str, object]]:
        while frame is not None:
            code = frame.f_code
            if code.co_name != "<module>" and is_own(code.co_filename, self.folder):
                lasting = lasting_names(code.co_filename, code.co_name, code.co_firstlineno)
                for key, value in list(frame.f_locals.items()):
                    if key in lasting:
                        yield f"{code.co_name}.{key}", value
            frame = frame.f_back

    # --- the walk --------------------------------------------------------------------------------

    def _visit(self, value: object, path: str, depth: int) -> None:
        if value is None or isinstance(value, _SCALARS):
            self._found[path] = Found(_scalar(value))
            return
        if id(value) in self._seen or id(value) in self._known:
            return
        if depth > _DEPTH or len(self._found) > _MOST:
            return
        self._seen.add(id(value))
        if (found := _leaf(value)) is not None:
            self._found[path] = found
            return
        for key, item in self._inside(value, path):
            self._visit(item, key, depth + 1)

    def _inside(self, value: object, path: str) -> Iterator[tuple[str, object]]:
        match value:
            case Mapping():
                self._found[f"{path}.len"] = Found(f"len {len(value)}")
                for key, item in itertools.islice(list(value.items()), _ITEMS):
                    if isinstance(key, (str, int)):
                        yield f"{path}[{key!r}]", item
            case set() | frozenset():
                self._found[path] = Found(f"order {_order(value)}")
            case list() | tuple() | deque():
                self._found[f"{path}.len"] = Found(f"len {len(value)}")
                for index, item in enumerate(itertools.islice(list(value), _ITEMS)):
                    yield f"{path}[{index}]", item
            case Loader():
                yield f"{path}.dataset", value.dataset
            case nn.Module():
                for name, part in value.named_modules(prefix=path):
                    self._seen.add(id(part))
                    yield from ((f"{name}.{key}", item) for key, item in _attributes(part))
                yield from value.named_parameters(prefix=path)
                yield from value.named_buffers(prefix=path)
            case types.FunctionType() if self._is_own_code(value.__code__):
                yield from _of_function(value, path)
            case types.MethodType():
                yield path, value.__self__
            case types.GeneratorType() if value.gi_frame and self._is_own_code(value.gi_code):
                for key, item in value.gi_frame.f_locals.items():
                    yield f"{path}.{key}", item
            case type() if self._is_own_class(value):
                yield from _plain_attributes(vars(value), path)
            case _:
                if self._is_own_class(type(value)):
                    yield from _plain_attributes(vars(type(value)), path)
                    yield from _plain_attributes(getattr(value, "__dict__", {}), path)

    def _is_own_code(self, code: types.CodeType) -> bool:
        return is_own(code.co_filename, self.folder)

    def _is_own_class(self, cls: type) -> bool:
        module = sys.modules.get(cls.__module__)
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and is_own(file, self.folder)


def _attributes(module: nn.Module) -> list[tuple[str, object]]:
    """What a script keeps on a module beside its parameters, buffers and parts."""
    return [
        (key, value)
        for key, value in list(vars(module).items())
        if not key.startswith("_") and key != "training"
    ]


def _plain_attributes(values: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
    for key, value in list(values.items()):
        if not (key.startswith("__") or isinstance(value, (property, staticmethod, classmethod))):
            yield f"{path}.{key}", value


def _of_function(function: types.FunctionType, path: str) -> Iterator[tuple[str, object]]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    for name, cell in zip(names, cells, strict=True):
        try:
            yield f"{path}.{name}", cell.cell_contents
        except ValueError:  # not yet bound
            continue
    yield from ((f"{path}.{key}", value) for key, value in vars(function).items())
    for index, value in enumerate(function.__defaults__ or ()):
        if isinstance(value, (list, dict, set, deque)):
            yield f"{path}.default[{index}]", value


def _leaf(value: object) -> Found | None:
    match value:
        case torch.Tensor():
            if value.grad_fn is not None or value.layout is not torch.strided:
                return Found("tensor of a graph")
            return Found(f"tensor {_sample(value)}", value)
        case np.ndarray():
            if value.dtype.kind not in "biufc":
                return Found(f"array {value.dtype} {value.shape}")
            return Found(f"tensor {_sample(torch.from_numpy(np.array(value)))}")
        case torch.Generator():
            return Found(f"generator {value_digest(tensor_bytes(value.get_state()))}")
        case np.random.Generator():
            return Found(f"generator {value_digest(repr(value.bit_generator.state).encode())}")
        case np.random.RandomState():
            state = repr(value.get_state(legacy=False)["state"]["key"].tolist())
            place = value.get_state(legacy=False)["state"]["pos"]
            return Found(f"generator {value_digest(f'{state}{place}'.encode())}")
        case random.Random():
            return Found(f"generator {value_digest(repr(value.getstate()).encode())}")
        case itertools.count():
            return Found(f"int {repr(value)[6:-1]}")
        case _:
            return None


def _sample(tensor: torch.Tensor) -> str:
    flat = tensor.detach().reshape(-1)
    if flat.numel() > _ELEMENTS:
        flat = flat[:: flat.numel() // _ELEMENTS]
    return f"{tensor.dtype} {tuple(tensor.shape)} {value_digest(tensor_bytes(flat))}"


def _scalar(value: object) -> str:
    if isinstance(value, float):
        return f"float {value.hex()}"
    text = repr(value)
    if len(text) > _TEXT:
        text = f"{text[:_TEXT]} {value_digest(text.encode())}"
    return f"{type(value).__name__} {text}"


def _order(values: Iterable[object]) -> str:
    """The order in which a set gives its elements, where they have a text of their own."""
    texts = [repr(value) for value in values if isinstance(value, (str, int, float, bytes, tuple))]
    return value_digest("\0".join(texts).encode())


# --- which names last -----------------------------------------------------------------------------


@lru_cache(maxsize=256)
def lasting_names(file: str, function: str, first_line: int) -> frozenset[str]:
    """The names that a body sets outside of its loops: the others live for one turn only."""
    try:
        tree: ast.Module = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    declared = {
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    if function == "<module>":
        return frozenset(_stored(tree.body, in_loop=False)) | declared
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function:
            lines = (node.lineno, *(each.lineno for each in node.decorator_list))
            if min(lines) == first_line:
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                return frozenset(_stored(node.body, in_loop=False)) | {arg.arg for arg in every}
    return frozenset()


def _stored(body: Iterable[ast.AST], *, in_loop: bool) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                continue
            case ast.GeneratorExp():
                continue
            case ast.For() | ast.AsyncFor() | ast.While():
                yield from _stored(ast.iter_child_nodes(node), in_loop=True)
            case ast.Name(ctx=ast.Store()) if not in_loop:
                yield node.id
            case ast.alias() if not in_loop:
                yield (node.asname or node.name).partition(".")[0]
            case _:
                yield from _stored(ast.iter_child_nodes(node), in_loop=in_loop)
