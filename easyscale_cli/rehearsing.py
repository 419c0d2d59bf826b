"""What `verify` and `doctor --bits` run a script with, in a folder that is thrown away."""

import ast
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from easyscale.agent.hardware.devices import find_slots
from easyscale.agent.verify.rehearsal import RehearsalSettings
from easyscale.agent.verify.scratch import Mirror
from easyscale.errors import UsageError
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from easyscale_cli.scripts import check_script

#: What a command that has no such options runs with.
DEFAULTS: Mapping[str, Any] = {
    "devices": "auto",
    "seed": None,
    "threads_per_worker": 1,
    "determinism": "same-kind",
    "partials": "device",
    "preload": "",
    "keep": None,
}

#: What forks the workers has these.
_LOADED = frozenset({"torch", "easyscale", "numpy"})


@contextmanager
def rehearsal(
    target: ScriptTarget, n: int, *, asked: Mapping[str, Any]
) -> Iterator[RehearsalSettings]:
    """Settings for runs of the script, in a private folder that ends with the block."""
    slots, _ = find_slots(
        asked["devices"],
        threads_per_worker=asked["threads_per_worker"],
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    with _folder(asked["keep"]) as folder:
        standing = folder / "standing"
        Mirror().fill(standing, Path.cwd())
        yield RehearsalSettings(
            script=target,
            python=sys.executable,
            environment=dict(os.environ),
            working_directory=standing,
            folder=folder,
            logical_workers=n,
            seed=asked["seed"],
            determinism=Determinism(asked["determinism"]),
            threads_per_worker=asked["threads_per_worker"],
            partials=asked["partials"],
            preload=tuple(filter(None, asked["preload"].split(","))),
            slots=slots,
        )


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """A private folder; it goes with all that is in it, unless it was named."""
    if keep is not None:
        path = Path(keep).absolute()
        if path.exists() and any(path.iterdir()):
            raise UsageError(f"--keep {keep}: the folder is not empty", hint="a new folder")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield path
        return
    made = Path(tempfile.mkdtemp(prefix="easyscale-verify-"))
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield made
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(made, ignore_errors=True)


def _leave(number: int, _: object) -> None:
    """End by way of every `finally`: the workers, then the folder."""
    raise SystemExit(128 + number)


def target_of(
    script: str, arguments: tuple[str, ...], *, is_module: bool | None = None
) -> ScriptTarget:
    """The script by its whole path, since its workers stand elsewhere.

    `is_module` is None where the command knows no modules.
    """
    if is_module:
        return ScriptTarget.of(script, is_module=True, arguments=arguments)
    check_script(script, or_module=is_module is not None)
    return ScriptTarget.of(str(Path(script).absolute()), is_module=False, arguments=arguments)


def logical_workers_of(script: str, *, command: str, is_module: bool = False) -> int:
    """What the script passes to `init`, where that is a number that stands there."""
    found = None if is_module else passed_to_init(Path(script))
    if found is None:
        raise UsageError(
            f"{command} needs to know the job's logical workers: they decide its bits",
            hint=f"easyscale {command} --logical-workers 16 {script}",
        )
    return found


def passed_to_init(script: Path) -> int | None:
    """`logical_workers` of the first call of an `init` in the script's text."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("init")):
            continue
        for word in node.keywords:
            if word.arg == "logical_workers" and isinstance(word.value, ast.Constant):
                return word.value.value if type(word.value.value) is int else None
    return None


def installed_imports(script: Path) -> tuple[str, ...]:
    """What the top of the script imports from installed packages, as it would be named to python.

    Not what is its own or stands beside it: a module of that name would take its place.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    names: dict[str, None] = {}
    for node in tree.body:
        match node:
            case ast.Import(names=aliases):
                names |= dict.fromkeys(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(name), level=0):
                names[name] = None
            case _:
                pass
    return tuple(name for name in names if _is_installed(name, beside=script.absolute().parent))


def _is_installed(name: str, *, beside: Path) -> bool:
    top = name.partition(".")[0]
    if top in _LOADED or (beside / top).exists() or (beside / f"{top}.py").exists():
        return False
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and "site-packages" in Path(spec.origin or "").parts
