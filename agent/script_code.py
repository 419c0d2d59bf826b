"""Which code a job's bits come from: the script and the local modules that it imports.

Found by reading, never by running. What is installed is not local; its versions are elsewhere.
"""

import ast
import hashlib
import importlib.machinery
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from easyscale.messages import ScriptTarget

#: Ours is compared by its version, wherever it was installed from.
_OURS = frozenset({"easyscale", "easyscale_cli"})
_DIGEST_BYTES = 16


class Root(NamedTuple):
    """A folder in which python looks for modules; files of local ones belong to the job."""

    path: Path
    is_local: bool


class _Found(NamedTuple):
    """A module's file; `name` is what it is called wherever the project lies."""

    module: str
    path: Path
    name: str
    is_package: bool


def read_code(
    target: ScriptTarget, *, working_directory: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Name -> blake2b of the script and of every local file that it imports, however deep."""
    folder = working_directory
    if not target.module:
        folder = (working_directory / target.path).resolve().parent
    roots = search_path(folder, working_directory, environment)
    if target.module:
        return _follow(list(_target_modules(target.module, roots)), roots)
    path = working_directory / target.path
    return _follow([_Found("__main__", path, path.name, is_package=False)], roots)


def search_path(
    script_folder: Path, working_directory: Path, environment: Mapping[str, str]
) -> tuple[Root, ...]:
    """Where the script's own python will look, in its order."""
    own = [script_folder]
    own += [
        working_directory / part
        for part in environment.get("PYTHONPATH", "").split(":")
        if part and not _is_installed(working_directory / part)
    ]
    rest = [Path(entry) for entry in sys.path[1:] if entry]
    roots = [Root(path.resolve(), is_local=True) for path in own]
    known = {root.path for root in roots}
    # A path that a .pth file adds is a project under work; the others are installed.
    roots += [
        Root(path.resolve(), is_local=not _is_installed(path))
        for path in rest
        if path.resolve() not in known
    ]
    return tuple(roots)


def _is_installed(path: Path) -> bool:
    names = {"site-packages", "dist-packages"}
    if names.intersection(path.parts):
        return True
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return path.suffix == ".zip" or any(
        path.resolve().is_relative_to(Path(folder).resolve()) for folder in standard
    )


def _target_modules(module: str, roots: Sequence[Root]) -> Iterator[_Found]:
    """The module of `-m`, or the `__main__` of a package, and the packages above it."""
    found = list(_chain(module, roots))
    if found and found[-1].module == module and found[-1].is_package:
        found = list(_chain(f"{module}.__main__", roots))
    return iter(found)


def _follow(begin: list[_Found], roots: Sequence[Root]) -> dict[str, str]:
    digests: dict[str, str] = {}
    waiting = begin
    seen = {found.path for found in waiting}
    while waiting:
        found = waiting.pop()
        try:
            data = found.path.read_bytes()
        except OSError:  # a launch says so when it runs it
            continue
        digests[found.name] = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        for module in _imported(data, found):
            for each in _chain(module, roots):
                if each.path not in seen:
                    seen.add(each.path)
                    waiting.append(each)
    return dict(sorted(digests.items()))


def _imported(data: bytes, found: _Found) -> Iterator[str]:
    """Every module that the source names in an import, wherever it stands."""
    if found.path.suffix != ".py" and found.module != "__main__":
        return
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    package = found.module if found.is_package else found.module.rpartition(".")[0]
    yield from _imports_in(tree, package)


def _imports_in(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _absolute(module or "", level, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in names if alias.name != "*")
        case ast.If(test=test) if _is_type_checking(test):
            for statement in node.orelse:
                yield from _imports_in(statement, package)
            return
        case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is_import_call(node.func):
            yield _absolute(name.lstrip("."), len(name) - len(name.lstrip(".")), package)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _imports_in(child, package)


def _absolute(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    parts = package.split(".") if package else []
    if level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - level + 1], *filter(None, [name])])


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"}


def _chain(module: str, roots: Sequence[Root]) -> Iterator[_Found]:
    """The local files that importing `a.b.c` runs: those of a, a.b and a.b.c, as far as they go."""
    parts = module.split(".")
    if not parts[0] or parts[0] in _OURS or parts[0] in sys.builtin_module_names:
        return
    places = list(roots)
    for depth in range(1, len(parts) + 1):
        found, places = _look(parts[:depth], places)
        if found is not None:
            yield found
        if not places:
            return


def _look(parts: list[str], places: Sequence[Root]) -> tuple[_Found | None, list[Root]]:
    """The file of a module, if it is local, and where modules inside it are looked for."""
    portions: list[Root] = []
    for place, is_local in places:
        folder = place / parts[-1]
        for path, is_package in _candidates(folder):
            if not path.is_file():
                continue
            inside = [Root(folder, is_local)] if is_package else []
            if not is_local:
                return None, inside
            name = "/".join([*parts[:-1], path.name])
            if is_package:
                name = "/".join([*parts, path.name])
            return _Found(".".join(parts), path, name, is_package), inside
        if folder.is_dir():
            portions.append(Root(folder, is_local))
    return None, portions  # a package without a file of its own, or nothing at all


def _candidates(folder: Path) -> Iterator[tuple[Path, bool]]:
    """In python's own order: a package, an extension, a source file."""
    suffixes = [*importlib.machinery.EXTENSION_SUFFIXES, ".py"]
    yield from ((folder / f"__init__{suffix}", True) for suffix in suffixes)
    yield from ((folder.with_name(f"{folder.name}{suffix}"), False) for suffix in suffixes)
