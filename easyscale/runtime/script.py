"""Runs a person's script as `__main__`, as python itself would, and ends the process after it.

The end is python's own (threads joined, exit functions run, streams flushed) up to the last exit
function, which leaves by `os._exit`: process groups that were abandoned must not block it.
"""

import atexit
import builtins
import importlib.abc
import importlib.util
import io
import logging
import os
import runpy
import signal
import sys
import types
import zipfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

from easyscale.messages import ScriptTarget

#: Frames of these files stand between python and the script; a traceback does not show them.
_OURS = (__file__, runpy.__file__, "<frozen runpy>")


class Leaving:
    """The last exit function; made before anything else could register one."""

    def __init__(self) -> None:
        self.exit_code = 1
        atexit.register(self._leave)

    def _leave(self) -> None:
        # Registered by an import that came before us, if at all.
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                self.exit_code = self.exit_code or 1
        os._exit(self.exit_code)


def run(
    target: ScriptTarget,
    *,
    failed: Callable[[BaseException], None],
    exited: Callable[[SystemExit], None],
) -> int:
    """Run the target to its end; `failed` is told of an exception before its traceback is printed.

    `exited` is told of a call of `sys.exit`. Returns the exit code that python would have ended
    with.
    """
    try:
        _execute(target)
    except SystemExit as leaving:
        exited(leaving)
        return _exit_code(leaving)
    except KeyboardInterrupt as interrupt:
        failed(interrupt)  # whoever sent it, or the script itself: it says where it ended
        _print(interrupt)
        return 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - whatever ends a script is reported
        failed(error)
        _print(error)
        return 1
    return 0


def _execute(target: ScriptTarget) -> None:
    if target.module:
        _execute_module(target)
    elif Path(target.path).is_dir() or zipfile.is_zipfile(target.path):
        sys.argv = [target.path, *target.arguments]
        runpy.run_path(target.path, run_name="__main__")
    else:
        _execute_file(target)


def _execute_file(target: ScriptTarget) -> None:
    sys.argv = [target.path, *target.arguments]
    sys.path.insert(0, str(Path(target.path).resolve().parent))
    loader = SourceFileLoader("__main__", target.path)
    module = _become_main(target.path, spec=None, package=None, loader=loader)
    with io.open_code(str(Path(target.path).absolute())) as source:
        code = compile(source.read(), target.path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - running the script is the purpose


def _execute_module(target: ScriptTarget) -> None:
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = ["-m", *target.arguments]
    spec = _find(target.module)
    loader = spec.loader
    code = loader.get_code(spec.name) if isinstance(loader, importlib.abc.InspectLoader) else None
    if code is None:
        raise ImportError(f"no code object available for {spec.name}")
    origin = spec.origin or spec.name
    sys.argv[0] = origin
    module = _become_main(origin, spec=spec, package=spec.parent, loader=loader)
    exec(code, module.__dict__)  # noqa: S102 - running the script is the purpose


def _find(name: str) -> ModuleSpec:
    """The module itself, or the `__main__` of a package."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
        raise ModuleNotFoundError(f"no module named {name!r} that can be run", name=name)
    return spec


def _become_main(
    file: str, *, spec: ModuleSpec | None, package: str | None, loader: object
) -> types.ModuleType:
    """Put a fresh `__main__` in place, where pickle and multiprocessing look for it."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=file,
        __spec__=spec,
        __package__=package,
        __loader__=loader,
        __builtins__=builtins,
        __cached__=None,
    )
    sys.modules["__main__"] = module
    return module


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)  # noqa: T201 - as python does for sys.exit("text")
    return 1


def _print(error: BaseException) -> None:
    """Print the traceback as python would: from the script's own first line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
