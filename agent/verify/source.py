"""Where a script's own source sets a name, for evidence and advice to point at."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec


class Place(msgspec.Struct, frozen=True, order=True):
    """One line that sets a name."""

    file: str
    line: int
    #: `self.running_scale`, as it stands there.
    target: str
    #: What is put there, as it stands there.
    value: str
    #: The value follows from the one before: `+=`, `next(...)`, or it is named on the right.
    updates: bool
    #: Inside an `__init__`, or at the top of the file.
    begins: bool

    @property
    def label(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def places_of(name: str, files: Sequence[str]) -> list[Place]:
    """Every line that sets a variable, an attribute or an item of that name."""
    found: list[Place] = []
    for file in files:
        try:
            tree = ast.parse(Path(file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        found += _places(tree, name, file, begins=True)
    return sorted(found)


def first_update(places: Sequence[Place]) -> Place | None:
    """The line that changes it while training runs, or else the first that sets it."""
    later = [place for place in places if not place.begins]
    updates = [place for place in (later or places) if place.updates]
    return next(iter(updates or later or places), None)


def first_beginning(places: Sequence[Place]) -> Place | None:
    """The line that it begins at."""
    return next((place for place in places if place.begins and not place.updates), None)


def _places(node: ast.AST, name: str, file: str, *, begins: bool) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _places(child, name, file, begins=child.name == "__init__")
                continue
            case ast.For() | ast.While():
                yield from _places(child, name, file, begins=False)
                continue
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if _ends_in(target, name):
                        updates = ast.unparse(target) in ast.unparse(value)
                        yield _place(file, child, target, value, updates=updates, begins=begins)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                if _ends_in(target, name):
                    yield _place(file, child, target, value, updates=False, begins=begins)
            case ast.AugAssign(target=target, value=value):
                if _ends_in(target, name):
                    yield _place(file, child, target, value, updates=True, begins=begins)
            case ast.Call(func=ast.Attribute(value=target, attr=method)):
                if _ends_in(target, name) and method.endswith("_") and not method.startswith("_"):
                    yield _place(file, child, target, child, updates=True, begins=begins)
            case ast.Call(func=ast.Name(id="next"), args=[target, *_]):
                if _ends_in(target, name):
                    yield _place(file, child, target, child, updates=True, begins=begins)
            case _:
                pass
        yield from _places(child, name, file, begins=begins)


def _ends_in(target: ast.expr, name: str) -> bool:
    match target:
        case ast.Name(id=found) | ast.Attribute(attr=found):
            return found == name
        case ast.Subscript(value=value):
            return _ends_in(value, name)
        case ast.Starred(value=value):
            return _ends_in(value, name)
        case _:
            return False


def _place(
    file: str,
    node: ast.stmt | ast.expr,
    target: ast.expr,
    value: ast.expr,
    *,
    updates: bool,
    begins: bool,
) -> Place:
    return Place(file, node.lineno, ast.unparse(target), ast.unparse(value), updates, begins)


def set_loops(files: Sequence[str]) -> list[str]:
    """Lines that go through a set as it comes: a loop, a list or an `enumerate` of one."""
    found = []
    for file in files:
        try:
            tree = ast.parse(Path(file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        sets = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and _is_set(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            walked = _walked(node)
            if walked is not None and (
                _is_set(walked) or (isinstance(walked, ast.Name) and walked.id in sets)
            ):
                found.append(f"{Path(file).name}:{walked.lineno}")
    return sorted(set(found))


def _walked(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.For(iter=walked) | ast.comprehension(iter=walked):
            return walked
        case ast.Call(func=ast.Name(id="list" | "tuple" | "enumerate" | "iter"), args=[walked, *_]):
            return walked
        case _:
            return None


def _is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case _:
            return False
