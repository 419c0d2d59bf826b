"""Whether the kernel killed a process for want of memory, as far as one without rights can know.

The counter of our control group, which the workers share, or of the host says that somebody was
killed meanwhile; the kernel's log names the process, where it may be read.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from easyscale.control_groups import groups, numbers

_ROOT: Final = Path("/")
#: A line of the log is read whole or not at all.
_LINE_BYTES: Final = 8192
#: More lines than its buffer holds.
_MOST_LINES: Final = 100_000
_KILLED: Final = re.compile(rb"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+) ")


class KernelKills:
    """What the kernel had killed when it was last looked; one for all workers of a node."""

    def __init__(self, *, root: Path = _ROOT) -> None:
        self._root = root
        self._known = self._count()

    def look(self) -> None:
        """Whatever was killed until now was none of the workers whose end is still to come."""
        self._known = self._count()

    def explain(self, pid: int) -> str:
        """Why the kernel killed this process, if it did; asked once, after SIGKILL ended it."""
        where, now = self._count()
        was, known = self._known
        if where != was or now <= known:
            return ""
        # One of the kills since the last look: others may have ended by it too.
        self._known = (where, known + 1)
        if pid in self._logged():
            return "out of memory, says the kernel's log"
        return f"out of memory, by the kernel's count of kills in {where}"

    def _count(self) -> tuple[str, int]:
        for group in groups("memory", root=self._root):
            name = "memory.events" if group.is_unified else "memory.oom_control"
            count = numbers(group.folder / name).get("oom_kill")
            if count is not None:
                return "its control group", count
        return "the host", numbers(self._root / "proc/vmstat").get("oom_kill", 0)

    def _logged(self) -> set[int]:
        """The processes that the log still names. In a container it knows them by other numbers."""
        with contextlib.suppress(OSError):
            log = os.open(self._root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return _victims(log)
            finally:
                os.close(log)
        return set()


def _victims(log: int) -> set[int]:
    found: set[int] = set()
    for _ in range(_MOST_LINES):
        try:
            line = os.read(log, _LINE_BYTES)
        except BlockingIOError:
            break
        except BrokenPipeError:
            continue  # what came next was overwritten meanwhile
        if not line:
            break
        found.update(int(match["pid"]) for match in _KILLED.finditer(line))
    return found
