"""torch's watchdog: a worker says by when it will have done something, and is killed if it has not.

The timers come as JSON lines through a named pipe, from torch's `FileTimerClient` in the workers. A
worker that is killed has failed like any other: the agent lives on, and starts the group again.
"""

import contextlib
import json
import os
import select
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_POLL_S = 0.1
_MOST_BYTES = 65_536


class Timer(NamedTuple):
    """A promise of a process: to be kept until then, seconds since 1970 as the client counts."""

    expires_s: float
    signal: int


class Timers:
    """The promises that stand, by process and scope."""

    def __init__(self) -> None:
        self._timers: dict[tuple[int, str], Timer] = {}

    def take(self, line: bytes) -> None:
        """A line of a client; a time below zero takes its promise back, nonsense is passed over."""
        try:
            said = json.loads(line)
            key = (int(said["pid"]), str(said["scope_id"]))
            timer = Timer(float(said["expiration_time"]), int(said["signal"]))
        except (ValueError, TypeError, KeyError):
            return
        if timer.expires_s < 0:
            self._timers.pop(key, None)
        else:
            self._timers[key] = timer

    def expired(self, wall_s: float) -> list[tuple[int, str, int]]:
        """Who has not kept a promise: process, scope, signal; told once, with all it promised."""
        broken = [(*key, t.signal) for key, t in self._timers.items() if t.expires_s <= wall_s]
        ended = {pid for pid, _, _ in broken}
        self._timers = {key: t for key, t in self._timers.items() if key[0] not in ended}
        return sorted(broken)


class Watchdog:
    """The pipe and the thread that watches it; `is_ours` keeps it from signalling strangers."""

    def __init__(
        self, *, path: str, is_ours: Callable[[int], bool], tell: Callable[[str], None]
    ) -> None:
        self._folder = "" if path else tempfile.mkdtemp(prefix="easyscale-timer-")
        self.path = path or f"{self._folder}/timers"
        os.mkfifo(self.path, 0o600)
        # Both ends are ours: so it is never at its end, however clients come and go.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_ours = is_ours
        self._tell = tell
        self._timers = Timers()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="easyscale-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        os.close(self._pipe)
        with contextlib.suppress(OSError):
            Path(self.path).unlink()
            if self._folder:
                Path(self._folder).rmdir()

    def _run(self) -> None:
        rest = b""
        while not self._closing.is_set():
            if select.select([self._pipe], [], [], _POLL_S)[0]:
                *lines, rest = (rest + os.read(self._pipe, _MOST_BYTES)).split(b"\n")
                for line in lines:
                    self._timers.take(line)
                rest = rest[-_MOST_BYTES:]
            for pid, scope, number in self._timers.expired(time.time()):
                if number > 0 and self._is_ours(pid):
                    self._tell(f"process {pid} did not leave {scope!r} in time: signal {number}")
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
