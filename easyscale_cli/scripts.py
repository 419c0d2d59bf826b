"""What a person names to be run, a file or a module: looked for before anything is started."""

import os
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from easyscale.errors import UsageError
from easyscale_cli.views.errors import near_miss

_FROM_HERE = "give the path from here"
_WITH_MODULE = f"{_FROM_HERE}, or -m MODULE"


def check_script(script: str, *, or_module: bool = False) -> None:
    """Raise UsageError where there is no such script, with one that there is.

    `or_module`: the command takes `-m MODULE` in its place.
    """
    path = Path(script)
    if path.is_file():
        if not os.access(path, os.R_OK):
            raise UsageError(f"{script}: not readable by this user")
        if path.suffix == ".ipynb":
            raise UsageError(
                f"{script}: a notebook, which runs in its own kernel",
                hint=f"jupyter nbconvert --to script {script}",
            )
        return
    if path.is_dir():
        raise UsageError(f"{script}: a folder, not a script", hint="give the script inside it")
    place = f"no such file in {path.parent.resolve()}"
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = near_miss(path.name, beside)
    raise UsageError(
        f"{script}: {place}",
        hint=f"{path.parent / near}" if near else _WITH_MODULE if or_module else _FROM_HERE,
    )


def check_module(name: str) -> None:
    """Raise UsageError where `python -m NAME` would find nothing; runs none of its code."""
    parts = name.split(".")
    found = _top_level(parts[0])
    for depth in range(1, len(parts) + 1):
        part = ".".join(parts[:depth])
        if depth > 1:
            inside = None if found is None else found.submodule_search_locations
            found = None if inside is None else PathFinder.find_spec(part, list(inside))
        if found is None:
            raise UsageError(
                f"-m {name}: there is no module {part} here or on Python's path",
                hint=f"easyscale launch {name}, without -m"
                if Path(name).is_file()
                else "-m takes what python -m takes: a name found from this folder or PYTHONPATH",
            )


def _top_level(name: str) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, [str(Path.cwd())]) or find_spec(name)
    except (ValueError, ImportError):
        return None
