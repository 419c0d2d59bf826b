"""What a killed keeper leaves behind comes to its agent, which ends it by its mark.

The workers themselves end with their keeper, by the kernel's word; what they had put into sessions
of their own does not.
"""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_DEADLINE_S = 2.0
_POLL_S = 0.01


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(mark: str) -> None:
    """Kill and reap every child whose environment holds the mark, until none comes any more."""
    deadline = time.monotonic() + _DEADLINE_S
    while (found := _marked(mark)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        time.sleep(_POLL_S)  # what was below them comes to us only now


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(word) for word in (entry / "children").read_text().split()]
    return [pid for pid in found if has_mark(pid, mark)]


def has_mark(pid: int, mark: str) -> bool:
    """Whether a process was given the mark in its environment, by us or by one who was."""
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
