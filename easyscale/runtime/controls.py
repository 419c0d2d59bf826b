"""Experiments on a script that differs from itself: hold one outer influence still, and look again.

Only the script's own files see what stands here; libraries and easyscale keep the real things.
"""

import datetime as dt
import os
import random
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from easyscale.messages import ScriptTarget
from easyscale.recording import SUFFIX, ClockRead, Entry, Recording, encode_entry
from easyscale.runtime.outside import is_own

Write = Callable[[Entry], None]

#: Where the fixed clock begins, and how far a look at it moves it.
_BEGIN_NS = 1_700_000_000_000_000_000
_TICK_NS = 1_000_000
#: More calls from one place are not told again.
_MOST_TOLD = 8


def take(recording: Recording, script: ScriptTarget) -> None:
    """Set up what a run holds still, before the script's first import."""
    if not (recording.fixed_clock or recording.fixed_entropy):
        return
    folder = Path(script.path).absolute().parent if script.path else Path.cwd()
    path = Path(recording.folder) / f"controls-{os.getpid()}{SUFFIX}"

    def write(entry: Entry) -> None:
        with path.open("ab") as file:
            file.write(encode_entry(entry))

    if recording.fixed_clock:
        fix_clock(folder, write)
    if recording.fixed_entropy:
        fix_entropy(folder, write)


class _Caller:
    """Tells calls that come from the script's own files from all others."""

    def __init__(self, folder: Path, write: Write) -> None:
        self._folder = folder
        self._write = write
        self._told: dict[str, int] = {}

    def is_own(self, what: str) -> bool:
        frame = sys._getframe(2)  # noqa: SLF001 - `inspect.stack` reads files
        if not is_own(frame.f_code.co_filename, self._folder):
            return False
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._told[place] = self._told.get(place, 0) + 1
        if self._told[place] <= _MOST_TOLD:
            self._write(ClockRead(what=what, place=place))
        return True


def fix_clock(folder: Path, write: Write) -> None:
    """Give the script a clock that moves by a millisecond at each look."""
    caller = _Caller(folder, write)
    looked = [0]

    def now_ns() -> int:
        looked[0] += 1
        return _BEGIN_NS + looked[0] * _TICK_NS

    def in_its_place(module: types.ModuleType, name: str) -> None:
        real = getattr(module, name)
        counts_ns = name.endswith("_ns")

        def read() -> float:
            if not caller.is_own(f"{module.__name__}.{name}"):
                return float(real()) if not counts_ns else int(real())
            return now_ns() if counts_ns else now_ns() / 1e9

        setattr(module, name, read)

    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time"):
        in_its_place(time, name)
        in_its_place(time, f"{name}_ns")

    class Datetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:  # noqa: ANN401 - as the real one
            if caller.is_own("datetime.now"):
                return cls.fromtimestamp(now_ns() / 1e9, tz)
            return super().now(tz)

        @classmethod
        def utcnow(cls) -> Any:  # noqa: ANN401 - as the real one
            if caller.is_own("datetime.utcnow"):
                return cls.fromtimestamp(now_ns() / 1e9, dt.UTC).replace(tzinfo=None)
            return super().now(dt.UTC).replace(tzinfo=None)

    Datetime.__name__, Datetime.__module__ = "datetime", "datetime"
    dt.datetime = Datetime  # type: ignore[misc]


def fix_entropy(folder: Path, write: Write) -> None:
    """Start from a number whatever the script starts from the machine's entropy."""
    caller = _Caller(folder, write)
    real_default_rng, real_urandom = np.random.default_rng, os.urandom
    started = [0]

    def number() -> int:
        started[0] += 1
        return started[0]

    def default_rng(seed: Any = None) -> np.random.Generator:  # noqa: ANN401 - as the real one
        if seed is None and caller.is_own("numpy.random.default_rng()"):
            seed = number()
        return real_default_rng(seed)

    def urandom(size: int) -> bytes:
        if caller.is_own("os.urandom"):
            return random.Random(number()).randbytes(size)  # noqa: S311 - that is the purpose
        return real_urandom(size)

    class OwnRandom(random.Random):
        def __init__(self, seed: Any = None) -> None:  # noqa: ANN401 - as the real one
            if seed is None and caller.is_own("random.Random()"):
                seed = number()
            super().__init__(seed)

    class OwnState(np.random.RandomState):
        def __init__(self, seed: Any = None) -> None:  # noqa: ANN401 - as the real one
            if seed is None and caller.is_own("numpy.random.RandomState()"):
                seed = number()
            super().__init__(seed)

    np.random.default_rng = default_rng
    np.random.RandomState = OwnState  # type: ignore[misc]
    random.Random = OwnRandom  # type: ignore[assignment, misc]
    os.urandom = urandom
