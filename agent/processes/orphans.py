"""An agent that is PID 1 of a container inherits every orphan in it, and waits for them.

Our own children are waited for by whoever started them, at once; so a child that has been dead for
a while is nobody's, and only such a one is taken.
"""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_SWEEP_EVERY_S = 2.0
#: Dead for so long without being waited for: nobody else will.
_NOBODYS_AFTER_S = 5.0


class OrphanReaper:
    """A thread that takes the dead children that nobody waits for."""

    def __init__(
        self, *, every_s: float = _SWEEP_EVERY_S, after_s: float = _NOBODYS_AFTER_S
    ) -> None:
        self._every_s = every_s
        self._after_s = after_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(self._every_s + 1.0)

    def _run(self) -> None:
        since: Mapping[int, float] = {}
        while not self._is_over.wait(self._every_s):
            now = time.monotonic()
            since = {pid: since.get(pid, now) for pid in dead_children()}
            for pid in [pid for pid, at in since.items() if now - at >= self._after_s]:
                reap(pid)


def is_init() -> bool:
    """Whether orphans of other processes become children of this one."""
    return os.getpid() == 1


def dead_children(root: Path = Path("/proc")) -> list[int]:
    """Children of this process that have ended and were not waited for."""
    found = []
    for task in _listed(root / "self/task"):
        try:
            words = (task / "children").read_text().split()
        except OSError:
            continue
        found += [int(pid) for pid in words if _is_dead(root / pid)]
    return found


def reap(pid: int) -> None:
    """Wait for a child that has ended; whoever was quicker has had it."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_dead(process: Path) -> bool:
    try:
        # The name may hold anything, a parenthesis too; the state stands behind the last one.
        return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
